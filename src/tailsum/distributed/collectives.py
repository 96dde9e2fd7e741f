"""Exchanges between ranks that carry gradients: the derivative of each is another one here, to any order.

A *replicated* tensor has the same value on every rank, and so has the gradient of a loss that every rank computes. A
*partial* tensor stands for its sum over the ranks.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tailsum.distributed.shards import Shards


def summed(shards: Shards, x: Tensor) -> Tensor:
    """The sum over the ranks, replicated. Its gradient is the same for each rank's part, and needs no exchange."""

    def exchange(x: Tensor) -> Tensor:
        return shards.all_reduce(x) if shards.count > 1 else x.clone()

    return _Exchange.apply(x, exchange, lambda grad: replicated(shards, grad))


def replicated(shards: Shards, x: Tensor) -> Tensor:
    """A replicated input of what each rank computes with its states: the gradient is the sum over the ranks."""
    return _Exchange.apply(x, torch.clone, lambda grad: summed(shards, grad))


def from_rank(shards: Shards, p: int, x: Tensor, dim: int) -> Tensor:
    """Rank p's slice, on every rank; the gradients of all copies are summed on rank p."""
    return _Exchange.apply(
        x, lambda x: shards.from_rank(p, x, dim)().clone(), lambda grad: to_rank(shards, p, grad, dim)
    )


def to_rank(shards: Shards, p: int, x: Tensor, dim: int) -> Tensor:
    """The sum of partial tensors for rank p's slice, on rank p; zeros in the shape of their slice on the others."""

    def exchange(x: Tensor) -> Tensor:
        total = shards.to_rank(p, x)
        if total is not None:
            return total.clone() if shards.count == 1 else total
        shape = list(x.shape)
        shape[dim] = shards.sizes[shards.rank]
        return x.new_zeros(shape)

    return _Exchange.apply(x, exchange, lambda grad: from_rank(shards, p, grad, dim))


class _Exchange(torch.autograd.Function):
    """`exchange(x)`, with `derivative` of the gradient, which is an exchange itself."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, exchange: Callable[[Tensor], Tensor], derivative: Callable[[Tensor], Tensor]
    ) -> Tensor:
        ctx.derivative = derivative
        return exchange(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return ctx.derivative(grads[0]), None, None
