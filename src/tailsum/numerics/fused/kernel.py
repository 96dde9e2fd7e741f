"""The one pattern for kernels: what computes the same in plain torch, which inputs a kernel takes, and how to try it.

A `Kernel` is declared once, beside its reference, and called like it. It chooses between the two, and is differentiable any number of
times: first derivatives are the kernel's own, those of higher order come from the reference. Tests, the check of what the compiler
makes of it, and the benchmarks go over all that are `declared`. README.md here says how to add one.
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
        """The result, and the tensors to keep for `backward`; None where it has to be left to the reference after all.

        Of several results, a tuple, the first alone has gradients.
        """
        ...

    def backward(
        self, kept: Kept, grad: Tensor, wanted: Sequence[bool], **settings: Any
    ) -> Sequence[Tensor | None] | None:
        """The gradients in the inputs, None where they are not wanted; None where they have to be left to the reference.

        A module without it has results without gradients.
        """
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

    def __post_init__(self) -> None:
        _declared.append(self)

    def __call__(self, *inputs: Tensor, **settings: Any) -> Any:
        if not fused(*inputs) or not self.takes(*inputs, **settings):
            return self.reference(*inputs, **settings)
        with torch.no_grad():
            launched = self.launches.forward(*(x.detach() for x in inputs), **settings)
        if launched is None:
            with kernels("never"):
                return self.reference(*inputs, **settings)
        if not torch.is_grad_enabled() or not any(x.requires_grad for x in inputs) or not self.differentiable:
            return launched[0]
        return _Launched.apply(self, settings, launched, *inputs)

    @torch.no_grad()
    def slopes(self, wanted: Sequence[bool], *inputs: Tensor, **settings: Any) -> Sequence[Tensor | None] | None:
        """The gradients of the sum of all results in the wanted inputs, by kernels alone; None where they have to be left to autograd."""
        inputs = tuple(x.detach() for x in inputs)
        if not fused(*inputs) or not self.takes(*inputs, **settings):
            return None
        launched = self.launches.forward(*inputs, **settings)
        return launched and self.launches.backward(launched[1], torch.ones_like(launched[0]), wanted, **settings)

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
        if isinstance(result, tuple):
            ctx.mark_non_differentiable(*result[1:])
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        kernel, settings, count = ctx.how
        inputs, kept, wanted = ctx.saved_tensors[:count], ctx.saved_tensors[count:], ctx.needs_input_grad[3:]
        slopes = None if torch.is_grad_enabled() else kernel.launches.backward(kept, grads[0], wanted, **settings)
        if slopes is None:
            with kernels("never"):
                slopes = gradients(lambda x: _first(kernel.reference(*x, **settings)), inputs, wanted, grads[0])
        return None, None, None, *slopes


def _first(result: Any) -> Tensor:
    return result[0] if isinstance(result, tuple) else result
