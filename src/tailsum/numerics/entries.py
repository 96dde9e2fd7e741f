"""Entries of a table whose places are sums: of a few small tensors that broadcast to a large one."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.numerics.transforms import transforming


def entries_at(table: Float[Tensor, " n"], *parts: Int[Tensor, "*#shape"]) -> Float[Tensor, "*shape"]:
    """`table[sum of parts]`. Nothing as large as the result is kept for its derivatives, and their places are not sorted."""
    if torch.is_grad_enabled() and table.requires_grad and not transforming():
        return _Entries.apply(table, *parts)
    places = _total(parts)
    return table.index_select(0, places.flatten()).view(places.shape)


def _total(parts: tuple[Tensor, ...]) -> Tensor:
    first, *rest = parts
    for part in rest:
        first = first + part
    return first


def _sums_at(values: Tensor, size: int, parts: tuple[Tensor, ...]) -> Tensor:
    """For each of `size` entries, the sum of the values at its place."""
    if torch.is_grad_enabled() and values.requires_grad and not transforming():
        return _Sums.apply(values, size, *parts)
    return values.new_zeros(size).scatter_add(0, _total(parts).flatten(), values.flatten())


class _Entries(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, *parts: Tensor) -> Tensor:
        ctx.save_for_backward(*parts)
        ctx.size = len(table)
        return entries_at(table, *parts)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return _sums_at(grads[0], ctx.size, ctx.saved_tensors), *(None for _ in ctx.saved_tensors)


class _Sums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, size: int, *parts: Tensor) -> Tensor:
        ctx.save_for_backward(*parts)
        return _sums_at(values, size, parts)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return entries_at(grads[0], *ctx.saved_tensors), None, *(None for _ in ctx.saved_tensors)
