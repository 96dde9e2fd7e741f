"""Pair scores that are multiplied without a table of all pairs: arcs, bands, products of small tables.

A subclass says how messages pass through it, once for every arithmetic (`carry`), and the base class has the rest: sums,
maxima, their derivatives, messages of few states.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from tailsum.numerics.gradients import gradients
from tailsum.numerics.reduce import Reduce
from tailsum.numerics.rings import LOG_SUM, PROBABILITY, Logarithm, Ring
from tailsum.numerics.tensors import as_values, largest, scaled, take, unmasked, without_common
from tailsum.numerics.tiles import tile_rows
from tailsum.scores.base import Scores
from tailsum.scores.potential import Columns, Dense, Potential, Rows
from tailsum.scores.products import Products, grouped
from tailsum.scores.table import SMALL

This = TypeVar("This", bound="Structured")


class Structured(Potential):
    """A potential whose scores are linear in its tensors `[*lead, .., ..]`, with two dimensions after `lead`.

    A subclass defines `carry`, `normalised`, `block` and `transposed`.
    """

    by_parts = False
    leaves_out = False  # whether there are pairs that no tensor has a score of
    left_out: Tensor | float = -torch.inf  # the score of these
    table_below = SMALL  # up to so many states, sums go by a table

    def _set(self, *tensors: Tensor) -> None:
        """Take these tensors. Override it where other fields follow from them."""
        self.tensors = tensors
        self.lead = torch.broadcast_shapes(*(x.shape[:-2] for x in tensors))

    def map(self: This, change: Callable[[Tensor], Tensor]) -> This:
        new = object.__new__(type(self))
        vars(new).update(vars(self))
        new._set(*map(change, self.tensors))
        return new

    def _changed(self: This, change: Callable[[Tensor], Tensor] = lambda x: x, **fields: object) -> This:
        """The same with changed tensors and other fields."""
        new = self.map(change)
        vars(new).update(fields)
        return new

    # What a subclass defines.

    @abstractmethod
    def carry(self, x: Float[Tensor, "*lead r n_from"], ring: Ring) -> Float[Tensor, "*lead r n_to"]:
        """Messages times the table, in the arithmetic of the ring; for probabilities, the tensors are exponentials of scores."""

    @abstractmethod
    def transposed(self: This) -> This: ...

    @abstractmethod
    def normalised(self: This) -> tuple[This, Float[Tensor, "*lead n_to"]]:
        """The scores less a number for each column, a constant near its highest score, and these numbers."""

    def prepared(self: This) -> tuple[This, Float[Tensor, "*lead n_to"]]:
        """The exponentials of the normalised scores, the *weights*, and what was subtracted from each column."""
        own, scale = self.normalised()
        return own.map(torch.exp), scale

    def correlated(
        self, x: Float[Tensor, "*lead r n_from"], y: Float[Tensor, "*lead r n_to"]
    ) -> tuple[Tensor | None, ...]:
        """The gradient of `sum(x @ weights * y)` in the scores, of which these are the weights."""
        chunk = x.shape[-2] if torch.is_grad_enabled() else tile_rows(self.lead.numel() * self.n_from, x.device)
        pieces = [self.met(*both) for both in zip(x.split(chunk, -2), y.split(chunk, -2), strict=True)]
        sums = [sum(x for x in same if x is not None) for same in zip(*pieces, strict=True)]
        return tuple(w * s for w, s in zip(self.tensors, sums, strict=True))

    def met(self, x: Float[Tensor, "*lead r n_from"], y: Float[Tensor, "*lead r n_to"]) -> Sequence[Tensor | None]:
        """The same in the weights."""

        def total(tensors: Sequence[Tensor]) -> Tensor:
            return (self.with_tensors(tensors).carry(x, PROBABILITY) * y).sum()

        return gradients(total, self.tensors, [True] * len(self.tensors))

    def same_form(self, other: Scores) -> bool:
        """Whether the tensors of two potentials score the same pairs."""
        return isinstance(other, type(self)) and [x.shape[-2:] for x in self.tensors] == [
            x.shape[-2:] for x in other.tensors
        ]

    # What follows.

    def operator(self) -> Potential:
        few = max(self.n_from, self.n_to) <= self.table_below
        return self.within(4) if few else self

    def products(self) -> Products:
        return Carried(self)

    def tabled(self) -> Dense:
        table = self.block()
        return Dense(table if self._excludes else torch.where(table == -torch.inf, self.left_out, table))

    def columns(self, start: int, stop: int) -> Dense:
        return Dense(self.block(None, torch.arange(start, stop, device=self.tensors[0].device)))

    def into(self, values: Tensor, reduce: Reduce, common: Tensor | None = None) -> Tensor:
        sums = self.carry(values, Logarithm(reduce))
        return sums if common is None else sums - common[..., None, None]

    def log_product(self, values: Tensor, reduce: Reduce, common: Tensor | None = None) -> Tensor:
        return self.into(values, reduce, common)

    def centred(self: This) -> This:
        return self.map(lambda x: without_common(x, 2))  # each pair has one entry of each tensor

    @torch.no_grad()
    def message(self, index: Tensor | None, value: Tensor) -> Tensor:
        if index is not None:  # all other states are impossible
            never = value.new_full((*value.shape[:-1], self.n_from), -torch.inf)
            value = never.scatter_reduce(-1, index.expand(value.shape), value, "amax")
        lead = torch.broadcast_shapes(self.lead, value.shape[:-1])
        batch = value.expand(*lead, -1)
        if self.lead.numel() == 1:  # shared: the batch as rows of one table
            rows = batch.reshape(*self.lead, -1, self.n_from)
            return self.carry(rows, LOG_SUM).reshape(*lead, self.n_to)
        return self.carry(batch[..., None, :], LOG_SUM)[..., 0, :]

    # Values of pairs, such as scores to be averaged. Pairs that are left out have one too.

    @property
    def _excludes(self) -> bool:
        """Whether pairs that are left out are impossible."""
        return not isinstance(self.left_out, Tensor) and self.left_out == -torch.inf

    def scaled(self: This, factor: Float[Tensor, ""] | float) -> This:
        left_out = self.left_out if self._excludes else self.left_out * factor
        return self._changed(lambda x: scaled(x, factor), left_out=left_out)

    def plus(self, other: Scores) -> Scores:
        if not isinstance(other, Structured) or not self.same_form(other):
            return super().plus(other)
        others = iter(other.tensors)
        left_out = self.left_out if self._excludes else self.left_out + other.left_out
        return self._changed(lambda x: x + next(others), left_out=left_out)

    def finite(self: This) -> This:
        return self._changed(as_values, left_out=0.0 if self._excludes else self.left_out)

    def may_forbid(self) -> bool:
        return self.leaves_out or super().may_forbid()

    def forbidden(self: This, dtype: torch.dtype) -> This:
        """Above zero for every pair whose score is minus infinity, zero for the others."""
        return self._changed(lambda x: (unmasked(x) == -torch.inf).to(dtype), left_out=float(self._excludes))

    def bound(self) -> float:
        return sum(map(largest, self.tensors))


class Carried(Products):
    """Products by `carry`."""

    def __init__(self, pairs: Structured) -> None:
        self.pairs = pairs = pairs.map(torch.detach)
        with torch.no_grad():
            self._onward, scale = pairs.prepared()
            super().__init__(pairs, scale)
            self._back = self._onward.transposed()

    def of(self, pairs: Structured) -> "Carried":
        return Carried(pairs)

    def push(self, t: int, x: Tensor) -> Tensor:
        return self._times(self._onward, t, x)

    def pull(self, t: int, y: Tensor) -> Tensor:
        return self._times(self._back, t, y)

    def _times(self, weights: Structured, t: int, x: Tensor) -> Tensor:
        out = weights.at_step(t).carry(grouped(x, self.groups), PROBABILITY)
        return out.reshape(len(x), out.shape[-1])

    def reach(self, allowed: Tensor) -> Tensor:
        possible = self.pairs.map(lambda x: (x > -torch.inf).to(x.dtype))
        for t in range(1, len(allowed)):
            allowed[t] &= self._times(possible, t - 1, allowed[t - 1].to(self.scale.dtype)) > 0
        return allowed

    def gradient(self, x: Tensor, y: Tensor, tensors: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
        weights = self._onward
        if torch.is_grad_enabled():  # the gradient will be differentiated in the scores too
            weights = self.pairs.with_tensors(tensors).prepared()[0]
        return weights.correlated(self.by_table(x), self.by_table(y))


def joint_lead(names: str, *leads: torch.Size) -> torch.Size:
    """The leading dimensions of tensors together; a ValueError if they do not broadcast."""
    try:
        return torch.broadcast_shapes(*leads)
    except RuntimeError:
        got = " and ".join(str(list(lead)) for lead in leads)
        raise ValueError(f"{names} must have leading dimensions that broadcast: got {got}") from None


def looked_up(table: Float[Tensor, "*#lead a b"], first: Tensor, second: Tensor) -> Tensor:
    """Entries `table[first, second]` for index tensors `[*#lead, r, c]`."""
    flat = first * table.shape[-1] + second
    return take(table.flatten(-2)[..., None], flat.flatten(-2))[..., 0].unflatten(-1, flat.shape[-2:])


def every_pair(potential: Potential, rows: Rows, cols: Columns) -> tuple[Tensor, Tensor]:
    """The ids of rows and columns, all of them for None, so that they broadcast to pairs: `[*lead, r, c]`."""
    device = potential.tensors[0].device
    rows = torch.arange(potential.n_from, device=device) if rows is None else rows
    cols = torch.arange(potential.n_to, device=device) if cols is None else cols
    lead = torch.broadcast_shapes(rows.shape[:-1], cols.shape[:-1])
    shape = (*lead, rows.shape[-1], cols.shape[-1])
    return rows[..., :, None].expand(shape), cols[..., None, :].expand(shape)
