"""Helpers shared by the recursions of all structures: sums of products in a semiring's own arithmetic.

Numbers of a semiring are `[size, *batch, ..]`; charts are lists of them by width or by position.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Int, Num
from torch import Tensor

from tailsum.compat.torch_struct.semirings.base import Semiring


def neutral(semiring: type[Semiring], like: Tensor, dims: int) -> tuple[Tensor, Tensor]:
    """Zero and one of a semiring, `[size, 1, ..]` of `dims` dimensions."""
    blank = like.new_empty(semiring.size(), *(1,) * (dims - 1))
    return semiring.zero_(blank.clone()), semiring.one_(blank.clone())


def sum_of_products(semiring: type[Semiring], factors: Sequence[tuple[Tensor, Tensor]]) -> Num[Tensor, "size ..."]:
    """The sum of the products of pairs of numbers."""
    lefts, rights = (torch.stack(side, -1) for side in zip(*factors, strict=True))
    return semiring.sum(semiring.mul(lefts, rights))


def chosen(chart: Sequence[Tensor], place: Int[Tensor, " B"]) -> Num[Tensor, "size B ..."]:
    """The entry of a chart `[size, B, ..]` at each sequence's place."""
    stacked = torch.stack(list(chart), 2)
    index = place.reshape(1, -1, 1, *(1,) * (stacked.dim() - 3))
    return stacked.gather(2, index.expand(len(stacked), -1, 1, *stacked.shape[3:])).squeeze(2)
