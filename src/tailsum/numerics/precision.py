"""Products in full precision, whatever torch's switches for autocast and tf32 say.

`ts.precision("fast")` does not change them either: it is for products with messages within kernels, on rounded operands. Products
here also make scores, and an error in the few scores that matter most is the same at every step of a chain: rounded to tf32,
scores of standard deviation 3 change log Z by up to 0.2 nats in 100 steps.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tailsum.numerics.transforms import transforming


def full_precision(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """A context in which autocast is off."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()


@contextlib.contextmanager
def in_float32(x: Tensor) -> Iterator[None]:
    """A context in which products of tensors like x are in full precision: for many of them, without gradients."""
    with full_precision(x.device), _no_tf32(x):
        yield


def product(a: Tensor, b: Tensor) -> Tensor:
    """`a @ b` without autocast; its derivatives too are without it if a and b have the same leading dimensions."""
    recorded = torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)
    if recorded and a.shape[:-2] == b.shape[:-2] and not transforming():
        return _Product.apply(a, b)
    with full_precision(a.device), _no_tf32(a):
        return a @ b


class _Product(torch.autograd.Function):
    """A product whose backward pass calls `product`, so that it is in full precision too."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return product(a, b)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        a, b = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        return product(grads[0], b.mT) if wanted[0] else None, product(a.mT, grads[0]) if wanted[1] else None


def _no_tf32(x: Tensor) -> contextlib.AbstractContextManager[object]:
    """A context in which torch does not multiply float32 on a GPU in tf32."""
    return _switched_off() if x.is_cuda and x.dtype == torch.float32 else contextlib.nullcontext()


@contextlib.contextmanager
def _switched_off() -> Iterator[None]:
    # Torch 2.9 has a new name for the switch, and refuses to read the old one after the new one was set.
    switch = torch.backends.cuda.matmul
    new = hasattr(switch, "fp32_precision")
    name, off = ("fp32_precision", "ieee") if new else ("allow_tf32", False)
    before = getattr(switch, name)
    if before == off or (before == "none" and getattr(torch.backends, "fp32_precision", "none") != "tf32"):
        yield
        return
    setattr(switch, name, off)
    try:
        yield
    finally:
        setattr(switch, name, before)
