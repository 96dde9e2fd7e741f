"""Forward messages of a chain, and what they were made from."""

from typing import NamedTuple

import torch
from torch import Tensor

from tailsum.numerics.tensors import finite
from tailsum.scores.potential import Potential
from tailsum.scores.products import Products


class Forward(NamedTuple):
    """Forward messages: `alpha = log_mass + offset`, with log_mass `[T, B, N]` and offset `[T, B]` in float64.

    The offset carries no gradient: it is a constant that keeps long sequences within range.
    """

    log_mass: Tensor
    offset: Tensor

    def log_sum(self, pairs: Potential, last: Tensor) -> Tensor:
        """Log-partition `[B]` in float64: the sum of the messages at each sequence's last position."""
        batch = torch.arange(len(last), device=last.device)
        return pairs.log_sum(self.log_mass[last, batch]).double() + self.offset[last, batch]


class Summed(NamedTuple):
    """The forward recursion of a chain: its messages, and the scores and products that they were made from.

    The scores may be those of the chain in float64 or in another gauge. In the second case `left_out [T, B, N]` must be
    added to the messages.
    """

    node: Tensor
    pairs: Potential
    table: Products
    messages: Forward
    total: Tensor
    left_out: Tensor | None = None

    def all_messages(self) -> Forward:
        """The messages of the chain itself."""
        if self.left_out is None:
            return self.messages
        return Forward(self.messages.log_mass + self.left_out, self.messages.offset)


def normalised(alpha: Tensor, pairs: Potential) -> Forward:
    """Messages less their highest."""
    highest = finite(pairs.highest(alpha.detach()))
    return Forward(alpha - highest[..., None], highest.double())
