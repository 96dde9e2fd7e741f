"""Sweeps along a chain whose states are on several ranks: few states send, and each rank receives for its states."""

import math
from dataclasses import replace
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.chains.chain_sweep import ChainSweep
from tailsum.distributed.picked import Picked
from tailsum.distributed.sharded_pairs import ShardedPairs
from tailsum.distributed.sharded_selection import ShardedOptimal
from tailsum.numerics.tensors import finite
from tailsum.sketch.neighbours import NearMessages, Neighbours
from tailsum.sketch.selection import Selection, Subset
from tailsum.sketch.sweep import reached


class ShardedSweep(ChainSweep):
    """`ChainSweep` over this rank's node scores `[*batch, T, n]`, with subsets of the states of all ranks.

    Each state is its only neighbour.
    """

    def __init__(
        self, nodes: Float[Tensor, "*batch T n"], pairs: ShardedPairs, lengths: Int[Tensor, "*batch"] | None
    ) -> None:
        self.nodes, self.lengths, self.shards = nodes, lengths, pairs.shards
        self.onward, self.back = pairs, pairs.transposed()
        self.past, self.future = nodes, torch.zeros_like(nodes)
        self.pilot = None
        self.with_itself = False

    def set_neighbours(self, neighbours: Neighbours | int, landmarks: int) -> None:
        if isinstance(neighbours, Neighbours):
            raise ValueError("neighbours must be a number: lists of neighbours are not kept across ranks")
        self.with_itself = landmarks < self.shards.n_states

    def suits_kernels(self, selection: Selection) -> bool:
        return False

    def selecting(self, landmarks: int) -> Selection:
        return ShardedOptimal(landmarks, self.shards, levels=1)

    def sent(self, t: int, value: Tensor, kept: Subset, back: bool = False) -> Float[Tensor, "*batch n"]:
        values = Picked(kept.index, self.shards).values(value) + kept.log_weight
        return (self.back if back else self.onward).at_step(t).message(kept.index, values)

    def joined(
        self, t: int, value: Tensor, kept: Subset, sent: Tensor, back: bool = False
    ) -> Float[Tensor, "*batch n"]:
        if not self.with_itself or not sent.shape[-1]:
            return sent
        picked = Picked(kept.index, self.shards)
        local = replace(kept, index=picked.local, log_weight=kept.log_weight.masked_fill(~picked.here, -math.inf))
        return self._itself.at_step(t).joined(sent, value, local)

    @cached_property
    def _itself(self) -> NearMessages:
        """Messages to each state from itself only."""
        with torch.no_grad():
            scores = self.onward.of_same_states().double()
            partners = torch.arange(scores.shape[-1], device=scores.device)[:, None]
            return NearMessages(partners, finite(scores), (scores > -math.inf).double()[..., None])

    def filled(self, sent: Float[Tensor, "*batch n"], landmarks: int) -> Float[Tensor, "*batch n"]:
        if landmarks >= self.shards.n_states:
            return sent
        here = reached(sent, self.shards.highest(sent)[..., None])
        known = torch.stack((sent.masked_fill(~here, 0.0).sum(-1), here.sum(-1).to(sent.dtype)))
        total, count = self.shards.all_reduce(known)
        return torch.where(here, sent, (total / count.clamp_(min=1.0))[..., None])
