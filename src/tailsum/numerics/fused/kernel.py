"""The one pattern for kernels: what computes the same in plain torch, which inputs a kernel takes, and how to try it.

A `Kernel` is declared once, beside its reference, and called like it. It chooses between the two, and is differentiable any number of
times: first derivatives are the kernel's own, those of higher order come from the reference, or from the kernel of its slope, when
they are asked for. Tests, the check of what the compiler makes of it, and the benchmarks go over all that are `declared`.
README.md here says how to add one.
"""

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from tailsum.numerics.gradients import gradients
from tailsum.numerics.kernels import fused, kernels

Kept = tuple[Tensor, ...]


class Example(NamedTuple):
    """Inputs to try a kernel on: tensors of scores, and settings by name."""

    inputs: tuple[Tensor, ...]
    settings: Mapping[str, Any] = {}


class Launches(Protocol):
    """What the module of a kernel has. It is imported when it is first used, as it needs Triton."""

    def forward(self, *inputs: Tensor, **settings: Any) -> tuple[Any, Kept] | None:
        """The result, and the tensors to keep for `backward`; None where it has to be left to the reference after all."""
        ...

    def backward(self, kept: Kept, grad: Tensor, wanted: Sequence[bool], **settings: Any) -> Sequence[Tensor | None]:
        """The gradients in the inputs, None where they are not wanted; a module without it has results without gradients."""
        ...


@dataclass(frozen=True, eq=False)
class Kernel:
    """A computation by plain torch or by the kernels of `numerics/fused/{module}.py`: call it with tensors of scores, and settings."""

    module: str
    reference: Callable[..., Any]
    example: Callable[..., Example]  # random inputs, from the sizes below
    sizes: Sequence[Mapping[str, int]]  # that tests try, odd ones among them
    large: Mapping[str, int]  # that the benchmarks time
    takes: Callable[..., bool] = lambda *_, **__: True  # whether there is a kernel for such inputs
    # Of the result `[n]`, and its slope along a direction: `[2, n]` from the inputs and as many directions. For second derivatives.
    slope: "Kernel | None" = None

    def __post_init__(self) -> None:
        _declared.append(self)

    def __call__(self, *inputs: Tensor, **settings: Any) -> Any:
        if not fused(*inputs) or not self.takes(*inputs, **settings):
            return self.reference(*inputs, **settings)
        with torch.no_grad():
            launched = self.launches.forward(*(x.detach() for x in inputs), **settings)
        if launched is None:
            return self.reference(*inputs, **settings)
        if not torch.is_grad_enabled() or not any(x.requires_grad for x in inputs) or not self.differentiable:
            return launched[0]
        return _Launched.apply(self, settings, launched, *inputs)

    @property
    def launches(self) -> Launches:
        return importlib.import_module(f"tailsum.numerics.fused.{self.module}")

    @property
    def differentiable(self) -> bool:
        return hasattr(self.launches, "backward")


_declared: list[Kernel] = []


def declared() -> Iterator[Kernel]:
    """All kernels declared in the modules imported so far."""
    return iter(_declared)


class _Launched(torch.autograd.Function):
    """Gives a result of a kernel its gradients."""

    @staticmethod
    def forward(
        ctx: Any, kernel: Kernel, settings: Mapping[str, Any], launched: tuple[Tensor, Kept], *inputs: Tensor
    ) -> Tensor:
        result, kept = launched
        ctx.save_for_backward(*inputs, *kept)
        ctx.how = kernel, settings, len(inputs)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        kernel, settings, count = ctx.how
        inputs, kept, wanted = ctx.saved_tensors[:count], ctx.saved_tensors[count:], ctx.needs_input_grad[3:]
        if not torch.is_grad_enabled():
            return None, None, None, *kernel.launches.backward(kept, grads[0], wanted, **settings)
        return None, None, None, *_Slopes.apply(kernel, settings, kept, wanted, grads[0], *inputs)


class _Slopes(torch.autograd.Function):
    """The gradients of a kernel, recorded: whoever records them need not differentiate them, and pays only if they do."""

    @staticmethod
    def forward(
        ctx: Any, kernel: Kernel, settings: Mapping[str, Any], kept: Kept, wanted: Sequence[bool], *tensors: Tensor
    ) -> tuple[Tensor | None, ...]:
        ctx.save_for_backward(*tensors)
        ctx.how = kernel, settings, wanted
        slopes = kernel.launches.backward(kept, tensors[0], wanted, **settings)
        return tuple(slope if want else None for slope, want in zip(slopes, wanted, strict=True))

    @staticmethod
    def backward(ctx: Any, *vectors: Tensor | None) -> Any:
        kernel, settings, wanted = ctx.how
        along = [v for v, want in zip(vectors, wanted, strict=True) if want and v is not None]

        def by_reference(tensors: Sequence[Tensor]) -> Tensor:
            grad, *inputs = tensors
            active = [x for x, want in zip(inputs, wanted, strict=True) if want]
            with kernels("never"):
                result = kernel.reference(*inputs, **settings)
            slopes = torch.autograd.grad(result, active, grad, create_graph=True, materialize_grads=True)
            return torch.cat([(slope * v).flatten() for slope, v in zip(slopes, along, strict=True)]).sum()

        def by_slope(tensors: Sequence[Tensor]) -> Tensor:
            assert kernel.slope is not None
            grad, *inputs = tensors
            directions = [torch.zeros_like(x) if v is None else v for x, v in zip(inputs, vectors, strict=True)]
            return (kernel.slope(*inputs, *directions, **settings)[1] * grad).sum()

        function = by_reference if kernel.slope is None else by_slope
        return None, None, None, None, *gradients(function, ctx.saved_tensors, ctx.needs_input_grad[4:])
