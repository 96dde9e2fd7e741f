"""Messages of a group of pair factors to all states: exact for the neighbours of each state, estimated for the rest."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.graphs.propagate import normalised
from tailsum.numerics.tensors import flattened
from tailsum.scores.potential import Potential
from tailsum.sketch.neighbours import Near, Neighbours
from tailsum.sketch.selection import Subset
from tailsum.sketch.sweep import fill_unreached


class NearPairs:
    """The last messages of pair factors to all states of the variables at both positions.

    Landmarks of one variable send them, and so do the neighbours of each state of the other.
    """

    def __init__(self, pairs: Potential, neighbours: Neighbours | int, batch: torch.Size, zeros: Tensor) -> None:
        """`zeros [B, F, N]` are the messages at the start."""
        self.pairs, self.batch = pairs, batch
        near = Near(pairs, pairs.transposed(), neighbours, zeros.device)
        self.lists = near.lists
        self.near = [x.each(lambda x, trailing: flattened(x, trailing, batch)) for x in (near.back, near.onward)]
        self.messages: list[Float[Tensor, "B F N"]] = [zeros, zeros.clone()]

    def sent(self, factors: Int[Tensor, " m"], to: int) -> Float[Tensor, "B m N"]:
        """The messages of some factors to the variables at a position."""
        return self.messages[to].index_select(1, factors)

    def send(self, factors: Int[Tensor, " m"], to: int, cavity: Float[Tensor, "B m N"], landmarks: Subset) -> None:
        """Send messages from the cavities of the variables at the other position, where `landmarks` are selected."""
        near = self.near[to].each(lambda x, _: x if x.shape[1] == 1 else x.index_select(1, factors))
        value = cavity.gather(-1, landmarks.index) + landmarks.log_weight
        sent = self._towards(to, factors).message(landmarks.index, value)
        sent = near.joined(sent, cavity, landmarks)
        if landmarks.index.shape[-1] < cavity.shape[-1]:  # from all states it is exact
            sent = fill_unreached(sent)
        self.messages[to].index_copy_(1, factors, normalised(sent))

    def correction(
        self, factors: Int[Tensor, " m"], to: int, kept: Subset, states: Int[Tensor, "B m K"]
    ) -> Float[Tensor, "B m K"]:
        """The difference between exact messages to `states`, from kept states with their cavities, and the last messages."""
        exact = normalised(self._towards(to, factors).gather(kept.index, states).message(None, kept.log_weight))
        return torch.where(exact > -math.inf, exact - self.sent(factors, to).gather(-1, states), -math.inf)

    def _towards(self, to: int, factors: Int[Tensor, " m"]) -> Potential:
        pairs = pairs_of(self.pairs, factors, self.batch)
        return pairs if to == 1 else pairs.transposed()


def pairs_of(pairs: Potential, factors: Int[Tensor, " m"], batch: torch.Size) -> Potential:
    """The scores of the given factors, leading dimensions `[B, m]`, 1 where the batch or the factors share them, or none."""
    trailing = pairs.trailing

    def of_factors(x: Tensor) -> Tensor:
        if x.dim() == trailing:
            return x
        x = x if x.shape[-trailing - 1] == 1 else x.index_select(-trailing - 1, factors)
        return flattened(x, trailing, batch)

    return pairs.map(of_factors)
