"""Functions that the transforms of `torch.func` take as they are: called with plain tensors, whatever is around them.

A `Function` maps tensors to tensors, can be differentiated by autograd any number of times, and can be run for a batch of
inputs. Its derivatives are functions of the same kind, so transforms may be nested as one likes.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class Function(ABC):
    """A function of tensors to several tensors, by autograd `differentiable` or not."""

    differentiable = True

    @abstractmethod
    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        """The outputs."""

    def batched(self) -> "Function":
        """The same function for inputs and outputs that all have one more dimension, the first."""
        return Looped(self)


def transformed(function: Function, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """`function(*inputs)` inside any transforms."""
    return _Transformed.apply(function, *inputs)


class Looped(Function):
    """A function called for each input of a batch in turn."""

    def __init__(self, function: Function) -> None:
        self.function = function

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        found = [self.function(*one) for one in zip(*(x.unbind() for x in inputs), strict=True)]
        return [torch.stack(x) for x in zip(*found, strict=True)]


class _Pull(Function):
    """From inputs and a gradient for each output to the gradients of the floating-point inputs."""

    def __init__(self, function: Function, count: int) -> None:
        self.function, self.count = function, count

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        recording = torch.is_grad_enabled()
        with torch.enable_grad():
            tracked = [_tracked(x, recording) for x in inputs[: self.count]]
            outputs = self.function(*tracked)
            return _gradients(outputs, _floating(tracked), inputs[self.count :], recording)

    def batched(self) -> "_Pull":
        return _Pull(self.function.batched(), self.count)


class _Push(Function):
    """From inputs and a tangent of each floating-point input to the tangents of the outputs.

    The gradients of the inputs are linear in those of the outputs, `J' u`; the gradient of `v . J' u` in u is `J v`.
    """

    def __init__(self, function: Function, count: int) -> None:
        self.function, self.count = function, count

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        recording = torch.is_grad_enabled()
        with torch.enable_grad():
            tracked = [_tracked(x, recording) for x in inputs[: self.count]]
            outputs = self.function(*tracked)
            weights = [torch.zeros_like(x).requires_grad_() for x in outputs]
            pulled = _gradients(outputs, _floating(tracked), weights, True)
            return _gradients(pulled, weights, inputs[self.count :], recording)

    def batched(self) -> "_Push":
        return _Push(self.function.batched(), self.count)


def _tracked(x: Tensor, recording: bool) -> Tensor:
    if not x.is_floating_point() or (recording and x.requires_grad):
        return x
    return x.detach().requires_grad_()


def _floating(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [x for x in tensors if x.is_floating_point()]


def _gradients(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], weights: Sequence[Tensor], recording: bool
) -> list[Tensor]:
    pairs = [(out, weight) for out, weight in zip(outputs, weights, strict=True) if out.requires_grad]
    if not pairs:
        return [torch.zeros_like(x) for x in inputs]
    active, given = zip(*pairs, strict=True)
    return list(torch.autograd.grad(active, inputs, given, create_graph=recording, materialize_grads=True))


class _Transformed(torch.autograd.Function):
    @staticmethod
    def forward(function: Function, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(function(*inputs))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.function, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        if not ctx.function.differentiable:
            ctx.mark_non_differentiable(*output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        inputs = ctx.saved_tensors
        found = iter(transformed(_Pull(ctx.function, len(inputs)), (*inputs, *grads)))
        return None, *(next(found) if x.is_floating_point() else None for x in inputs)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Any:
        inputs = ctx.saved_tensors
        given = zip(inputs, tangents[1:], strict=True)
        moving = [torch.zeros_like(x) if v is None else v for x, v in given if x.is_floating_point()]
        return transformed(_Push(ctx.function, len(inputs)), (*inputs, *moving))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *given: Any) -> Any:
        (function, *inputs), size = given, info.batch_size
        moved = [
            x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)
            for x, dim in zip(inputs, in_dims[1:], strict=True)
        ]
        found = transformed(function.batched(), moved)
        return found, (0,) * len(found)
