"""Tensors inside the transforms of `torch.func` (grad, vmap, jvp), which wrap them: once for each transform around them."""

import torch
from torch import Tensor


def transforming() -> bool:
    """Whether this code runs inside a transform."""
    return torch._C._are_functorch_transforms_active()  # noqa: SLF001  (torch has no public name for it)


def values_of(x: Tensor) -> Tensor:
    """The tensor inside the wrappers: without gradients, and with one more dimension for each `vmap`."""
    functorch = torch._C._functorch  # noqa: SLF001
    while functorch.is_functorch_wrapped_tensor(x):
        x = functorch.get_unwrapped(x)
    return x


def is_mapped(x: Tensor) -> bool:
    """Whether `vmap` has hidden a dimension of the tensor."""
    functorch = torch._C._functorch  # noqa: SLF001
    while functorch.is_functorch_wrapped_tensor(x):
        if functorch.is_batchedtensor(x):
            return True
        x = functorch.get_unwrapped(x)
    return False


def every(x: Tensor) -> bool:
    """Whether all entries are true, also inside `vmap`: of all that are mapped over."""
    return bool((values_of(x) if transforming() else x).all())


def some(x: Tensor) -> bool:
    """Whether any entry is true, also inside `vmap`: of any that are mapped over."""
    return bool((values_of(x) if transforming() else x).any())
