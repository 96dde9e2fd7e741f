"""Functions that the transforms of `torch.func` take as they are: called with plain tensors, whatever is around them.

A `Function` maps tensors to tensors, can be differentiated by autograd any number of times, and can be run for a batch of
inputs. Its derivatives are functions of the same kind, so transforms may be nested as one likes.
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
        """The same function for outputs, and inputs where `mapped`, that have one more dimension, the first."""
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
    """A derivative of a function, from its inputs and from a vector for each output or floating-point input.

    `wanted` are the inputs to differentiate in. In a batch, these and the vectors must all be `mapped`.
    """

    def __init__(self, function: Function, wanted: Sequence[bool], mapped: Sequence[bool] | None = None) -> None:
        self.wanted, self.mapped = wanted, mapped
        if mapped is not None:
            function = function.batched([a or b for a, b in zip(wanted, mapped, strict=False)])
        self.function = function

    def __call__(self, *given: Tensor) -> list[Tensor]:
        if self.mapped is not None:
            size = mapped_size(given, self.mapped)
            needed = [*self.wanted, *[True] * (len(given) - len(self.wanted))]
            rows = zip(given, self.mapped, needed, strict=True)
            given = tuple(x.expand(size, *x.shape) if want and not here else x for x, here, want in rows)
        inputs, vectors = given[: len(self.wanted)], given[len(self.wanted) :]
        recording = torch.is_grad_enabled()
        with torch.enable_grad():
            pairs = zip(inputs, self.wanted, strict=True)
            nodes = [tracked(x, recording) if want else x for x, want in pairs]
            active = [x for x, want in zip(nodes, self.wanted, strict=True) if want]
            return self.derivative(self.function(*nodes), active, vectors, recording)

    @abstractmethod
    def derivative(
        self, outputs: list[Tensor], active: list[Tensor], vectors: Sequence[Tensor], recording: bool
    ) -> list[Tensor]:
        """The derivative, itself recorded if it is to be differentiated again."""

    def batched(self, mapped: Sequence[bool]) -> Function:
        return type(self)(self.function, self.wanted, mapped) if self.mapped is None else Looped(self, mapped)


class _Pull(_Derivative):
    """From a gradient for each output to those of the inputs."""

    def derivative(
        self, outputs: list[Tensor], active: list[Tensor], vectors: Sequence[Tensor], recording: bool
    ) -> list[Tensor]:
        return _gradients(outputs, active, vectors, recording)


class _Push(_Derivative):
    """From a tangent of each input to those of the outputs.

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
        inputs, wanted = ctx.saved_tensors, ctx.needs_input_grad[1:]
        found = iter(transformed(_Pull(ctx.function, wanted), (*inputs, *grads)))
        return None, *(next(found) if want else None for want in wanted)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Any:
        wanted = [v is not None for v in tangents[1:]]
        return transformed(_Push(ctx.function, wanted), (*ctx.saved_tensors, *(v for v in tangents if v is not None)))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *given: Any) -> Any:  # noqa: ARG004  (as torch calls it)
        function, *inputs = given
        mapped = [dim is not None for dim in in_dims[1:]]
        moved = [x if dim is None else x.movedim(dim, 0) for x, dim in zip(inputs, in_dims[1:], strict=True)]
        found = transformed(function.batched(mapped), moved)
        return found, (0,) * len(found)
