"""Gradients through the plain torch reference of a kernel, where they are themselves differentiated."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tailsum.numerics.gradients import gradients


def reference_gradients(
    reference: Callable[..., Tensor], inputs: Sequence[Tensor], wanted: Sequence[bool], grad: Tensor
) -> list[Tensor | None]:
    """The gradients of `reference(*inputs)` in the wanted inputs, with a graph, so that they can be differentiated."""
    with torch.enable_grad():
        return gradients(lambda given: reference(*given), inputs, wanted, grad)
