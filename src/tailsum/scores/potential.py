"""Potentials: scores between the states of two neighbouring nodes, as a table, as factors, or as a function.

A potential represents scores `[*lead, n_from, n_to]`. `lead` broadcasts against the model's `[*batch, steps]`: `()` is
shared by all, `(steps,)` varies with time, `(*batch, 1)` with the sequence. Scores of single nodes are potentials with
`n_from = 1` and `lead = (*batch, T)`.
"""

import math
from abc import abstractmethod
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tailsum.numerics.check import shape_or_type
from tailsum.numerics.table import fits_budget
from tailsum.numerics.tensors import at_step, flattened, take, without_common
from tailsum.scores.base import Scores

Rows = Int[Tensor, "*#lead a"] | None  # state ids; None means every state
Columns = Int[Tensor, "*#lead b"] | None


class Potential(Scores):
    """Scores of pairs of states. Four kinds: `Dense`, `Factored`, `Gated` and `Scored`."""

    arity = 2  # how many states are scored together
    trailing = 2  # how many dimensions its tensors have after `lead`
    lead: torch.Size
    n_from: int
    n_to: int

    @property
    def after_batch(self) -> int:
        """The last dimension of `lead`, usually the steps, comes after the batch."""
        return self.trailing + 1

    def on(self, device: torch.device) -> "Potential":
        """The potential for state ids on `device`."""
        return self

    @abstractmethod
    def map(self, change: Callable[[Tensor], Tensor]) -> "Potential": ...

    def to(self, dtype: torch.dtype) -> "Potential":
        """The potential with scores of the given dtype."""
        return self.map(lambda x: x.to(dtype))

    @abstractmethod
    def block(self, rows: Rows = None, cols: Columns = None) -> Float[Tensor, "*lead a b"]:
        """Scores of all given rows with all given columns."""

    def at_step(self, t: int) -> "Potential":
        """The potential of step t, without the last dimension of `lead`."""
        return self.map(lambda x: at_step(x, self.trailing, t))

    def at(self, i: Int[Tensor, "*#lead"], j: Int[Tensor, "*#lead"]) -> Float[Tensor, "*lead"]:
        """Scores of single pairs of states."""
        return self.block(i[..., None], j[..., None])[..., 0, 0]

    def gather(self, rows: Rows, cols: Columns) -> "Potential":
        """The potential restricted to some states."""
        return Dense(self.block(rows, cols))

    def tabled(self) -> "Dense":
        return Dense(self.block())

    def evaluated(self) -> "Potential":
        return self

    def centred(self) -> "Potential":
        return self

    def blank_outside(self, inside: Bool[Tensor, "*#batch_steps"]) -> "Potential":
        """The potential with zeros where no sequence is `inside [*batch, *steps]`."""

        def blank(x: Tensor) -> Tensor:
            lead = x.shape[: -self.trailing]
            if math.prod(lead) == 0 or not lead:
                return x
            # Shared scores are used if one sequence uses them.
            unused = ~inside if lead == inside.shape else inside.long().sum_to_size(lead) == 0
            return x.masked_fill(unused.reshape(*lead, *(1,) * self.trailing), 0)

        return self.map(blank)

    @abstractmethod
    def transposed(self) -> "Potential":
        """From and to exchanged."""

    @abstractmethod
    def columns(self, start: int, stop: int) -> "Potential":
        """The potential to the states `start .. stop-1`."""

    def table_params(self) -> tuple[Tensor, ...]:
        """`(scores,)` or `(left, right)`, the parameters of a `Table`."""
        return (self.block(),)

    def flat_params(self, batch_shape: torch.Size) -> tuple[Tensor, ...]:
        """`table_params` as `[b, s, ...]`: b is 1 where the batch shares the scores, and s where the steps do."""
        return tuple(flattened(p.expand(*self.lead, -1, -1), 2, batch_shape) for p in self.table_params())


class Dense(Potential):
    """A table of scores `[*lead, n_from, n_to]` (from, to).

    >>> Dense(torch.zeros(3, 3)).block(torch.tensor([0, 1]), None).shape
    torch.Size([2, 3])
    """

    def __init__(self, scores: Float[Tensor, "*lead n_from n_to"]) -> None:
        if not isinstance(scores, Tensor) or scores.dim() < 2:
            raise ValueError(f"scores must be a tensor [*lead, n_from, n_to]: got {shape_or_type(scores)}")
        self.scores, self.tensors = scores, (scores,)
        self.lead, (self.n_from, self.n_to) = scores.shape[:-2], scores.shape[-2:]

    def map(self, change: Callable[[Tensor], Tensor]) -> "Dense":
        return Dense(change(self.scores))

    def tabled(self) -> "Dense":
        return self

    def centred(self) -> "Dense":
        """A copy if it fits the table budget, else the scores as they are."""
        return Dense(without_common(self.scores, 2)) if self._copy_fits else self

    @property
    def _copy_fits(self) -> bool:
        return fits_budget(self.scores.numel() * self.scores.element_size())

    def block(self, rows: Rows = None, cols: Columns = None) -> Float[Tensor, "*lead a b"]:
        if cols is None:
            return self.scores if rows is None else take(self.scores, rows)
        if rows is not None and not self.scores.is_contiguous() and self.scores.mT.is_contiguous():
            return Dense(self.scores.mT).block(cols, rows).mT  # flattened, a transposed table would be copied
        if rows is None and not self.lead:
            columns = self.scores.index_select(-1, cols.flatten()).unflatten(-1, cols.shape)
            return columns.movedim(0, -2)
        if rows is None:
            lead = torch.broadcast_shapes(self.lead, cols.shape[:-1])
            index = cols[..., None, :].expand(*lead, self.n_from, -1)
            return self.scores.expand(*lead, -1, -1).gather(-1, index)
        flat = rows[..., :, None] * self.n_to + cols[..., None, :]
        return take(self.scores.flatten(-2)[..., None], flat.flatten(-2))[..., 0].unflatten(-1, flat.shape[-2:])

    def transposed(self) -> "Dense":
        """A copy, whose rows are read faster, if it fits the table budget."""
        return Dense(self.scores.mT.contiguous() if self._copy_fits else self.scores.mT)

    def columns(self, start: int, stop: int) -> "Dense":
        return Dense(self.scores[..., start:stop])
