"""Masks with holes: unmasked positions move to the front, in order, for a shorter sequence without holes.

Masks are `[B, T]`, batch first. Where the padding is on the right already, nothing moves.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from tailsum.numerics.check import check_tensor


@dataclass(frozen=True)
class Packing:
    """The number of unmasked positions of each sequence (None: all), and where each comes from (None: nothing moves)."""

    lengths: Int[Tensor, " B"] | None = None
    order: Int[Tensor, "B T"] | None = None

    def pack(self, x: Shaped[Tensor, "B T *rest"]) -> Shaped[Tensor, "B T *rest"]:
        """Move the unmasked positions to the front."""
        return x if self.order is None else _take(x, self.order)

    def unpack(self, x: Shaped[Tensor, "B T *rest"]) -> Shaped[Tensor, "B T *rest"]:
        """Move every position back."""
        return x if self.order is None else _take(x, self.order.argsort(1))


def packing_of(mask: Shaped[Tensor, "B T"] | None) -> Packing:
    """The packing of a mask, which is true (or not zero) at unmasked positions; each sequence needs one.

    >>> packing_of(torch.tensor([[True, False, True], [True, True, False]])).order
    tensor([[0, 2, 1],
            [0, 1, 2]])
    """
    if mask is None:
        return Packing()
    check_tensor("mask", mask)
    if mask.is_floating_point() or mask.is_complex():
        raise ValueError(f"mask must be boolean or integers: got {mask.dtype}")
    mask = mask.bool()
    lengths = mask.sum(1)
    if bool((lengths == mask.shape[1]).all()):
        return Packing()
    if bool((lengths == 0).any()):
        empty = (lengths == 0).nonzero()[0].item()
        raise ValueError(f"mask must leave at least one position of each sequence: got none in sequence {empty}")
    in_front = torch.arange(mask.shape[1], device=mask.device) < lengths[:, None]
    return Packing(lengths, None if torch.equal(mask, in_front) else (~mask).int().argsort(stable=True, dim=1))


def _take(x: Tensor, order: Tensor) -> Tensor:
    return x.take_along_dim(order.reshape(*order.shape, *(1,) * (x.dim() - 2)), 1)
