"""Inference keeps its own precision: under `torch.autocast`, products of messages would lose theirs."""

import contextlib
from typing import Any

import torch
from torch import Tensor


def full_precision(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Within it, autocast is off."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()


def product(a: Tensor, b: Tensor) -> Tensor:
    """`a @ b` in the type of a and b; where both have the same leading dimensions, in its derivatives too."""
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad) and a.shape[:-2] == b.shape[:-2]:
        return _Product.apply(a, b)
    with full_precision(a.device):
        return a @ b


class _Product(torch.autograd.Function):
    """A product whose backward pass is products again: one that is run within autocast keeps its precision."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        with full_precision(a.device):
            return a @ b

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        a, b = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        return product(grads[0], b.mT) if wanted[0] else None, product(a.mT, grads[0]) if wanted[1] else None
