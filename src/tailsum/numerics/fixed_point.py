"""Fixed points `z = step(z)` with derivatives of every order and constant memory.

By the implicit function theorem the backward pass does not need the iterations. With J the derivative of the step in z,
an incoming gradient g becomes `w = g + J' w`, another fixed point, which is then pulled back through one step.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tailsum.numerics.gradients import gradients, tracked
from tailsum.numerics.precision import full_precision

Step = Callable[[Tensor], Tensor]
Prepare = Callable[[Sequence[Tensor]], Step]  # builds the step from its parameters


class Iterated(NamedTuple):
    """The number of iterations of each row, and the change in its last one, both `[B]`."""

    iterations: Tensor
    change: Tensor


@dataclass(frozen=True)
class Iteration:
    """Steps from a start `[B, Z]` until no row changes by more than `tolerance`, at most `limit` of them.

    `on_finish` is called with the result and `linear`, which is True for the gradient of a fixed point. A damped step
    goes only the fraction `step_size` of the way; changes are measured for the whole way, whatever the damping.
    """

    limit: int
    tolerance: float
    on_finish: Callable[[Iterated, bool], None]
    step_size: float = 1.0
    linear: bool = False

    def __call__(self, step: Step, z: Tensor) -> Tensor:
        count = torch.zeros(len(z), dtype=torch.long, device=z.device)
        change = torch.full((len(z),), math.inf, dtype=z.dtype, device=z.device)
        for _ in range(self.limit):
            after = step(z)
            moving = change > self.tolerance
            count += moving
            change = torch.where(moving, self._change(z.detach(), after.detach()) / self.step_size, change)
            z = after
            if self.limit > 1 and not (change > self.tolerance).any():
                break
        self.on_finish(Iterated(count, change), self.linear)
        return z

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
            out = prepare(params)(point)

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
