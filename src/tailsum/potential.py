"""Potentials: scores between the states of two neighbouring nodes, as a table, as factors, or as a function.

A potential stands for scores `[*lead, n_from, n_to]`. `lead` is what they vary with, broadcast against the model's
`[*batch, steps]`: `()` is shared by all, `(steps,)` varies with time, `(*batch, 1)` with the sequence. Scores of single
nodes are potentials too, with `n_from = 1` and `lead = (*batch, T)`.
"""

import copy
import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float, Int, Num
from torch import Tensor

from tailsum.kernels.precision import product


class Scores(ABC):
    """Scores of the parts of a structure, in whatever form: they can be read, added and scaled."""

    @property
    @abstractmethod
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that they are made of, as far as they are known."""

    @abstractmethod
    def map(self, change: Callable[[Tensor], Tensor]) -> "Scores":
        """The same kind of scores, every tensor changed."""

    @abstractmethod
    def scaled(self, factor: Float[Tensor, ""] | float) -> "Scores":
        """Every score times `factor`."""

    @abstractmethod
    def plus(self, other: Any) -> "Scores":
        """The sum of two scores of the same parts."""

    @abstractmethod
    def finite(self) -> "Scores":
        """Zero in place of minus infinity, and of masks by the lowest number."""

    @abstractmethod
    def forbidden(self, dtype: torch.dtype) -> "Scores":
        """One for every part with score minus infinity, zero for the others."""

    @abstractmethod
    def bound(self) -> float:
        """A bound on the size of every finite score."""


class Potential(Scores):
    """Scores of pairs of states. Three kinds: `Dense`, `Factored` and `Scored`."""

    arity = 2  # how many states are scored together

    @property
    @abstractmethod
    def lead(self) -> torch.Size:
        """What the scores vary with, beside the two states."""

    @property
    @abstractmethod
    def n_from(self) -> int:
        """How many states a step leaves from."""

    @property
    @abstractmethod
    def n_to(self) -> int:
        """How many states a step arrives at."""

    def on(self, device: torch.device) -> "Potential":
        """The potential for states numbered on `device`."""
        return self

    @abstractmethod
    def map(self, change: Callable[[Tensor], Tensor]) -> "Potential": ...

    def to(self, dtype: torch.dtype) -> "Potential":
        """The potential with scores of the given type."""
        return self.map(lambda x: x.to(dtype))

    @abstractmethod
    def block(
        self, rows: Int[Tensor, "*#lead a"] | None = None, cols: Int[Tensor, "*#lead b"] | None = None
    ) -> Float[Tensor, "*lead a b"]:
        """Scores of all given rows with all given columns; None means every state."""

    @abstractmethod
    def at_step(self, t: int) -> "Potential":
        """The potential of step t: the last dimension of `lead` is taken away."""

    def at(self, i: Int[Tensor, "*#lead"], j: Int[Tensor, "*#lead"]) -> Float[Tensor, "*lead"]:
        """Scores of single pairs of states."""
        return self.block(i[..., None], j[..., None])[..., 0, 0]

    def gather(self, rows: Int[Tensor, "*#lead a"] | None, cols: Int[Tensor, "*#lead b"] | None) -> "Potential":
        """The potential restricted to some states."""
        return Dense(self.block(rows, cols))

    def scaled(self, factor: Float[Tensor, ""] | float) -> "Potential":
        return Dense(scaled(self.block(), factor))

    def plus(self, other: "Potential") -> "Potential":
        return Dense(self.block() + other.block())

    def finite(self) -> "Potential":
        return self

    def bound(self) -> float:
        return largest(self.block())

    @staticmethod
    def table(scores: Tensor) -> "Dense":
        """A potential that is the given table."""
        return Dense(scores)

    def forbidden(self, dtype: torch.dtype) -> "Potential":
        return Dense((self.block() == -math.inf).to(dtype))

    @abstractmethod
    def transposed(self) -> "Potential":
        """From and to exchanged."""

    @abstractmethod
    def columns(self, start: int, stop: int) -> "Potential":
        """The potential to the states `start .. stop-1`."""

    def table_params(self) -> tuple[Tensor, ...]:
        """`(scores,)` or `(left, right)`: what the kernels work on."""
        return (self.block(),)

    def flat_params(self, batch_shape: torch.Size) -> tuple[Tensor, ...]:
        """The same as `[b, s, ...]`: b is 1 where the batch shares the scores, and s where the steps do."""
        return tuple(flattened(p.expand(*self.lead, -1, -1), 2, batch_shape) for p in self.table_params())


class Dense(Potential):
    """A table of scores `[*lead, n_from, n_to]` (from, to).

    >>> Dense(torch.zeros(3, 3)).block(torch.tensor([0, 1]), None).shape
    torch.Size([2, 3])
    """

    def __init__(self, scores: Float[Tensor, "*lead n_from n_to"]) -> None:
        self.scores = scores

    @property
    def lead(self) -> torch.Size:
        return self.scores.shape[:-2]

    @property
    def n_from(self) -> int:
        return self.scores.shape[-2]

    @property
    def n_to(self) -> int:
        return self.scores.shape[-1]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.scores,)

    def map(self, change: Callable[[Tensor], Tensor]) -> "Dense":
        return Dense(change(self.scores))

    def finite(self) -> "Dense":
        return self.map(as_values)

    def block(
        self, rows: Int[Tensor, "*#lead a"] | None = None, cols: Int[Tensor, "*#lead b"] | None = None
    ) -> Float[Tensor, "*lead a b"]:
        if rows is None and cols is None:
            return self.scores
        if cols is None:
            return take(self.scores, cast("Tensor", rows))
        if rows is None and not self.lead:
            columns = self.scores.index_select(-1, cols.flatten()).unflatten(-1, cols.shape)
            return columns.movedim(0, -2)
        if rows is None:
            lead = torch.broadcast_shapes(self.lead, cols.shape[:-1])
            wanted = cols[..., None, :].expand(*lead, self.n_from, -1)
            return self.scores.expand(*lead, -1, -1).gather(-1, wanted)
        flat = rows[..., :, None] * self.n_to + cols[..., None, :]
        return take(self.scores.flatten(-2)[..., None], flat.flatten(-2))[..., 0].unflatten(-1, flat.shape[-2:])

    def at_step(self, t: int) -> "Dense":
        return Dense(at_step(self.scores, 2, t))

    def transposed(self) -> "Dense":
        return Dense(self.scores.mT.contiguous())

    def columns(self, start: int, stop: int) -> "Dense":
        return Dense(self.scores[..., start:stop])


class Factored(Potential):
    """Scores that are inner products, `left[i] . right[j]`: the table of all pairs is never built where it is large.

    As a transition, `left [*lead, n_from, d]` and `right [*lead, n_to, d]` hold state embeddings. As an emission,
    `Factored(context [*batch, T, d], states [N, d])` scores position t with state i as `context[t] . states[i]`.

    >>> states = torch.randn(1000, 8)
    >>> Factored(states, states).block(torch.tensor([1, 2, 3]), None).shape
    torch.Size([3, 1000])
    """

    def __init__(self, left: Float[Tensor, "*#lead n_from d"], right: Float[Tensor, "*#lead n_to d"]) -> None:
        if min(left.dim(), right.dim()) < 2 or left.shape[-1] != right.shape[-1]:
            raise ValueError(
                f"left and right must have two or more dimensions and the same last one: "
                f"got {list(left.shape)} and {list(right.shape)}"
            )
        try:
            torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])
        except RuntimeError:
            raise ValueError(
                f"left and right must have leading dimensions that broadcast: got {list(left.shape)} and {list(right.shape)}"
            ) from None
        self.left, self.right = left, right

    @property
    def lead(self) -> torch.Size:
        return torch.broadcast_shapes(self.left.shape[:-2], self.right.shape[:-2])

    @property
    def n_from(self) -> int:
        return self.left.shape[-2]

    @property
    def n_to(self) -> int:
        return self.right.shape[-2]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.left, self.right

    def map(self, change: Callable[[Tensor], Tensor]) -> "Factored":
        return Factored(change(self.left), change(self.right))

    def block(
        self, rows: Int[Tensor, "*#lead a"] | None = None, cols: Int[Tensor, "*#lead b"] | None = None
    ) -> Float[Tensor, "*lead a b"]:
        part = self.gather(rows, cols)
        return product(part.left, part.right.mT)

    def gather(self, rows: Int[Tensor, "*#lead a"] | None, cols: Int[Tensor, "*#lead b"] | None) -> "Factored":
        left = self.left if rows is None else take(self.left, rows)
        right = self.right if cols is None else take(self.right, cols)
        return Factored(left, right)

    def bound(self) -> float:
        return largest(self.left.norm(dim=-1)) * largest(self.right.norm(dim=-1))

    def at_step(self, t: int) -> "Factored":
        return Factored(at_step(self.left, 2, t), at_step(self.right, 2, t))

    def scaled(self, factor: Float[Tensor, ""] | float) -> "Factored":
        return Factored(self.left * factor, self.right)

    def plus(self, other: Potential) -> Potential:
        if not isinstance(other, Factored):
            return super().plus(other)
        return Factored(_side_by_side(self.left, other.left), _side_by_side(self.right, other.right))

    def transposed(self) -> "Factored":
        return Factored(self.right, self.left)

    def columns(self, start: int, stop: int) -> "Factored":
        return Factored(self.left, self.right[..., start:stop, :])

    def table_params(self) -> tuple[Tensor, ...]:
        if self.left.shape[-1] > min(self.n_from, self.n_to):  # the table is smaller than its factors
            return (self.block(),)
        return self.left, self.right


class Scored(Potential):
    """Scores from any differentiable function of two index tensors, for instance a network over state embeddings.

    `function(i, j)` gets tensors of state numbers that broadcast together and gives one score for each pair. With
    `context [*lead, c]` it is called as `function(i, j, context)`, the context shaped `[*lead, 1, 1, c]` to broadcast
    with them: this is how scores vary with time or sequence. Exact inference evaluates all pairs; a sketch only those
    of the states it keeps.

    >>> states = torch.randn(1000, 8)
    >>> potential = Scored(lambda i, j: -(states[i] - states[j]).square().sum(-1), 1000, 1000)
    >>> potential.at(torch.tensor(3), torch.tensor(3)).item()
    -0.0
    """

    def __init__(
        self,
        function: Callable[..., Tensor],
        n_from: int,
        n_to: int,
        context: Num[Tensor, "*lead c"] | None = None,
        device: torch.device | None = None,
    ) -> None:
        if n_from < 1 or n_to < 1:
            raise ValueError(f"n_from and n_to must be at least 1: got {n_from} and {n_to}")
        self.function, self.context = function, context
        self.device = device if context is None else context.device
        self.dtype: torch.dtype | None = None  # what the function gives, unless a model asked for another
        self._n_from, self._n_to = n_from, n_to

    @property
    def lead(self) -> torch.Size:
        return torch.Size() if self.context is None else self.context.shape[:-1]

    @property
    def n_from(self) -> int:
        return self._n_from

    @property
    def n_to(self) -> int:
        return self._n_to

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return () if self.context is None else (self.context,)

    def _changed(self, **fields: object) -> "Scored":
        other = copy.copy(self)
        for name, value in fields.items():
            setattr(other, name, value)
        return other

    def map(self, change: Callable[[Tensor], Tensor]) -> "Scored":
        return self if self.context is None else self._changed(context=change(self.context))

    def to(self, dtype: torch.dtype) -> "Scored":
        return self._changed(dtype=dtype)

    def on(self, device: torch.device) -> "Scored":
        return self._changed(device=device)

    def block(
        self, rows: Int[Tensor, "*#lead a"] | None = None, cols: Int[Tensor, "*#lead b"] | None = None
    ) -> Float[Tensor, "*lead a b"]:
        rows = torch.arange(self.n_from, device=self.device) if rows is None else rows
        cols = torch.arange(self.n_to, device=self.device) if cols is None else cols
        extra = () if self.context is None else (self.context[..., None, None, :],)
        scores = self.function(rows[..., :, None], cols[..., None, :], *extra)
        lead = torch.broadcast_shapes(self.lead, rows.shape[:-1], cols.shape[:-1])
        wanted = (*lead, rows.shape[-1], cols.shape[-1])
        if not scores.is_floating_point() or scores.shape != wanted:
            raise ValueError(
                f"function must give one floating-point score for each pair, {list(wanted)}: "
                f"got {scores.dtype} {list(scores.shape)}"
            )
        if not (scores < math.inf).all():
            raise ValueError("function gave a score that is NaN or +inf: scores must be finite, or -inf for forbidden")
        return scores if self.dtype is None else scores.to(self.dtype)

    def at_step(self, t: int) -> "Scored":
        return self.map(lambda context: at_step(context, 1, t))

    def transposed(self) -> "Scored":
        def function(i: Tensor, j: Tensor, *context: Tensor) -> Tensor:
            return self.function(j.mT, i.mT, *context).mT

        return self._changed(function=function, _n_from=self.n_to, _n_to=self.n_from)

    def columns(self, start: int, stop: int) -> "Scored":
        def function(i: Tensor, j: Tensor, *context: Tensor) -> Tensor:
            return self.function(i, j + start, *context)

        return self._changed(function=function, _n_to=stop - start)


def take(table: Tensor, index: Tensor) -> Tensor:
    """Rows `index [*lead, k]` of `table [*lead, n, d]`, the leading dimensions broadcast: `[*lead, k, d]`.

    One look-up in one flat table, whose backward pass adds up the rows that were used, not all.
    """
    *lead, n, d = table.shape
    if lead:
        index = index.expand(*torch.broadcast_shapes(lead, index.shape[:-1]), -1)
        index = index + n * torch.arange(math.prod(lead), device=index.device).view(*lead, 1)
    return F.embedding(index, table.reshape(math.prod(lead) * n, d))


def working_type(*tensors: Tensor) -> torch.dtype:
    """The type to compute in: the widest of the scores' types, float32 for half precision."""
    widest = functools.reduce(torch.promote_types, [x.dtype for x in tensors if x.is_floating_point()])
    return torch.float32 if widest in (torch.float16, torch.bfloat16) else widest


def largest(scores: Tensor) -> float:
    """The size of the largest finite score; zero of none."""
    return finite(scores).abs().max().item() if scores.numel() else 0.0


def scaled(scores: Tensor, factor: Tensor | float) -> Tensor:
    """Every score times `factor`; what is forbidden stays forbidden, and no gradient comes from it."""
    return (finite(scores) * factor).masked_fill(scores == -math.inf, -math.inf)


def finite(scores: Tensor) -> Tensor:
    """Zero in place of minus infinity."""
    return scores.masked_fill(scores == -math.inf, 0.0)


def as_values(scores: Tensor) -> Tensor:
    """Scores to take means of: zero in place of minus infinity, and of masks by the lowest number, whose sums overflow."""
    return scores.masked_fill(scores < torch.finfo(scores.dtype).min / 4, 0.0)


def flattened(x: Tensor, trailing: int, batch_shape: torch.Size) -> Tensor:
    """`[*batch, steps, ...]` as `[b, steps, ...]`, `trailing` dimensions last; b, and steps if there are none, may be 1."""
    lead, rest = x.shape[:-trailing], x.shape[-trailing:]
    if not lead:
        return x[None, None]
    if lead[:-1].numel() == 1:
        return x.reshape(1, lead[-1], *rest)
    return x.expand(*batch_shape, lead[-1], *rest).reshape(batch_shape.numel(), lead[-1], *rest)


def embedding_norms(nodes: Potential | None, pairs: Potential | None, needed: str) -> Tensor:
    """The L1 norms of the state embeddings, from the scores of pairs or else of nodes; an error says what is needed."""
    if isinstance(pairs, Factored) and not pairs.lead:
        return pairs.left.abs().sum(-1)
    if isinstance(nodes, Factored):
        return nodes.right.abs().sum(-1)
    raise ValueError(f"the global proposal needs state embeddings: {needed}")


def without_common(scores: Tensor, axes: int) -> Tensor:
    """Scores less the highest over the last few axes, which is the same to whatever holds one entry of each table."""
    return scores - finite(scores.detach().amax(tuple(range(-axes, 0)), keepdim=True)) if scores.numel() else scores


def blank_outside(potential: Potential, inside: Tensor) -> Potential:
    """The potential with zeros for everything outside the sequences; `inside [*batch, *steps]`."""
    trailing = 1 if isinstance(potential, Scored) else 2

    def blank(x: Tensor) -> Tensor:
        lead = x.shape[:-trailing]
        if math.prod(lead) == 0 or not lead:
            return x
        used = inside.long().sum_to_size(lead)  # what several sequences share counts if one of them uses it
        return x.masked_fill((used == 0).reshape(*lead, *(1,) * trailing), 0)

    return potential.map(blank)


def at_step(tensor: Tensor, trailing: int, t: int) -> Tensor:
    """Step t of a tensor `[*batch, steps, ...]` with `trailing` dimensions after the steps, which may be shared."""
    if tensor.dim() <= trailing:
        return tensor
    steps = tensor.shape[-trailing - 1]
    return tensor.select(-trailing - 1, t if steps > 1 else 0)


def _side_by_side(a: Tensor, b: Tensor) -> Tensor:
    lead = torch.broadcast_shapes(a.shape[:-1], b.shape[:-1])
    return torch.cat((a.expand(*lead, -1), b.expand(*lead, -1)), -1)
