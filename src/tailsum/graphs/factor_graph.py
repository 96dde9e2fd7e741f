"""Factor graphs: factors over any number of variables, each a table of scores of their joint states."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.graphs.absorb import Place, absorbed
from tailsum.graphs.factor_scores import FactorGroups, FactorTable
from tailsum.graphs.factors import TableFactors, padded
from tailsum.graphs.graph import Graph
from tailsum.numerics.check import as_whole, check_broadcast, check_device, check_scores, shape_or_type
from tailsum.numerics.reduce import log_sum_exp
from tailsum.numerics.tensors import flattened, working_type
from tailsum.numerics.tiles import tile_size
from tailsum.scores.factored import Factored, embedding_norms
from tailsum.scores.potential import Dense, Potential
from tailsum.sketch.selection import Subset
from tailsum.structure.transforms import outside_transforms


class FactorGraph(Graph):
    """A discrete factor graph: exact on forests and small graphs, loopy elsewhere, or sketched on K states.

    `unary` is `[*batch, V, N]`, `Factored(context, states)`, or a list of V tensors `[*batch, N_v]`. `factors` is a list of
    `(variables, scores)`: either one factor, `variables` a tuple of r ids and `scores [*batch, N_1, .., N_r]`; or F
    factors of one shape, `variables [F, r]` and `scores` with leading dimensions that broadcast against `[*batch, F]`.
    Factors over one variable are added to its unary scores, factors over some variables of a larger factor to the larger
    one. Scores may be minus infinity (forbidden). The other options are those of `Graph`.

    >>> parity = torch.tensor([[[0.0, -9.0], [-9.0, 0.0]], [[-9.0, 0.0], [0.0, -9.0]]])
    >>> FactorGraph(torch.zeros(5, 2), [((0, 1, 2), parity), ((2, 3, 4), parity)])
    FactorGraph(batch=[], V=5, factors=2, N=2, forest)
    """

    def __init__(
        self,
        unary: Float[Tensor, "*#batch V N"] | Factored | Sequence[Tensor],
        factors: Sequence[tuple[Any, Tensor]],
        iterations: int = 100,
        damping: float = 0.0,
        tolerance: float | None = None,
        schedule: str = "sweep",
        gradient: str = "implicit",
        method: str = "auto",
    ) -> None:
        nodes, sizes = self._read_unary(unary)
        self.sizes = torch.Size(sizes)
        shape = nodes.lead[:-1]
        self.variables, self.tables = [], []
        single: list[tuple[Tensor, Tensor]] = []
        seen: set[frozenset[int]] = set()
        if not isinstance(factors, list | tuple):
            raise ValueError(f"factors must be a list of pairs (variables, scores): got {type(factors).__name__}")
        for i, factor in enumerate(factors):
            name, before = f"factors[{i}]", "that of unary and the factors before it,"
            variables, scores = _checked(name, factor, sizes, self.device)
            shape = check_broadcast(name, scores.lead[:-1], shape, before)
            for scope in map(frozenset, variables.tolist()):
                if scope in seen:
                    raise ValueError(f"{name} must be the only one over {sorted(scope)}, add their scores: got two")
                seen.add(scope)
            if variables.shape[1] == 1:
                single.append((variables[:, 0], scores.scores))
            elif len(variables):
                self.variables.append(variables)
                self.tables.append(scores)
        self.dtype = working_type(*nodes.tensors, *(t.scores for t in self.tables), *(s for _, s in single))
        self.batch_shape = shape
        self.unary = self._with_single(nodes, single) if single else nodes.to(self.dtype)
        self.tables = [t.map(lambda x: x.to(self.dtype)) for t in self.tables]
        self.places: list[list[Place]] | None = None
        fewer = absorbed(self.variables, self.tables)
        if fewer is not None:
            self.variables, self.tables, self.places = fewer
        self._configure(iterations, damping, tolerance, schedule, gradient, method)

    def _with_single(self, nodes: Potential, single: list[tuple[Tensor, Tensor]]) -> Dense:
        scores = nodes.block()[..., 0, :].to(self.dtype)
        for variables, extra in single:
            extra = padded(extra.to(self.dtype), self.n_states)  # noqa: PLW2901
            lead = torch.broadcast_shapes(scores.shape[:-2], extra.shape[:-2])
            before, place = scores.expand(*lead, -1, -1), variables[:, None].expand(*lead, -1, self.n_states)
            scores = before.scatter(-2, place, before.gather(-2, place) + extra.expand(place.shape))
        return Dense(scores[..., None, :])

    # Scores of factors.

    def factor_scores(self) -> FactorGroups:
        return FactorGroups([Dense(t.scores) if t.arity == 2 else t for t in self.tables])

    def pair_scores(self) -> list[Potential | None]:
        size = (self.n_states, self.n_states)
        return [Dense(t.scores) if t.scores.shape[len(t.lead) :] == size else None for t in self.tables]

    def form(self) -> tuple[object, ...]:
        return *super().form(), *(t.scores.shape[len(t.lead) :] for t in self.whole.tables)

    def gather(self, index: Int[Tensor, "*#batch V k"]) -> "FactorGraph":
        tables = [
            t.gather([index[..., v[:, axis], :] for axis in range(t.arity)])
            for v, t in zip(self.variables, self.tables, strict=True)
        ]
        return self.replaced(unary=self.unary.gather(None, index), tables=tables)

    def extend(
        self, group: int, factors: Int[Tensor, " m"], position: int, others: Sequence[Subset | None]
    ) -> Float[Tensor, "B m N"]:
        table = self.tables[group]
        flat = flattened(table.scores, table.arity, self.batch_shape)
        size = math.prod(o.index.shape[-1] for o in others if o is not None) * flat.shape[2 + position]
        pieces = []
        for rows in torch.arange(len(factors), device=self.device).split(max(1, tile_size(self.device) // size)):
            part = FactorTable(flat if flat.shape[1] == 1 else flat[:, factors[rows]], table.arity)
            part = part.gather([None if o is None else o.index[:, rows] for o in others])
            joint = TableFactors(part.scores, log_sum_exp).joint(
                [None if o is None else o.log_weight[:, rows] for o in others]
            )
            pieces.append(log_sum_exp(joint.movedim(2 + position, 2).flatten(3), -1))
        return padded(torch.cat(pieces, 1), self.n_states)

    def factor_score(self, states: Int[Tensor, "*sample_batch V"]) -> Float[Tensor, "*sample_batch"]:
        total = torch.zeros(states.shape[:-1], dtype=self.dtype, device=self.device)
        for variables, table in zip(self.variables, self.tables, strict=True):
            joint = table.gather([states[..., variables[:, axis], None] for axis in range(table.arity)])
            total = total + joint.scores.flatten(-table.arity)[..., 0].sum(-1)
        return total

    @outside_transforms
    def factor_marginals(self) -> list[Float[Tensor, "..."]]:
        """The belief in the joint states of each factor, `[*batch, F, n, .., n]` for each group of factors."""
        groups = iter(self.variables)

        def of_each_factor(x: Tensor) -> Tensor:
            count, arity = next(groups).shape
            return x.expand(*self.batch_shape, count, *x.shape[-arity:])

        beliefs = self.term_gradients(1, of_each_factor)
        if self.places is None:
            return beliefs
        dim = len(self.batch_shape)
        return [torch.stack([_within(beliefs[p.group], p, dim) for p in group], dim) for group in self.places]

    def state_norms(self) -> Float[Tensor, "*#batch_node n"]:
        return embedding_norms(self.unary, None, "a Factored unary")


def _within(belief: Tensor, place: Place, dim: int) -> Tensor:
    """The belief of a factor `[*batch, n, .., n]` from the beliefs of the group that has its scores, factors in `dim`."""
    table = belief.select(dim, place.factor)
    others = [axis for axis in range(dim, table.dim()) if axis - dim not in place.axes]
    table = table.sum(others) if others else table
    left = sorted(place.axes)
    return table.permute(*range(dim), *(dim + left.index(axis) for axis in place.axes))


def _checked(name: str, factor: Any, sizes: list[int], device: torch.device) -> tuple[Int[Tensor, "F r"], FactorTable]:
    """The checked variables and scores of a group of factors; the last dimension of `lead` is 1 or F."""
    if not isinstance(factor, tuple | list) or len(factor) != 2:
        raise ValueError(f"{name} must be a pair (variables, scores): got {type(factor).__name__}")
    variables, scores = factor
    variables = as_whole(f"{name}'s variables", variables, device)
    if variables.dim() not in (1, 2) or not variables.shape[-1]:
        raise ValueError(f"{name}'s variables must be [r] or [F, r], r at least 1: got {list(variables.shape)}")
    arity = variables.shape[-1]
    if not isinstance(scores, Tensor) or scores.dim() < arity:
        raise ValueError(
            f"{name}'s scores must have a dimension for each of its {arity} variables: got {shape_or_type(scores)}"
        )
    check_device(f"{name}'s scores", scores, device)
    check_scores(f"{name}'s scores", scores)
    if variables.dim() == 1:
        variables, scores = variables[None], scores.unsqueeze(-arity - 1)
    elif scores.dim() == arity:
        scores = scores[None]
    if scores.shape[-arity - 1] not in (1, len(variables)):
        raise ValueError(
            f"{name}'s scores must be of 1 or {len(variables)} factors in dimension {-arity - 1}: got {list(scores.shape)}"
        )
    _check_scopes(name, variables.tolist(), sizes, list(scores.shape[-arity:]))
    return variables, FactorTable(scores, arity)


def _check_scopes(name: str, scopes: list[list[int]], sizes: list[int], table: list[int]) -> None:
    for scope in scopes:
        if not all(0 <= v < len(sizes) for v in scope):
            raise ValueError(f"{name} must be over variables 0 to {len(sizes) - 1}, as unary has: got {scope}")
        if len(set(scope)) < len(scope):
            raise ValueError(f"{name} must be over different variables: got {scope}")
        shape = [sizes[v] for v in scope]
        if table != shape:
            raise ValueError(f"{name}'s scores must be of {shape} states, as the variables {scope} have: got {table}")
