"""Exchanges between ranks that carry gradients: each is the derivative of another one here, to any order.

A *replicated* tensor has the same value on every rank, and so has the gradient of a loss that every rank computes. Of a
*partial* one, the sum over the ranks counts.
"""

from typing import Any

import torch
from torch import Tensor

from tailsum.distributed.shards import Shards


def summed(shards: Shards, x: Tensor) -> Tensor:
    """The sum over the ranks, replicated. Its gradient is the same for each rank's part, and needs no exchange."""
    return _Sum.apply(shards, x)


def replicated(shards: Shards, x: Tensor) -> Tensor:
    """A replicated input of what each rank computes with its own states: the gradient is the sum over the ranks."""
    return _Copy.apply(shards, x)


def from_rank(shards: Shards, p: int, x: Tensor, dim: int) -> Tensor:
    """Rank p's slice, on every rank; the gradients of all copies are summed on rank p."""
    return _FromRank.apply(shards, p, dim, x)


def to_rank(shards: Shards, p: int, x: Tensor, dim: int) -> Tensor:
    """The sum of partial tensors for rank p's slice, on rank p. Elsewhere zeros, of the shape of the own slice."""
    return _ToRank.apply(shards, p, dim, x)


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, shards: Shards, x: Tensor) -> Tensor:
        ctx.shards = shards
        return shards.all_reduce(x) if shards.count > 1 else x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return None, replicated(ctx.shards, grads[0])


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, shards: Shards, x: Tensor) -> Tensor:
        ctx.shards = shards
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return None, summed(ctx.shards, grads[0])


class _FromRank(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, shards: Shards, p: int, dim: int, x: Tensor) -> Tensor:
        ctx.settings = shards, p, dim
        return shards.from_rank(p, x, dim)().clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        shards, p, dim = ctx.settings
        return None, None, None, to_rank(shards, p, grads[0], dim)


class _ToRank(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, shards: Shards, p: int, dim: int, x: Tensor) -> Tensor:
        ctx.settings = shards, p, dim
        total = shards.to_rank(p, x)
        if total is not None:
            return total.clone() if shards.count == 1 else total
        shape = list(x.shape)
        shape[dim] = shards.sizes[shards.rank]
        return x.new_zeros(shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        shards, p, dim = ctx.settings
        return None, None, None, from_rank(shards, p, grads[0], dim)
