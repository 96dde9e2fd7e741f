"""Pair scores, with the rows of its states on each rank: scores of selected states, and their messages."""

import math
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.distributed.collectives import summed
from tailsum.distributed.shards import Shards
from tailsum.numerics.tensors import at_step, finite, take
from tailsum.scores.factored import Factored
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


class ShardedPairs:
    """A potential `Factored(left [*lead, n, d], right [*lead, n, d])` or `Dense [*lead, n, N]` of this rank's n states."""

    def __init__(self, pairs: Factored | Dense, shards: Shards) -> None:
        self.pairs, self.shards = pairs, shards

    def between(self, early: Int[Tensor, "*lead k"], late: Int[Tensor, "*lead k"]) -> Potential:
        """The potential from selected states to others, on every rank, with gradients."""
        rows = Picked(early, self.shards)
        if isinstance(self.pairs, Factored):
            return Factored(rows.rows(self.pairs.left), Picked(late, self.shards).rows(self.pairs.right))
        if not self.pairs.n_from:
            lead = torch.broadcast_shapes(self.pairs.lead, early.shape[:-1])
            return Dense(summed(self.shards, self.pairs.scores.sum().expand(*lead, early.shape[-1], late.shape[-1])))
        return Dense(rows.together(self.pairs.block(rows.local, late)))

    @torch.no_grad()
    def sent(
        self, t: int, index: Int[Tensor, "*batch m"], value: Float[Tensor, "*batch m"]
    ) -> Float[Tensor, "*batch n"]:
        """The message of selected states, with their values, along step t to the states of this rank.

        With a table, each rank has the rows of its states: it makes their message to all N states, and the ranks exchange
        the sums. With factors, every rank gets the few factors of the selected states.
        """
        here, picked = self._at_step(self.pairs, t), Picked(index, self.shards)
        if isinstance(here, Factored):
            return self._message(Factored(picked.rows(here.left), here.right), None, value)
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
        """The message of selected states against the direction of step t to the states of this rank."""
        here = self._at_step(self._transposed, t)
        if isinstance(here, Factored):
            return self._message(Factored(Picked(index, self.shards).rows(here.left), here.right), None, value)
        return self._message(here, index, value)

    @cached_property
    def itself(self) -> NearMessages:
        """Messages to each state from itself only."""
        with torch.no_grad():
            if isinstance(self.pairs, Factored):
                scores = (self.pairs.left * self.pairs.right).sum(-1)
            else:
                scores = self.pairs.scores[..., self.shards.local].diagonal(dim1=-2, dim2=-1)
            scores = scores.double()
            partners = torch.arange(self.pairs.n_from, device=scores.device)[:, None]
            return NearMessages(partners, finite(scores), (scores > -math.inf).double()[..., None])

    @cached_property
    def _transposed(self) -> Factored | Dense:
        return self.pairs.transposed()

    @staticmethod
    def _at_step(pairs: Factored | Dense, t: int) -> Factored | Dense:
        return pairs.map(lambda x: at_step(x, 2, t))

    @staticmethod
    def _message(pairs: Factored | Dense, index: Tensor | None, value: Tensor) -> Tensor:
        return pairs.message(index, value) if pairs.n_to else value.new_empty(*value.shape[:-1], 0)
