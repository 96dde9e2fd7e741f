"""Gradients through the plain torch reference of a kernel, where they are themselves differentiated."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def reference_gradients(
    reference: Callable[..., Tensor], inputs: Sequence[Tensor], wanted: Sequence[bool], grad: Tensor
) -> tuple[Tensor | None, ...]:
    """The gradients of `reference(*inputs)` in the wanted inputs, with a graph, so that they can be differentiated."""
    active = [x for x, want in zip(inputs, wanted, strict=True) if want]
    with torch.enable_grad():
        found = torch.autograd.grad(reference(*inputs), active, grad, create_graph=True, materialize_grads=True)
    each = iter(found)
    return tuple(next(each) if want else None for want in wanted)
