"""Pair scores, with the rows of its states on each rank: scores of selected states, and their messages."""

import math
from abc import ABC, abstractmethod
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.distributed.collectives import summed
from tailsum.distributed.shards import Shards
from tailsum.numerics.stream import Parts
from tailsum.numerics.tensors import finite, take
from tailsum.scores.potential import Dense, Potential
from tailsum.sketch.neighbours import NearMessages


class Picked:
    """Selected states, by global ids `[*lead, k]` that are equal on every rank, and which of them this rank has."""

    def __init__(self, index: Int[Tensor, "*lead k"], shards: Shards) -> None:
        self.shards, self.index = shards, index
        self.here = (index >= shards.local.start) & (index < shards.local.stop)
        self.local = torch.where(self.here, index - shards.local.start, 0)

    def together(self, values: Tensor) -> Tensor:
        """The values `[*lead, k, ...]` of all selected states, on every rank, where each rank knows those of its states."""
        here = self.here.reshape(*self.here.shape, *(1,) * (values.dim() - self.here.dim()))
        return summed(self.shards, values.masked_fill(~here, 0.0))

    def rows(self, table: Float[Tensor, "*#lead n d"]) -> Float[Tensor, "*lead k d"]:
        """The selected states' rows of a table in slices."""
        if not table.shape[-2]:  # still a function of the table: all ranks exchange gradients
            lead = torch.broadcast_shapes(table.shape[:-2], self.local.shape[:-1])
            return summed(self.shards, table.sum().expand(*lead, self.local.shape[-1], table.shape[-1]))
        return self.together(take(table, self.local))

    def values(self, x: Float[Tensor, "*lead n"]) -> Float[Tensor, "*lead k"]:
        """The values of the selected states."""
        if not x.shape[-1]:
            return summed(self.shards, x.new_zeros(self.local.shape))
        return self.together(x.gather(-1, self.local))


class ShardedPairs(ABC):
    """Pair scores of which each rank has the rows of its n states."""

    def __init__(self, pairs: Potential, shards: Shards) -> None:
        self.pairs, self.shards = pairs, shards

    @abstractmethod
    def between(self, early: Int[Tensor, "*lead k"], late: Int[Tensor, "*lead k"]) -> Potential:
        """The potential from selected states to others, on every rank, with gradients."""

    @abstractmethod
    def sent(
        self, t: int, index: Int[Tensor, "*batch m"], value: Float[Tensor, "*batch m"]
    ) -> Float[Tensor, "*batch n"]:
        """The message of selected states, with their values, along step t to the states of this rank."""

    @abstractmethod
    def sent_back(
        self, t: int, index: Int[Tensor, "*batch m"], value: Float[Tensor, "*batch m"]
    ) -> Float[Tensor, "*batch n"]:
        """The message of selected states against the direction of step t to the states of this rank."""

    @abstractmethod
    def own_scores(self) -> Float[Tensor, "*lead n"]:
        """The score of each state of this rank with itself."""

    @cached_property
    def itself(self) -> NearMessages:
        """Messages to each state from itself only."""
        with torch.no_grad():
            scores = self.own_scores().double()
            partners = torch.arange(self.pairs.n_from, device=scores.device)[:, None]
            return NearMessages(partners, finite(scores), (scores > -math.inf).double()[..., None])

    @cached_property
    def _transposed(self) -> Potential:
        return self.pairs.transposed()


class _OfAllColumns(ShardedPairs):
    """Rows `[*lead, n, N]` with the columns of all ranks, as a table has."""

    def between(self, early: Int[Tensor, "*lead k"], late: Int[Tensor, "*lead k"]) -> Potential:
        if not self.pairs.n_from:  # still a function of the table: all ranks exchange gradients
            lead = torch.broadcast_shapes(self.pairs.lead, early.shape[:-1])
            nothing = self.pairs.tensors[0].sum().expand(*lead, early.shape[-1], late.shape[-1])
            return Dense(summed(self.shards, nothing))
        rows = Picked(early, self.shards)
        return Dense(rows.together(self.pairs.block(rows.local, late)))

    @torch.no_grad()
    def sent(
        self, t: int, index: Int[Tensor, "*batch m"], value: Float[Tensor, "*batch m"]
    ) -> Float[Tensor, "*batch n"]:
        """Each rank makes the message of its rows to all N states, and the ranks exchange the sums."""
        here, picked = self.pairs.at_step(t), Picked(index, self.shards)
        part = value.new_full((*value.shape[:-1], self.shards.n_states), -math.inf)
        if here.n_from:
            part = here.message(picked.local, value.masked_fill(~picked.here, -math.inf))
        highest = self.shards.highest(part[..., None])
        total = self.shards.scattered_sum((part - finite(highest)).exp_())
        return total.log_() + highest[..., self.shards.local]

    @torch.no_grad()
    def sent_back(
        self, t: int, index: Int[Tensor, "*batch m"], value: Float[Tensor, "*batch m"]
    ) -> Float[Tensor, "*batch n"]:
        return _message(self._transposed.at_step(t), index, value)

    def own_scores(self) -> Float[Tensor, "*lead n"]:
        return self.pairs.columns(self.shards.local.start, self.shards.local.stop).block().diagonal(dim1=-2, dim2=-1)


class _OfOwnColumns(ShardedPairs):
    """Tensors with a row for each state of this rank, at either end of a step, as factors `[*lead, n, d]` have."""

    def between(self, early: Int[Tensor, "*lead k"], late: Int[Tensor, "*lead k"]) -> Potential:
        return self._picked(self.pairs, Picked(early, self.shards), Picked(late, self.shards))

    @torch.no_grad()
    def sent(
        self, t: int, index: Int[Tensor, "*batch m"], value: Float[Tensor, "*batch m"]
    ) -> Float[Tensor, "*batch n"]:
        """Every rank gets the few numbers of the selected states."""
        return _message(self._picked(self.pairs.at_step(t), Picked(index, self.shards)), None, value)

    @torch.no_grad()
    def sent_back(
        self, t: int, index: Int[Tensor, "*batch m"], value: Float[Tensor, "*batch m"]
    ) -> Float[Tensor, "*batch n"]:
        return _message(self._picked(self._transposed.at_step(t), Picked(index, self.shards)), None, value)

    def own_scores(self) -> Float[Tensor, "*lead n"]:
        rows, whole = self.pairs.parts()
        one = Parts(tuple(x[..., None, :] for x in rows), tuple(x[..., None, :] for x in whole))
        return self.pairs.scores_of(one)[..., 0, 0]

    @staticmethod
    def _picked(pairs: Potential, early: Picked, late: Picked | None = None) -> Potential:
        """The potential from selected states of all ranks, to others or to the states of this rank."""
        rows, whole = pairs.parts()
        to = whole if late is None else tuple(map(late.rows, whole))
        return pairs.with_tensors(pairs.of_parts(Parts(tuple(map(early.rows, rows)), to)))


def sharded_pairs(pairs: Potential, shards: Shards) -> ShardedPairs:
    """The pair scores of a chain in slices, from those of this rank's states."""
    return (_OfOwnColumns if pairs.parts().whole else _OfAllColumns)(pairs, shards)


def _message(pairs: Potential, index: Tensor | None, value: Tensor) -> Tensor:
    return pairs.message(index, value) if pairs.n_to else value.new_empty(*value.shape[:-1], 0)
