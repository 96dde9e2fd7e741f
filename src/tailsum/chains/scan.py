"""The forward recursion of a chain as scaled matrix products, and its derivatives of every order.

With `mass_t = exp(alpha_t - offset_t)` (largest entry 1) and E the column-scaled table of pair scores,

    total_t = mass_{t-1} E,        alpha_t = node_t + scale + log(total_t) + offset_{t-1}.

Constants that all states share (the largest node score, the largest scale) go to the offset, which is kept in float64.

The gradient flows back through the posterior `mass_{t-1}(i) E(i, j) / total_t(j)`, a linear recursion whose backward pass is
the same recursion in the other direction: `Flow` is its own derivative, of every order. The table's gradient needs no loop
over time: it is one product over all steps (`Table.gradient`).
"""

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tailsum.chains.ways.small_steps import small_flow, small_forward
from tailsum.numerics.kernels import fused
from tailsum.numerics.tiles import tile_size
from tailsum.scores.products import Products


class Forward(NamedTuple):
    """Forward messages: `alpha = log_mass + offset`, with log_mass `[T, B, N]` and offset `[T, B]` in float64.

    The offset carries no gradient: it is a constant that keeps long sequences within range.
    """

    log_mass: Tensor
    offset: Tensor


def forward_scan(node: Tensor, table: Products, tensors: tuple[Tensor, ...]) -> tuple[Forward, Tensor]:
    """Forward messages of every step, differentiable in `node [T, B, N]` and in the `tensors` of the pair scores.

    Also returns `total [T, B, N]`, the scaled sum that entered each state (one at the first step): where it is tiny, the
    products may have underflowed.
    """
    log_mass, gain, total = _Forward.apply(table, node, *tensors)
    return Forward(log_mass, gain.cumsum(0)), total


class _Forward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Products, node: Tensor, *tensors: Tensor) -> Any:
        peak = _peak(node, table)
        if table.suits_kernels and fused(node) and node.numel():
            from tailsum.numerics.fused.shared_steps import forward_steps  # noqa: PLC0415

            log_mass, highest, total = forward_steps(node - peak[..., None], table)
        else:
            log_mass, highest, total = small_forward(node, peak, table) or _forward_steps(node, peak, table)
        gain = peak.double() + highest.double()
        gain[1:] += table.centre
        ctx.table = table
        ctx.save_for_backward(node, log_mass, total, *tensors)
        ctx.mark_non_differentiable(gain, total)
        ctx.set_materialize_grads(False)
        return log_mass, gain, total

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
        flow = flow * factor if torch.is_grad_enabled() else flow.mul_(factor)
        return None, flow, *_table_gradient(ctx, table, mass, inverse * flow, tensors, first=2)


def _peak(node: Tensor, table: Products) -> Tensor:
    # The lowest number in place of minus infinity, which less itself is NaN.
    return table.highest(node).clamp_(min=torch.finfo(node.dtype).min)


def _forward_steps(node: Tensor, peak: Tensor, table: Products) -> tuple[Tensor, Tensor, Tensor]:
    """Messages `[T, B, N]` less their highest, the highest `[T, B]`, and the sum that entered each state."""
    log_mass, total, highest = torch.empty_like(node), torch.ones_like(node), torch.empty_like(peak)
    for t in range(len(node)):
        entered = table.push(t - 1, log_mass[t - 1].exp()) if t > 0 else None
        if entered is not None:
            total[t] = entered
        highest[t] = _message(node, peak, table, t, entered, log_mass[t])
    return log_mass, highest, total


def _message(node: Tensor, peak: Tensor, table: Products, t: int, entered: Tensor | None, out: Tensor) -> Tensor:
    """Fill `out [B, N]` with the message after the sum that `entered` position t; its highest number is returned, `[B]`."""
    torch.sub(node[t], peak[t, :, None], out=out)
    if entered is not None:
        out += entered.log().add_(table.column_scale[min(t - 1, table.steps - 1)])
    highest = table.highest(out).clamp_(min=torch.finfo(node.dtype).min)
    out -= highest[:, None]
    return highest


@torch.no_grad()
def raised_sum(node: Tensor, table: Products, reachable: Tensor, last: Tensor) -> Tensor:
    """The log-partition `[B]` with the table's floor under the sums that enter `reachable [T, B, N]` states, in float64."""
    peak, out, ends = _peak(node, table), torch.empty_like(node[0]), set(last.tolist())
    offset = result = torch.zeros(len(last), dtype=torch.float64, device=node.device)
    for t in range(len(node)):
        entered = None
        if t > 0:
            entered = table.push(t - 1, out.exp()).maximum(reachable[t].to(node.dtype) * table.floor)
            offset = offset + table.centre[min(t - 1, table.steps - 1)].repeat_interleave(len(last) // table.groups)
        offset = offset + peak[t].double() + _message(node, peak, table, t, entered, out).double()
        if t in ends:
            result = torch.where(last == t, table.summed(out.exp()).log().double() + offset, result)
    return result


@torch.no_grad()
def regained(source: Tensor, flow: Tensor, summed: Callable[[Tensor], Tensor] = lambda x: x.sum(-1)) -> Tensor:
    """A correction for the rounding of a gradient that flows back: factors `[T, B, 1]` close to one.

    Products drop small addends, which adds up over the steps. But the sum of the flow at a position must equal the sum of
    all sources from there on. Where numbers of both signs cancel, the sums say nothing, and the factor is one.
    """
    entered = summed(source).double().flip(0).cumsum(0).flip(0)
    # Several times faster than a norm, which needs no copy.
    few = flow.numel() <= tile_size(flow.device)
    norm = flow.abs().sum(-1, keepdim=True) if few else torch.linalg.vector_norm(flow, 1, -1, keepdim=True)
    total, size = summed(flow).double(), summed(norm)
    factor = torch.where(total.abs() > 0.5 * size, entered / total, 1.0)
    return torch.where((factor - 1.0).abs() < 0.05, factor, 1.0).to(flow.dtype)[..., None]


def inverse_total(table: Products, node: Tensor, log_mass: Tensor, total: Tensor) -> Tensor:
    """One over the sum that entered each state, zero where it is below the table's floor; differentiable."""
    usable = total >= table.floor
    inverse = torch.where(usable, total.reciprocal(), 0.0)
    if torch.is_grad_enabled():  # as a function of node and log_mass, the total is exp(log_mass - node + constants)
        change = node - log_mass
        inverse = inverse * torch.where(usable & (log_mass > -math.inf), change - change.detach(), 0.0).exp()
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
        if table.suits_kernels and fused(source) and source.numel():
            from tailsum.numerics.fused.shared_steps import flow_steps  # noqa: PLC0415

            x, h = flow_steps(table, reverse, source, inlet, after, before)
        else:
            small = small_flow(table, reverse, source, inlet, after, before)
            x, h = small or _flow_steps(table, reverse, source, inlet, after, before)
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


def _flow_steps(
    table: Products, reverse: bool, source: Tensor, inlet: Tensor | None, after: Tensor, before: Tensor
) -> tuple[Tensor, Tensor]:
    x, h = torch.empty_like(source), torch.zeros_like(source)
    order = range(len(source) - 1, -1, -1) if reverse else range(len(source))
    x[order[0]] = source[order[0]]
    for s, t in itertools.pairwise(order):
        y = before[s] * x[s]
        if inlet is not None:
            y += inlet[s]
        h[t] = table.pull(t, y) if reverse else table.push(s, y)
        torch.addcmul(source[t], after[t], h[t], out=x[t])
    return x, h


def _table_gradient(
    ctx: Any, table: Products, early: Tensor, late: Tensor, tensors: list[Tensor], first: int
) -> tuple[Tensor | None, ...]:
    """The gradient in the pair scores where state i of step t meets state j of step t+1 as `early_t(i) E(i, j) late_{t+1}(j)`."""
    if not any(ctx.needs_input_grad[first:]):
        return (None,) * len(tensors)
    if len(early) == 1:
        return tuple(map(torch.zeros_like, tensors))
    return table.gradient(early[:-1], late[1:], tuple(tensors))
