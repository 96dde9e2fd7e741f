"""Autograd for kernels: first derivatives by kernels, derivatives of higher order by a reference in plain torch."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tailsum.numerics.gradients import gradients

Saved = tuple[Tensor, ...]
Forward = Callable[..., tuple[Tensor, Saved]]
Backward = Callable[[Saved, Tensor, Sequence[bool]], Sequence[Tensor | None]]


def with_reference(forward: Forward, backward: Backward, reference: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """The result of `forward(*inputs)`, differentiable any number of times in the inputs.

    `forward` returns the result and the tensors to keep for `backward(kept, grad, wanted)`, which returns the gradients in
    the inputs. `reference(*inputs)` computes the same result: it is differentiated where gradients need gradients.
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
        saved, wanted = ctx.saved_tensors, ctx.needs_input_grad[3:]
        if torch.is_grad_enabled():
            return None, None, None, *reference_gradients(reference, saved[:count], wanted, grads[0])
        return None, None, None, *backward(saved[count:], grads[0], wanted)


def reference_gradients(
    reference: Callable[..., Tensor], inputs: Sequence[Tensor], wanted: Sequence[bool], grad: Tensor
) -> list[Tensor | None]:
    """The gradients of `reference(*inputs)` in the wanted inputs, with a graph, so that they can be differentiated."""
    with torch.enable_grad():
        return gradients(lambda inputs: reference(*inputs), inputs, wanted, grad)
