"""The forward recursion of a chain as scaled matrix products, and its derivatives of every order.

With `mass_t = exp(alpha_t - offset_t)` (largest entry 1) and E the column-scaled table of pair scores,

    total_t = mass_{t-1} E,        alpha_t = node_t + scale + log(total_t) + offset_{t-1}.

Constants that all states share (the largest node score, the largest scale) go to the offset, which is kept in float64.

The gradient flows back through the posterior `mass_{t-1}(i) E(i, j) / total_t(j)`, a linear recursion whose backward pass is
the same recursion in the other direction: `Flow` is its own derivative, of every order. The table's gradient needs no loop
over time: it is one product over all steps (`Table.gradient`).
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tailsum.chains import plan
from tailsum.chains.messages import Forward, furthest_fall
from tailsum.chains.ways import kernel_steps, plain_steps, small_steps
from tailsum.numerics.gradients import regained
from tailsum.scores.products import Products

WAYS = {"kernels": kernel_steps, "few states": small_steps, "steps": plain_steps}  # all with the same two functions


def forward_scan(node: Tensor, table: Products, tensors: tuple[Tensor, ...]) -> tuple[Forward, Tensor, Tensor]:
    """Forward messages of every step, differentiable in `node [T, B, N]` and in the `tensors` of the pair scores.

    Also returns `total [T, B, N]`, the scaled sum that entered each state (one at the first step): where it is tiny, the
    products may have underflowed. And by how much the highest message `fell` at most in one step.
    """
    log_mass, gain, total, fell = _Forward.apply(table, node, *tensors)
    return Forward(log_mass, gain.cumsum(0)), total, fell


def _first(table: Products, x: Tensor, run: Callable[[Any], tuple[Tensor, ...] | None]) -> Any:
    """The result of the first of the planner's ways that takes the range of these scores."""
    results = (run(WAYS[way]) for way in plan.recursions(table, x))
    return next(result for result in results if result is not None)


class _Forward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Products, node: Tensor, *tensors: Tensor) -> Any:
        peak = plain_steps.peaks(node, table)
        log_mass, highest, total = _first(table, node, lambda way: way.forward(node, peak, table))
        gain = peak.double() + highest.double()
        gain[1:] += table.centre
        fell = furthest_fall(highest)
        ctx.table = table
        ctx.save_for_backward(node, log_mass, total, *tensors)
        ctx.mark_non_differentiable(gain, total, fell)
        ctx.set_materialize_grads(False)
        return log_mass, gain, total, fell

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        grad = grads[0]
        if grad is None:
            return None, None, *(None for _ in ctx.table.pairs.tensors)
        table: Products = ctx.table
        node, log_mass, total, *tensors = ctx.saved_tensors
        mass, inverse = log_mass.exp(), inverse_total(table, node, log_mass, total)
        flow, _ = Flow.apply(table, True, grad, None, mass, inverse, *tensors)
        factor = regained(grad, flow, table.summed)
        recording = torch.is_grad_enabled()
        flow = flow * factor if recording else flow.mul_(factor)
        if not any(ctx.needs_input_grad[2:]):
            return None, flow, *(None for _ in tensors)
        late = inverse * flow if recording else inverse.mul_(flow)
        return None, flow, *_table_gradient(ctx, table, mass, late, tensors, first=2)


def inverse_total(table: Products, node: Tensor, log_mass: Tensor, total: Tensor) -> Tensor:
    """One over the sum that entered each state, zero where it is below the table's floor; differentiable."""
    inverse = total.reciprocal().masked_fill_(total < table.floor, 0.0)
    if torch.is_grad_enabled():  # as a function of node and log_mass, the total is exp(log_mass - node + constants)
        change = node - log_mass
        usable = (total >= table.floor) & (log_mass > -math.inf)
        inverse = inverse * torch.where(usable, change - change.detach(), 0.0).exp()
    return inverse


class Flow(torch.autograd.Function):
    """A linear recursion along the chain, backward in time (`reverse`) or forward.

        x_t = source_t + after_t * h_t,    h_t = E (before_s * x_s + inlet_s),    s = t+1 if reverse else t-1

    (E transposed when it runs forward). Returns x and h, `[T, B, N]`. `inlet` may be None.
    """

    @staticmethod
    def forward(
        ctx: Any,
        table: Products,
        reverse: bool,
        source: Tensor,
        inlet: Tensor | None,
        after: Tensor,
        before: Tensor,
        *tensors: Tensor,
    ) -> Any:
        x, h = _first(table, source, lambda way: way.flow(table, reverse, source, inlet, after, before))
        ctx.table, ctx.reverse = table, reverse
        ctx.save_for_backward(x, h, inlet, after, before, *tensors)
        return x, h

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        grad_x, grad_h = grads
        x, h, inlet, after, before, *tensors = ctx.saved_tensors
        flow, drawn = Flow.apply(ctx.table, not ctx.reverse, grad_x, grad_h, before, after, *tensors)
        sent = before * x if inlet is None else before * x + inlet
        received = after * flow + grad_h
        early, late = (received, sent) if ctx.reverse else (sent, received)
        table_gradient = _table_gradient(ctx, ctx.table, early, late, tensors, first=6)
        return None, None, flow, None if inlet is None else drawn, flow * h, drawn * x, *table_gradient


def _table_gradient(
    ctx: Any, table: Products, early: Tensor, late: Tensor, tensors: list[Tensor], first: int
) -> tuple[Tensor | None, ...]:
    """The gradient in the pair scores where state i of step t meets state j of step t+1 as `early_t(i) E(i, j) late_{t+1}(j)`."""
    if not any(ctx.needs_input_grad[first:]):
        return (None,) * len(tensors)
    if len(early) == 1:
        return tuple(map(torch.zeros_like, tensors))
    return table.gradient(early[:-1], late[1:], tuple(tensors))
