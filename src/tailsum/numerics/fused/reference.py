"""Autograd for kernels: first derivatives by kernels, derivatives of higher order by a reference in plain torch."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tailsum.numerics.gradients import gradients

Saved = tuple[Tensor, ...]
Forward = Callable[..., tuple[Tensor, Saved]]
Backward = Callable[[Saved, Tensor], Sequence[Tensor | None]]


def with_reference(forward: Forward, backward: Backward, reference: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """The result of `forward(*inputs)`, differentiable any number of times in the inputs.

    `forward` returns the result and the tensors to keep for `backward(kept, grad)`, which returns the gradients in the
    inputs. `reference(*inputs)` computes the same result: it is differentiated where gradients need gradients.
    """
    return _WithReference.apply(forward, backward, reference, *inputs)


class _WithReference(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, forward: Forward, backward: Backward, reference: Callable[..., Tensor], *inputs: Tensor
    ) -> Tensor:
        result, kept = forward(*inputs)
        ctx.save_for_backward(*inputs, *kept)
        ctx.settings = backward, reference, len(inputs)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        backward, reference, count = ctx.settings
        inputs, kept = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
        if torch.is_grad_enabled():
            slopes = reference_gradients(reference, inputs, ctx.needs_input_grad[3:], grads[0])
        else:
            slopes = backward(kept, grads[0])
        return None, None, None, *slopes


def reference_gradients(
    reference: Callable[..., Tensor], inputs: Sequence[Tensor], wanted: Sequence[bool], grad: Tensor
) -> list[Tensor | None]:
    """The gradients of `reference(*inputs)` in the wanted inputs, with a graph, so that they can be differentiated."""
    with torch.enable_grad():
        return gradients(lambda inputs: reference(*inputs), inputs, wanted, grad)
