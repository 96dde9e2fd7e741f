"""Products of the precision that is asked for, whatever torch's own switches say: autocast and tf32 do not change them."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tailsum.numerics.kernels import is_fast
from tailsum.numerics.transforms import transforming


def full_precision(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """A context in which autocast is off."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()


def product(a: Tensor, b: Tensor) -> Tensor:
    """`a @ b` without autocast, nor in its derivatives where a and b have the same leading dimensions."""
    recorded = torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)
    if recorded and a.shape[:-2] == b.shape[:-2] and not transforming():
        return _Product.apply(a, b)
    with full_precision(a.device), _tensor_cores(a):
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


def _tensor_cores(x: Tensor) -> contextlib.AbstractContextManager[object]:
    """A context in which torch multiplies float32 on a GPU in tf32 if the precision is "fast", and else not."""
    return _switched() if x.is_cuda and x.dtype == torch.float32 else contextlib.nullcontext()


@contextlib.contextmanager
def _switched() -> Iterator[None]:
    # Torch 2.9 has new names for the switch, and refuses to read the old ones after the new were set.
    switch = torch.backends.cuda.matmul
    new = hasattr(switch, "fp32_precision")
    name, wanted = ("fp32_precision", "tf32" if is_fast() else "ieee") if new else ("allow_tf32", is_fast())
    before = getattr(switch, name)
    if before == wanted or (
        before == "none" and wanted == "ieee" and getattr(torch.backends, "fp32_precision", "none") != "tf32"
    ):
        yield
        return
    setattr(switch, name, wanted)
    try:
        yield
    finally:
        setattr(switch, name, before)
