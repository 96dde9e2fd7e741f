"""The one pattern for kernels: what computes the same in plain torch, which inputs a kernel takes, and how to try it.

A `Kernel` is declared once, beside its reference, and called like it. It chooses between the two, and is differentiable any number of
times: first derivatives are the kernel's own, those of higher order come from the reference, or from a kernel of theirs. Tests, the check of what the compiler
makes of it, and the benchmarks go over all that are `declared`. README.md here says how to add one.
"""

import importlib
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor

from tailsum.numerics.gradients import gradients
from tailsum.numerics.kernels import fused, kernels

Kept = tuple[Tensor, ...]
LONG = 1.0  # seconds: a call that takes longer compiles its kernels, and says so in the log
_log = logging.getLogger("tailsum")


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

    # A module may also have `curve(kept, grad, directions, **settings)`: the gradients, in the inputs and in `grad`, of the sum of the
    # products of what `backward` returns with `directions` (None for zeros). Without it they come from `slope`, or the reference.


@dataclass(frozen=True, eq=False)
class Kernel:
    """A computation by plain torch or by the kernels of `numerics/fused/{module}.py`: call it with tensors of scores, and settings."""

    module: str
    reference: Callable[..., Any]
    example: Callable[..., Example]  # random inputs, from the sizes below
    sizes: Sequence[Mapping[str, int]]  # that tests try, odd ones among them
    large: Mapping[str, int]  # that the benchmarks time
    takes: Callable[..., bool] = lambda *_, **__: True  # whether there is a kernel for such inputs
    tolerance: float = 2e-5  # by how much results in float32 may differ from those of the reference in float64
    # Of the result `[n]`, and its slope along a direction: `[2, n]` from the inputs and as many directions. For second derivatives.
    slope: "Kernel | None" = None
    impossible: float = -math.inf  # what stands for something that cannot be, among the inputs

    def __post_init__(self) -> None:
        _declared.append(self)

    def __call__(self, *inputs: Tensor, **settings: Any) -> Any:
        if not fused(*inputs) or not self.takes(*inputs, **settings):
            return self.reference(*inputs, **settings)
        launched = self._launched(inputs, settings)
        if launched is None:
            with kernels("never"):
                return self.reference(*inputs, **settings)
        if not torch.is_grad_enabled() or not any(x.requires_grad for x in inputs) or not self.differentiable:
            return launched[0]
        return _Launched.apply(self, settings, launched, *inputs)

    @torch.no_grad()
    def _launched(self, inputs: Sequence[Tensor], settings: Mapping[str, Any]) -> tuple[Any, Kept] | None:
        started = time.perf_counter()
        launched = self.launches.forward(*(x.detach() for x in inputs), **settings)
        taken = time.perf_counter() - started
        if taken > LONG:
            _log.info(
                "%s: the first call took %.1f s, to compile kernels; Triton keeps them on disk", self.module, taken
            )
        return launched

    @torch.no_grad()
    def slopes(self, wanted: Sequence[bool], *inputs: Tensor, **settings: Any) -> Sequence[Tensor | None] | None:
        """The gradients of the sum of all results in the wanted inputs, by kernels alone; None where they have to be left to autograd."""
        if not fused(*inputs) or not self.takes(*inputs, **settings):
            return None
        launched = self._launched(inputs, settings)
        return launched and self.launches.backward(launched[1], torch.ones_like(launched[0]), wanted, **settings)

    @cached_property
    def launches(self) -> Launches:
        return cast("Launches", importlib.import_module(f"tailsum.numerics.fused.{self.module}"))

    @property
    def differentiable(self) -> bool:
        return hasattr(self.launches, "backward")


def unseen(*inputs: Tensor, **_: Any) -> bool:
    """For `takes`, where nobody has looked at the errors of a kernel on a card yet: it runs in the interpreter alone."""
    return not any(x.is_cuda for x in inputs)


_declared: list[Kernel] = []


def declared() -> Iterator[Kernel]:
    """All kernels declared in the modules imported so far."""
    return iter(_declared)


class _Launched(torch.autograd.Function):
    """Gives a result of a kernel its gradients."""

    @staticmethod
    def forward(
        ctx: Any, kernel: Kernel, settings: Mapping[str, Any], launched: tuple[Any, Kept], *inputs: Tensor
    ) -> Any:
        result, kept = launched
        ctx.save_for_backward(*inputs, *kept)
        ctx.how = kernel, settings, len(inputs)
        if isinstance(result, tuple):
            ctx.mark_non_differentiable(*result[1:])
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        record = _Slopes.apply if torch.is_grad_enabled() else _slopes
        return None, None, None, *record(*ctx.how, ctx.needs_input_grad[3:], grads[0], *ctx.saved_tensors)


def _slopes(
    kernel: Kernel, settings: Mapping[str, Any], count: int, wanted: Sequence[bool], grad: Tensor, *saved: Tensor
) -> Sequence[Tensor | None]:
    """The gradients in the `count` inputs, the first of what was `saved`; the others were kept by the kernel."""
    slopes = kernel.launches.backward(saved[count:], grad, wanted, **settings)
    return _by_reference(kernel, settings, wanted, saved[:count], grad) if slopes is None else slopes


def _by_reference(
    kernel: Kernel, settings: Mapping[str, Any], wanted: Sequence[bool], inputs: Sequence[Tensor], grad: Tensor
) -> Sequence[Tensor | None]:
    with kernels("never"):
        return gradients(lambda x: _first(kernel.reference(*x, **settings)), inputs, wanted, grad)


def _first(result: Any) -> Tensor:
    return result[0] if isinstance(result, tuple) else result


class _Slopes(torch.autograd.Function):
    """The gradients of a kernel, recorded: whoever records them need not differentiate them, and pays only if they do."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor | None, ...]:
        *how, grad = arguments[:5]
        ctx.save_for_backward(grad, *arguments[5:])
        ctx.how = how
        ctx.set_materialize_grads(False)
        return tuple(_slopes(*arguments))

    @staticmethod
    def backward(ctx: Any, *directions: Tensor | None) -> Any:
        kernel, settings, count, wanted = ctx.how
        grad, *saved = ctx.saved_tensors
        inputs, kept = saved[:count], saved[count:]
        curve = getattr(kernel.launches, "curve", None)
        if curve is not None and not torch.is_grad_enabled():
            of_inputs, of_grad = curve(kept, grad, directions, **settings)
        else:
            turned = _turned(kernel, settings, wanted, directions)
            *of_inputs, of_grad = gradients(turned, [*inputs, grad], [*wanted, True])
        return None, None, None, None, of_grad, *of_inputs, *(None for _ in kept)


def _turned(
    kernel: Kernel, settings: Mapping[str, Any], wanted: Sequence[bool], directions: Sequence[Tensor | None]
) -> Callable[[Sequence[Tensor]], Tensor]:
    """The sum of the products of the gradients with the directions, from the inputs and the gradient of the result."""

    def by_slope(given: Sequence[Tensor]) -> Tensor:
        assert kernel.slope is not None
        *inputs, grad = given
        along = [torch.zeros_like(x) if v is None else v for x, v in zip(inputs, directions, strict=True)]
        return (kernel.slope(*inputs, *along, **settings)[1] * grad).sum()

    def by_reference(given: Sequence[Tensor]) -> Tensor:
        *inputs, grad = given
        pairs = zip(_by_reference(kernel, settings, wanted, inputs, grad), directions, strict=True)
        return torch.stack([(x * y).sum() for x, y in pairs if x is not None and y is not None]).sum()

    return by_reference if kernel.slope is None else by_slope
