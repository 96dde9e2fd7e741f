"""The optimal selection of K states among those of all ranks (`sketch/selection.py`, in slices).

Each rank finds its K largest and the sum of the rest; together they give the threshold. The states of all ranks are then
ordered by magnitude and rank, and each rank needs only the sums of the states before its own. One uniform number for each
row, drawn by the first rank, decides. So the selection is the same as if all states were on one rank.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from tailsum.distributed.shards import Shards
from tailsum.numerics.check import at_least
from tailsum.sketch.selection import (
    Selection,
    Subset,
    cumulative,
    included,
    largest_and_rest,
    normalised,
    places,
    share_of,
    uniform,
)


@dataclass(frozen=True)
class ShardedOptimal(Selection):
    """`Optimal(k)` with nine levels of magnitude, `Landmarks(k)` with one, over the states of all ranks.

    It takes the `log_q [*lead, n]` of this rank's states; the subset, in global ids, is the same on every rank.
    """

    k: int
    shards: Shards
    levels: int = 9

    def __post_init__(self) -> None:
        at_least(1, k=self.k)

    @torch.no_grad()
    def __call__(self, log_q: Float[Tensor, "*lead n"], generator: torch.Generator | None = None) -> Subset:
        shards, lead = self.shards, log_q.shape[:-1]
        if self.k >= shards.n_states:
            everything = torch.arange(shards.n_states, device=log_q.device).expand(*lead, -1)
            return Subset(everything, log_q.new_zeros(everything.shape))
        inclusion = self._inclusion(log_q)
        reach = self._reach(inclusion)
        # Every rank draws, so that generators in the same state stay in the same state; the first rank's number counts.
        drawn = uniform((*lead, 1), log_q.device, generator)
        mark = shards.all_reduce(drawn if shards.rank == 0 else torch.zeros_like(drawn))
        place = places(reach, inclusion, mark, self.k)
        # The ids (from one on) and the weights of this rank's kept states, in their places; zeros for the other ranks'.
        ids = torch.arange(1, inclusion.shape[-1] + 1, device=log_q.device).double() + shards.local.start
        kept = inclusion.new_zeros(2, *lead, self.k + 1)
        kept[0].scatter_(-1, place, ids.expand(place.shape))
        kept[1].scatter_(-1, place, -inclusion.log())
        index, log_weight = shards.all_reduce(kept[..., :-1])
        empty = index == 0  # fewer than k states are possible
        return Subset((index.long() - 1).clamp_(min=0), log_weight.to(log_q.dtype).masked_fill_(empty, -math.inf))

    def _inclusion(self, log_q: Tensor) -> Tensor:
        """`inclusion_probability` of this rank's states: the k largest of all ranks are among the k largest of each."""
        q = normalised(log_q, self.shards.highest(log_q)[..., None])
        largest, rest = largest_and_rest(q, self.k)
        padded = torch.nn.functional.pad(largest, (0, self.k - largest.shape[-1]))
        ranks = self.shards.stacked(torch.cat((padded, rest), -1)).movedim(0, -2)  # [*lead, ranks, k + 1]
        largest, rest = largest_and_rest(ranks[..., :-1].flatten(-2), self.k)
        return included(q, share_of(largest, ranks[..., -1].sum(-1, keepdim=True) + rest, self.k))

    def _reach(self, inclusion: Tensor) -> Tensor:
        """The cumulative sum over the states of all ranks, ordered by magnitude, then by id."""
        level = (1 - torch.frexp(inclusion).exponent).clamp_(0, self.levels - 1).long()
        reach, sums = torch.zeros_like(inclusion), list[Tensor]()
        for value in range(self.levels):
            here = level == value
            of_level = torch.where(here, inclusion, 0.0)
            reach = torch.where(here, cumulative(of_level), reach)
            sums.append(of_level.sum(-1))
        by_rank = self.shards.stacked(torch.stack(sums, -1))  # [ranks, *lead, levels]
        total = by_rank.sum(0)
        before = total.cumsum(-1) - total + by_rank[: self.shards.rank].sum(0)
        return reach + before.gather(-1, level)
