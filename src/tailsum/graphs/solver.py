"""Messages on a graph, iterated to the end, and what is read from them: sums, beliefs, configurations."""

import functools
import inspect
import math
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from tailsum.graphs.factor_scores import Params
from tailsum.graphs.factors import Factors, PairFactors, TableFactors
from tailsum.graphs.layers import Block, Plan, visits
from tailsum.graphs.pairs import table_size
from tailsum.graphs.propagate import Gathered, Messages, Propagation, bethe, by_group, gathered, normalised, unpacked
from tailsum.numerics.fixed_point import Iterated, Iteration, fixed_point, stationary
from tailsum.numerics.reduce import Reduce
from tailsum.numerics.table import fits_budget, transposed
from tailsum.numerics.tensors import finite
from tailsum.scores.factored import Factored
from tailsum.scores.potential import Dense


class ConvergenceWarning(RuntimeWarning):
    """Messages on a graph with loops still changed when the iterations were used up."""


class Passing(NamedTuple):
    """How messages are passed: see `Graph`."""

    iterations: int
    damping: float
    tolerance: float
    implicit: bool


class Solver:
    """Messages on a graph under some scores, and what is read from them.

    `unary` is `[B, V, N]`; `groups` are the parameters of each group of factors, over its `variables [F, r]`.
    """

    def __init__(
        self,
        unary: Tensor,
        groups: Params,
        variables: Sequence[Tensor],
        plan: Plan,
        passing: Passing,
        reduce: Reduce,
        *,
        warn: bool = True,
    ) -> None:
        self.variables, self.plan, self.passing, self.reduce, self.warn = variables, plan, passing, reduce, warn
        top = finite(unary.detach().amax(-1, keepdim=True))
        unary, self.offset = unary - top, top.double().sum((-2, -1))
        self.n = unary.shape[-1]
        self.counts = [len(params) for params in groups]
        self.params = (unary, *(p for params in groups for p in params))
        self.hard = self._hard(unary.detach(), groups)
        none = unary.detach().new_zeros(len(unary))
        self.report = Iterated(none[:, None], none.long(), none)

    def _hard(self, unary: Tensor, groups: Sequence[Sequence[Tensor]]) -> bool:
        """Whether a message may forbid a state: sums and differences of messages then need more care."""
        return bool((unary == -math.inf).all(-1).any()) or any(
            bool((params[0] == -math.inf).any()) or _sizes(params) != {self.n} for params in groups
        )

    def _split(self, params: Sequence[Tensor]) -> tuple[Tensor, list[tuple[Tensor, ...]]]:
        unary, *rest = params
        pieces = iter(rest)
        return unary, [tuple(next(pieces) for _ in range(count)) for count in self.counts]

    def _factors(self, params: tuple[Tensor, ...], block: Block | None = None, keep: bool | None = None) -> Factors:
        """Factors of a group, all as they are given, or those of a block in its order."""
        axes = tuple(range(params[0].dim() - 2)) if block is None else block.axes
        if block is not None:
            params = tuple(_of_block(p, block.factors) for p in params)
        if len(axes) > 2:
            return TableFactors(params[0].permute(0, 1, *(2 + a for a in axes)), self.reduce)
        return PairFactors(params if axes == (0, 1) else transposed(params), self.reduce, keep)

    def _prepare(self, params: Sequence[Tensor]) -> Callable[[Tensor], Tensor]:
        unary, groups = self._split(params)
        keep = fits_budget(sum(table_size(g) for g, v in zip(groups, self.variables, strict=True) if v.shape[1] == 2))
        shared: dict[tuple[int, tuple[int, ...]], Factors] = {}  # where all factors of a group share a table
        factors = []
        for block in self.plan.blocks:
            key, own = (block.group, block.axes), groups[block.group]
            made = shared[key] if key in shared else self._factors(own, block, keep)
            if own[0].shape[1] == 1:
                shared[key] = made
            factors.append(made)
        damping = 0.0 if self.plan.exact else self.passing.damping
        return Propagation(self.plan, unary, factors, damping=damping, hard=self.hard).step

    def _on_finish(self, iterated: Iterated, of_gradient: bool) -> None:
        if not of_gradient:
            self.report = iterated._replace(
                change=torch.zeros_like(iterated.change) if self.plan.exact else iterated.change
            )
        moving = iterated.change > self.passing.tolerance
        if self.plan.exact or not self.warn or not moving.any():
            return
        what = "the gradient through the messages" if of_gradient else "messages"
        warnings.warn(
            f"{what} on this graph did not converge: after {self.passing.iterations} iterations the last change of "
            f"{int(moving.sum())} of {len(moving)} instances is up to {iterated.change.max().item():.1e}, above the "
            f"tolerance {self.passing.tolerance:.1e}. Try damping (0.5), more iterations, or a larger tolerance",
            ConvergenceWarning,
            stacklevel=_frames_of_ours(),
        )

    @functools.cached_property
    def messages(self) -> Messages:
        """For each group of factors and each position, the messages to its variables, `[B, F, N]`."""
        return self._unpacked(self._packed())

    def _packed(self) -> Tensor:
        """The messages of all blocks in one tensor, found anew."""
        unary = self.params[0]
        size = self.n * sum(v.numel() for v in self.variables)
        start = unary.new_zeros(len(unary), size)
        limit = 1 if self.plan.exact else self.passing.iterations
        iterate = Iteration(limit, self.passing.tolerance, self._on_finish)
        if not size:
            return start
        if self.passing.implicit:
            return fixed_point(self._prepare, iterate, start, self.params)
        return iterate(self._prepare(self.params), start)

    def _unpacked(self, z: Tensor) -> Messages:
        return by_group(self.plan, unpacked(self.plan, z, self.n), self.variables)

    def log_partition(self) -> Tensor:
        def value(z: Tensor, params: Sequence[Tensor]) -> Tensor:
            unary, groups = self._split(params)
            factors = [(v, self._factors(p)) for v, p in zip(self.variables, groups, strict=True)]
            return bethe(unary, factors, self._unpacked(z), self.reduce, hard=self.hard) + self.offset

        z = self._packed()
        return stationary(value, z, self.params) if self.passing.implicit else value(z, self.params)

    def gathered(self) -> Gathered:
        """All variables with all messages to them."""
        return gathered(self.params[0], self.variables, self.messages, hard=self.hard)

    def cavities(self) -> list[list[Tensor]]:
        """For each group of factors and each position, what the rest of the graph says: `[B, F, N]`."""
        nodes = self.gathered()
        return [
            [nodes.without(m, v[:, p]) for p, m in enumerate(own)]
            for v, own in zip(self.variables, self.messages, strict=True)
        ]

    def decode(self, count: int, choose: Callable[[Tensor], Tensor]) -> Tensor:
        """`count` configurations `[count, B, V]`, layer after layer, each state by `choose(logits [count, B, S, N])`."""
        unary, groups = self._split(self.params)
        cavities = self.cavities()
        states = torch.zeros(count, *unary.shape[:2], dtype=torch.long, device=unary.device)
        possible = torch.ones(count, len(unary), dtype=torch.bool, device=unary.device)
        for layer in visits(self.variables, self.plan):
            logits = unary.index_select(1, layer.nodes).expand(count, -1, -1, -1)
            for group, position, earlier, factors, put in layer.given:
                if earlier:
                    chosen = states[..., self.variables[group][factors][:, list(earlier)]]  # [count, B, m, earlier]
                    params = tuple(_of_block(p, factors) for p in groups[group])
                    later = [
                        None if axis == position or axis in earlier else cavity.index_select(1, factors)
                        for axis, cavity in enumerate(cavities[group])
                    ]
                    sent = self._given(params, later, position, earlier, chosen)
                else:
                    sent = self.messages[group][position].index_select(1, factors).expand(count, -1, -1, -1)
                logits = logits.index_add(2, put, sent)
            possible &= (logits > -math.inf).any(-1).all(-1)
            states[..., layer.nodes] = choose(logits)
        return torch.where(possible[..., None], states, -1)

    def _given(
        self,
        params: tuple[Tensor, ...],
        cavities: list[Tensor | None],
        position: int,
        earlier: tuple[int, ...],
        chosen: Tensor,
    ) -> Tensor:
        """Messages `[count, B, m, N]` of factors, some of whose variables have chosen states, `[count, B, m, earlier]`."""
        if len(cavities) == 2:
            params = transposed(params) if position == 0 else params
            potential = Dense(params[0]) if len(params) == 1 else Factored(*params)
            sent = normalised(potential.block(chosen)[..., 0, :])
        else:
            later = [a for a, c in enumerate(cavities) if c is not None]
            table = TableFactors(params[0], self.reduce).joint(cavities)
            table = table.permute(0, 1, *(2 + a for a in (*later, *earlier, position)))
            table = table.flatten(2, 1 + len(later)) if later else table[:, :, None]
            table = self.reduce(table, 2)
            place = torch.zeros_like(chosen[..., 0])  # the number of the chosen joint state, the last axis fastest
            for i, size in enumerate(table.shape[2:-1]):
                place = place * size + chosen[..., i]
            sent = Dense(table.flatten(2, -2)).block(place[..., None])[..., 0, :]
        return F.pad(sent, (0, self.n - sent.shape[-1]), value=-math.inf)


def _frames_of_ours() -> int:
    """How many callers up the first one is that is not of this package: what a warning should point at."""
    frame, count = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").split(".")[0] in ("tailsum", "torch"):
        frame, count = frame.f_back, count + 1
    return count


def _of_block(param: Tensor, factors: Tensor) -> Tensor:
    """Those of some factors, which are in ascending order: as many as there are means all, as they stand."""
    return param if param.shape[1] in (1, len(factors)) else param.index_select(1, factors)


def _sizes(params: Sequence[Tensor]) -> set[int]:
    """The numbers of states that the variables of a group's factors have."""
    return set(params[0].shape[2:]) if len(params) == 1 else {p.shape[-2] for p in params}
