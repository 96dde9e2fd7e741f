"""Forward messages of a chain, and what they were made from."""

from typing import NamedTuple

import torch
from torch import Tensor

from tailsum.numerics.tensors import finite
from tailsum.scores.potential import Potential
from tailsum.scores.products import Products

ROUNDED = 2e-3  # nats: of what decides between paths, what may be lost to rounding


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


def furthest_fall(highest: Tensor) -> Tensor:
    """By how much the highest message falls at most in one step, `[]`; where there is no path, it is below all finite masks."""
    fell = highest.masked_fill(highest < -1e30, 0.0)
    return -fell.amin() if fell.numel() else fell.new_zeros(())


def has_digits(fell: Tensor) -> bool:
    """Whether messages have digits for what decides between paths, if the highest one never fell further in one step.

    It falls far where all paths break a mask such as -1e9: beside that number, other scores are rounded away.
    """
    return bool(fell * torch.finfo(fell.dtype).eps < ROUNDED)


def normalised(alpha: Tensor, pairs: Potential) -> Forward:
    """Messages less their highest."""
    highest = finite(pairs.highest(alpha.detach()))
    return Forward(alpha - highest[..., None], highest.double())
