"""Scores of pairs of the states of all ranks, as one operator: each rank has tensors of its n states, and every rank calls it.

Messages are in slices, the `n` of this rank's states. Selected states are global ids, equal on every rank. What comes of them
alone is replicated: an ordinary potential, the same on every rank.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.distributed.collectives import from_rank, summed, to_rank
from tailsum.distributed.picked import Picked
from tailsum.distributed.sharded_table import ShardedTable
from tailsum.distributed.shards import Shards
from tailsum.numerics.reduce import Reduce, log_or_never, log_sum_exp
from tailsum.numerics.stream import Parts
from tailsum.numerics.tensors import finite
from tailsum.scores.potential import Columns, Dense, Potential, Rows

This = TypeVar("This", bound="ShardedPairs")


class ShardedPairs(Potential):
    """Scores between N states from this rank's part of them, `own`."""

    whole = by_parts = False

    def __init__(self, own: Potential, shards: Shards) -> None:
        self.own, self.shards, self.tensors, self.lead = own, shards, own.tensors, own.lead
        self.n_from = self.n_to = shards.n_states

    def map(self: This, change: Callable[[Tensor], Tensor]) -> This:
        return type(self)(self.own.map(change), self.shards)

    def scaled(self: This, factor: Float[Tensor, ""] | float) -> This:
        return type(self)(self.own.scaled(factor), self.shards)  # pyright: ignore[reportArgumentType]

    def gather(self, rows: Rows, cols: Columns) -> Potential:
        every = torch.arange(self.shards.n_states, device=self.device)
        given = [every if states is None else states for states in (rows, cols)]
        lead = torch.broadcast_shapes(self.lead, *(states.shape[:-1] for states in given))
        return self.between(*(states.expand(*lead, -1) for states in given))

    @abstractmethod
    def between(self, early: Int[Tensor, "*lead a"], late: Int[Tensor, "*lead b"]) -> Potential:
        """The scores from selected states to others, replicated, with gradients."""

    @abstractmethod
    def to_states_of(self, p: int) -> Potential:
        """The scores from this rank's states to those of rank p, with gradients."""

    @abstractmethod
    def of_same_states(self) -> Float[Tensor, "*lead n"]:
        """The score of each state of this rank with itself."""

    def block(self, rows: Rows = None, cols: Columns = None) -> Float[Tensor, "*lead a b"]:
        return self.gather(rows, cols).block()

    def columns(self, start: int, stop: int) -> Potential:
        return Dense(self.block(None, torch.arange(start, stop, device=self.device)))

    def operator(self: This) -> This:
        return self

    def highest(self, x: Tensor) -> Tensor:
        return self.shards.highest(x)

    def log_sum(self, x: Tensor) -> Tensor:
        return log_or_never(summed(self.shards, x.exp().sum(-1)))

    def products(self) -> ShardedTable:
        return ShardedTable(self.own, self.shards)

    def into(self, values: Tensor, reduce: Reduce, common: Tensor | None = None) -> Tensor:
        """For the sum alone, from the values of this rank's states to its states."""
        assert reduce is log_sum_exp
        entering = torch.zeros_like(values)
        for p in self.shards.filled:
            part = self._part(values, p)
            highest = finite(self.shards.highest(part.detach()[..., None]))
            total = to_rank(self.shards, p, (part - highest).exp(), -1)
            # On the other ranks add the zeros, so that they take part in the exchange of gradients.
            entering = entering + (log_or_never(total) + highest if p == self.shards.rank else total)
        return entering if common is None else entering - common[..., None, None]

    def _part(self, values: Tensor, p: int) -> Tensor:
        """The sums over this rank's states, for the states of rank p."""
        pairs = self.to_states_of(p)
        if values.shape[-1]:
            return pairs.into(values, log_sum_exp)
        # The sum over no states; it depends on the same tensors as the sums on other ranks.
        nothing = 0.0 * (values.sum() + pairs.tensors[-1].sum()) - math.inf
        return nothing.expand(*values.shape[:-1], self.shards.sizes[p])


class _SlicedTable(ShardedPairs):
    """The rows of this rank's states in a table, `[*lead, n, N]`."""

    def between(self, early: Int[Tensor, "*lead a"], late: Int[Tensor, "*lead b"]) -> Potential:
        if not self.own.n_from:  # still a function of the table: all ranks exchange gradients
            lead = torch.broadcast_shapes(self.lead, early.shape[:-1])
            return Dense(summed(self.shards, self.tensors[0].sum().expand(*lead, early.shape[-1], late.shape[-1])))
        picked = Picked(early, self.shards)
        return Dense(picked.together(self.own.block(picked.local, late)))

    def to_states_of(self, p: int) -> Potential:
        columns = self.shards.columns(p)
        return self.own.columns(columns.start, columns.stop)

    def of_same_states(self) -> Float[Tensor, "*lead n"]:
        return self.to_states_of(self.shards.rank).block().diagonal(dim1=-2, dim2=-1)

    @torch.no_grad()
    def message(self, index: Tensor | None, value: Tensor) -> Tensor:
        """Each rank makes the message of its rows to all N states, and the ranks exchange the sums."""
        assert index is not None
        picked = Picked(index, self.shards)
        part = value.new_full((*value.shape[:-1], self.shards.n_states), -math.inf)
        if self.own.n_from:
            part = self.own.message(picked.local, value.masked_fill(~picked.here, -math.inf))
        highest = self.shards.highest(part[..., None])
        total = self.shards.scattered_sum((part - finite(highest)).exp_())
        return total.log_() + highest[..., self.shards.local]

    def transposed(self) -> "_Reversed":
        return _Reversed(self.own.transposed(), self.shards)


class _Reversed(ShardedPairs):
    """The same against the direction of the steps: the columns of this rank's states, `[*lead, N, n]`."""

    def between(self, early: Int[Tensor, "*lead a"], late: Int[Tensor, "*lead b"]) -> Potential:
        return self.transposed().between(late, early).transposed()

    def to_states_of(self, p: int) -> Potential:
        raise ValueError("a table in slices is summed along the direction of its rows: take its transpose")

    def of_same_states(self) -> Float[Tensor, "*lead n"]:
        return self.transposed().of_same_states()

    @torch.no_grad()
    def message(self, index: Tensor | None, value: Tensor) -> Tensor:
        return _received(self.own, index, value)

    def transposed(self) -> _SlicedTable:
        return _SlicedTable(self.own.transposed(), self.shards)


class _SlicedFactors(ShardedPairs):
    """Tensors with a row for each of this rank's states, at either end of a step: factors `[*lead, n, d]`."""

    def between(self, early: Int[Tensor, "*lead a"], late: Int[Tensor, "*lead b"]) -> Potential:
        _, right = self.own.parts()
        return self._from(early, tuple(map(Picked(late, self.shards).rows, right)))

    def _from(self, early: Int[Tensor, "*lead k"], to: tuple[Tensor, ...]) -> Potential:
        """The scores from selected states, to the states whose rows these are."""
        left, _ = self.own.parts()
        parts = Parts(tuple(map(Picked(early, self.shards).rows, left)), to)
        return self.own.with_tensors(self.own.of_parts(parts))

    def to_states_of(self, p: int) -> Potential:
        left, right = self.own.parts()
        return self.own.with_tensors(
            self.own.of_parts(Parts(left, tuple(from_rank(self.shards, p, x, -2) for x in right)))
        )

    def of_same_states(self) -> Float[Tensor, "*lead n"]:
        single = Parts(*(tuple(x[..., None, :] for x in tensors) for tensors in self.own.parts()))
        return self.own.scores_of(single)[..., 0, 0]

    @torch.no_grad()
    def message(self, index: Tensor | None, value: Tensor) -> Tensor:
        """Every rank gets the few numbers of the selected states."""
        assert index is not None
        return _received(self._from(index, self.own.parts().whole), None, value)

    def transposed(self) -> "_SlicedFactors":
        return _SlicedFactors(self.own.transposed(), self.shards)


def sharded(own: Potential, shards: Shards) -> ShardedPairs:
    """The operator of all ranks' states, from the scores of this rank's."""
    return (_SlicedFactors if own.parts().whole else _SlicedTable)(own, shards)


def _received(pairs: Potential, index: Int[Tensor, "*batch m"] | None, value: Tensor) -> Tensor:
    return pairs.message(index, value) if pairs.n_to else value.new_empty(*value.shape[:-1], 0)
