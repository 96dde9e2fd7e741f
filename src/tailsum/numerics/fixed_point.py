"""Fixed points `z = step(z)` with derivatives of every order and constant memory.

By the implicit function theorem the backward pass does not need the iterations. With J the derivative of the step in z,
an incoming gradient g becomes `w = g + J' w`, another fixed point, which is then pulled back through one step.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from tailsum.numerics.gradients import gradients, tracked
from tailsum.numerics.precision import full_precision

Step = Callable[[Tensor], Tensor]
Prepare = Callable[[Sequence[Tensor]], Step]  # builds the step from its parameters


@runtime_checkable
class Steps(Protocol):
    """A step that can be repeated in a launch of its own, where no graph is recorded."""

    def __call__(self, z: Tensor) -> Tensor: ...

    def repeated(self, z: Tensor, limit: int, tolerance: float) -> "tuple[Tensor, Iterated]":
        """What `Iteration` returns and reports."""
        ...


@runtime_checkable
class Invertible(Protocol):
    """A step that knows how gradients at its fixed points are iterated."""

    def __call__(self, z: Tensor) -> Tensor: ...

    def pulled(self, z: Tensor, grad: Tensor) -> Step:
        """The step `w -> grad + J' w`, J the derivative at z."""
        ...


class Iterated(NamedTuple):
    """The number of iterations of each row, and the change in its last one, both `[B]`."""

    iterations: Tensor
    change: Tensor


@dataclass(frozen=True)
class Iteration:
    """Steps from a start `[B, Z]`, each row until it changes by at most `tolerance`, at most `limit` of them.

    `on_finish` is called with the result and `linear`, which is True for the gradient of a fixed point. A damped step
    goes only the fraction `step_size` of the way; changes are measured for the whole way, whatever the damping.
    """

    limit: int
    tolerance: float
    on_finish: Callable[[Iterated, bool], None]
    step_size: float = 1.0
    linear: bool = False

    def __call__(self, step: Step, z: Tensor) -> Tensor:
        if isinstance(step, Steps) and not torch.is_grad_enabled():
            z, iterated = step.repeated(z, self.limit, self.tolerance)
        else:
            z, iterated = self._one_by_one(step, z)
        self.on_finish(iterated, self.linear)
        return z

    def _one_by_one(self, step: Step, z: Tensor) -> tuple[Tensor, Iterated]:
        count = torch.zeros(len(z), dtype=torch.long, device=z.device)
        change = torch.full((len(z),), math.inf, dtype=z.dtype, device=z.device)
        moving, left = change > self.tolerance, len(z)
        for turn in range(self.limit):
            after = step(z)
            count += moving
            change = torch.where(moving, self._change(z.detach(), after.detach()) / self.step_size, change)
            z = after if left == len(z) else torch.where(moving[:, None], after, z)
            if turn + 1 < self.limit:
                moving = change > self.tolerance
                left = int(moving.sum())
                if not left:
                    break
        return z, Iterated(count, change)

    def _change(self, before: Tensor, after: Tensor) -> Tensor:
        """The change of each row, relative to `max(1, |entry|)`, or (linear) to the largest entry of the row."""
        if not before.shape[-1]:
            return before.new_zeros(len(before))
        moved = torch.where(after == before, 0.0, (after - before).abs_())  # -inf - -inf is NaN
        if self.linear:
            return moved.amax(-1) / after.abs().amax(-1).clamp_(min=torch.finfo(after.dtype).tiny)
        size = after.abs().clamp_(min=1.0)
        return (moved / size.masked_fill_(size == math.inf, 1.0)).amax(-1)


def fixed_point(prepare: Prepare, iterate: Iteration, start: Tensor, params: Sequence[Tensor]) -> Tensor:
    """The fixed point of `prepare(params)` reached from `start`; differentiable in the parameters.

    Autograd keeps `prepare` and `iterate` with the result. They must not hold the result, or it would never be freed.
    """
    return _FixedPoint.apply(prepare, iterate, start, *params)


class _FixedPoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, prepare: Prepare, iterate: Iteration, start: Tensor, *params: Tensor) -> Tensor:
        z = iterate(prepare(params), start)
        ctx.prepare, ctx.iterate = prepare, iterate
        ctx.save_for_backward(z, *params)
        return z

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        grad, z, *params = grads[0], *ctx.saved_tensors
        iterate = replace(ctx.iterate, linear=True)
        w = fixed_point(_pull(ctx.prepare), iterate, torch.zeros_like(grad), (grad, z, *params))
        point = z if torch.is_grad_enabled() else z.detach()
        return None, None, None, *gradients(lambda p: ctx.prepare(p)(point), params, ctx.needs_input_grad[3:], w)


def _pull(prepare: Prepare) -> Prepare:
    """A function from `(g, z, *params)` to the step `w -> g + J' w`, J the derivative of `prepare(params)` at z."""

    def prepared(inputs: Sequence[Tensor]) -> Step:
        recording = torch.is_grad_enabled()
        grad, *rest = inputs
        point, *params = (tracked(x, recording, i == 0) for i, x in enumerate(rest))
        with torch.enable_grad(), full_precision(grad.device):
            own = prepare(params)
            if isinstance(own, Invertible) and not recording:
                return own.pulled(point.detach(), grad)
            out = own(point)

        def step(w: Tensor) -> Tensor:
            if not out.requires_grad:
                return grad
            with full_precision(out.device):
                (pulled,) = torch.autograd.grad(
                    out, point, w, retain_graph=True, create_graph=recording, materialize_grads=True
                )
            return grad + pulled

        return step

    return prepared


def stationary(value: Callable[[Tensor, Sequence[Tensor]], Tensor], z: Tensor, params: Sequence[Tensor]) -> Tensor:
    """`value(z, params)`, stationary in z: the first derivative holds z fixed, and higher derivatives do not."""
    return _Stationary.apply(value, z, *params)


class _Stationary(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Callable[[Tensor, Sequence[Tensor]], Tensor], z: Tensor, *params: Tensor) -> Tensor:
        ctx.value = value
        ctx.save_for_backward(z, *params)
        return value(z, params)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        z, *params = ctx.saved_tensors
        point = z if torch.is_grad_enabled() else z.detach()
        return None, None, *gradients(lambda p: ctx.value(point, p), params, ctx.needs_input_grad[2:], grads[0])
