"""What the recursions of all structures share: sums of products by a semiring's own arithmetic.

Numbers of a semiring are `[size, *batch, ..]`; charts are lists of them by width or by position.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int, Num
from torch import Tensor


def neutral(semiring: Any, like: Tensor, dims: int) -> tuple[Tensor, Tensor]:
    """Zero and one of a semiring, `[size, 1, ..]` of `dims` dimensions."""
    blank = like.new_empty(semiring.size(), *(1,) * (dims - 1))
    return semiring.zero_(blank.clone()), semiring.one_(blank.clone())


def total(semiring: Any, products: Sequence[tuple[Tensor, Tensor]]) -> Num[Tensor, "size ..."]:
    """The sum of products of two numbers each."""
    lefts, rights = (torch.stack(factors, -1) for factors in zip(*products, strict=True))
    return semiring.sum(semiring.mul(lefts, rights))


def chosen(chart: Sequence[Tensor], place: Int[Tensor, " B"]) -> Num[Tensor, "size B ..."]:
    """The entry of a chart `[size, B, ..]` at a place for each sequence."""
    stacked = torch.stack(list(chart), 2)
    index = place.reshape(1, -1, 1, *(1,) * (stacked.dim() - 3))
    return stacked.gather(2, index.expand(len(stacked), -1, 1, *stacked.shape[3:])).squeeze(2)


def gradients(totals: Num[Tensor, "rows B"], parts: Float[Tensor, "..."], recorded: bool) -> list[Tensor]:
    """The gradient of each row's sum in the parts, on the graph if it is `recorded`."""
    return [torch.autograd.grad(row.sum(), parts, retain_graph=True, create_graph=recorded)[0] for row in totals]
