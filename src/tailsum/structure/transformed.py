"""Functions for the transforms of `torch.func` that are called with plain tensors inside any of them.

A `Function` maps tensors to tensors, can be differentiated by autograd any number of times, and can be run for a batch of
inputs. Its derivatives are functions of the same kind, so transforms can be nested.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tailsum.numerics.gradients import tracked


class Function(ABC):
    """A function of tensors to several tensors, by autograd `differentiable` or not."""

    differentiable = True

    @abstractmethod
    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        """The outputs."""

    def batched(self, mapped: Sequence[bool]) -> "Function":
        """The same function with one more dimension, the first, for outputs and for the inputs that are `mapped`."""
        return Looped(self, mapped)


def transformed(function: Function, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """`function(*inputs)` inside any transforms."""
    return _Transformed.apply(function, *inputs)


class Looped(Function):
    """A function called for each input of a batch in turn."""

    def __init__(self, function: Function, mapped: Sequence[bool]) -> None:
        self.function, self.mapped = function, mapped

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        size = mapped_size(inputs, self.mapped)
        if not size:
            raise ValueError("vmap over configurations needs at least one of them: got none")
        rows = ([x[i] if here else x for x, here in zip(inputs, self.mapped, strict=True)] for i in range(size))
        return [torch.stack(x) for x in zip(*(self.function(*row) for row in rows), strict=True)]


class _Derivative(Function):
    """A derivative of a function: of its inputs and of a vector for each output or floating-point input.

    `active` says which inputs to differentiate in. In a batch, these and the vectors must all be `mapped`.
    """

    def __init__(self, function: Function, active: Sequence[bool], mapped: Sequence[bool] | None = None) -> None:
        self.active, self.mapped = active, mapped
        if mapped is not None:
            function = function.batched([a or b for a, b in zip(active, mapped, strict=False)])
        self.function = function

    def __call__(self, *arguments: Tensor) -> list[Tensor]:
        count = len(self.active)
        if self.mapped is not None:
            size = mapped_size(arguments, self.mapped)
            needed = [*self.active, *[True] * (len(arguments) - count)]
            rows = zip(arguments, self.mapped, needed, strict=True)
            arguments = tuple(x.expand(size, *x.shape) if need and not here else x for x, here, need in rows)
        inputs, vectors = arguments[:count], arguments[count:]
        recording = torch.is_grad_enabled()
        with torch.enable_grad():
            nodes = [tracked(x, recording) if on else x for x, on in zip(inputs, self.active, strict=True)]
            active = [x for x, on in zip(nodes, self.active, strict=True) if on]
            return self.derivative(self.function(*nodes), active, vectors, recording)

    @abstractmethod
    def derivative(
        self, outputs: list[Tensor], active: list[Tensor], vectors: Sequence[Tensor], recording: bool
    ) -> list[Tensor]:
        """The derivative, recorded if it is to be differentiated again."""

    def batched(self, mapped: Sequence[bool]) -> Function:
        return type(self)(self.function, self.active, mapped) if self.mapped is None else Looped(self, mapped)


class _Pull(_Derivative):
    """From gradients of the outputs to gradients of the inputs."""

    def derivative(
        self, outputs: list[Tensor], active: list[Tensor], vectors: Sequence[Tensor], recording: bool
    ) -> list[Tensor]:
        return _gradients(outputs, active, vectors, recording)


class _Push(_Derivative):
    """From tangents of the inputs to tangents of the outputs.

    The gradients of the inputs are linear in those of the outputs, `J' u`; the gradient of `v . J' u` in u is `J v`.
    """

    def derivative(
        self, outputs: list[Tensor], active: list[Tensor], vectors: Sequence[Tensor], recording: bool
    ) -> list[Tensor]:
        weights = [torch.zeros_like(x).requires_grad_() for x in outputs]
        return _gradients(_gradients(outputs, active, weights, True), weights, vectors, recording)


def mapped_size(inputs: Sequence[Tensor], mapped: Sequence[bool]) -> int:
    """The size of the dimension that is mapped over."""
    return next(len(x) for x, here in zip(inputs, mapped, strict=True) if here)


def _gradients(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], weights: Sequence[Tensor], recording: bool
) -> list[Tensor]:
    pairs = [(out, weight) for out, weight in zip(outputs, weights, strict=True) if out.requires_grad]
    if not pairs or not inputs:
        return [torch.zeros_like(x) for x in inputs]
    active, grads = zip(*pairs, strict=True)
    return list(torch.autograd.grad(active, inputs, grads, create_graph=recording, materialize_grads=True))


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
        inputs, active = ctx.saved_tensors, ctx.needs_input_grad[1:]
        pulled = iter(transformed(_Pull(ctx.function, active), (*inputs, *grads)))
        return None, *(next(pulled) if on else None for on in active)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Any:
        active = [v is not None for v in tangents[1:]]
        return transformed(_Push(ctx.function, active), (*ctx.saved_tensors, *(v for v in tangents if v is not None)))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> Any:  # noqa: ARG004  (as torch calls it)
        function, *inputs = arguments
        mapped = [dim is not None for dim in in_dims[1:]]
        moved = [x if dim is None else x.movedim(dim, 0) for x, dim in zip(inputs, in_dims[1:], strict=True)]
        outputs = transformed(function.batched(mapped), moved)
        return outputs, (0,) * len(outputs)
