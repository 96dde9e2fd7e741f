"""Tensors inside the transforms of `torch.func` (grad, vmap, jvp), each of which wraps them once.

Torch has no public functions for this.
"""

from torch import Tensor
from torch._C import _are_functorch_transforms_active
from torch._C._functorch import get_unwrapped, is_batchedtensor, is_functorch_wrapped_tensor


def transforming() -> bool:
    """Whether this code runs inside a transform."""
    return _are_functorch_transforms_active()


def values_of(x: Tensor) -> Tensor:
    """The tensor inside the wrappers, without gradients, and with one more dimension for each `vmap`."""
    while is_functorch_wrapped_tensor(x):
        x = get_unwrapped(x)
    return x


def is_mapped(x: Tensor) -> bool:
    """Whether `vmap` has hidden a dimension of the tensor."""
    while is_functorch_wrapped_tensor(x):
        if is_batchedtensor(x):
            return True
        x = get_unwrapped(x)
    return False


def every(x: Tensor) -> bool:
    """Whether all entries are true; inside `vmap`, the entries of all elements that are mapped over."""
    return bool((values_of(x) if transforming() else x).all())


def some(x: Tensor) -> bool:
    """Whether any entry is true; inside `vmap`, any entry of all elements that are mapped over."""
    return bool((values_of(x) if transforming() else x).any())
