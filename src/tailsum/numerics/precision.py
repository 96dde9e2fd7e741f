"""Full precision within `torch.autocast`: products of messages must not be computed in half precision."""

import contextlib
from typing import Any

import torch
from torch import Tensor


def full_precision(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """A context in which autocast is off."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()


def product(a: Tensor, b: Tensor) -> Tensor:
    """`a @ b` without autocast, nor in its derivatives where a and b have the same leading dimensions."""
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad) and a.shape[:-2] == b.shape[:-2]:
        return _Product.apply(a, b)
    with full_precision(a.device):
        return a @ b


class _Product(torch.autograd.Function):
    """A product whose backward pass calls `product`, so that it is in full precision within autocast too."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return product(a, b)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        a, b = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        return product(grads[0], b.mT) if wanted[0] else None, product(a.mT, grads[0]) if wanted[1] else None
