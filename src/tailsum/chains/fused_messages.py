"""Log-partition and messages by kernels in log space; first derivatives by kernels too, further ones by the reference."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tailsum.chains.scan import Forward, regained
from tailsum.numerics.kernels import fits_tiles, fused, kernels
from tailsum.numerics.precision import product
from tailsum.numerics.table import fits_budget
from tailsum.numerics.tensors import finite

ALONE = 512  # up to so many states the kernels in log space are faster than products of matrices

Params = tuple[Tensor, ...]


def suits_log_steps(batch: int, n: int, params: Params) -> bool:
    """Whether to use the kernels in log space: with few states, or pair scores of each sequence's own."""
    if not batch or not fused(*params):
        return False
    few, own = n <= ALONE, len(params[0]) == batch
    return (few or own) and (fits_tiles(params) or (few and not own))  # few states of the whole batch get a table


def fused_log_partition(node: Tensor, params: Params, last: Tensor, reference: Callable[..., Tensor]) -> Tensor:
    """Log Z `[B]` in float64 from scores `node [B, T, N]` and the `params` of a `Table`; `last [B]` is each last position."""
    return _LogPartition.apply(reference, last, node, *_tabled(node, params))


def fused_messages(node: Tensor, params: Params, last: Tensor, reference: Callable[..., Forward]) -> Forward:
    """Forward messages; the same arguments."""
    log_mass, gain = _Messages.apply(reference, last, node, *_tabled(node, params))
    return Forward(log_mass, gain.cumsum(0))


def _tabled(node: Tensor, params: Params) -> Params:
    """Where there are few states, a table in place of factors: one for the batch, or for each step of each sequence one.

    Those are made in one product. In the kernel, a step waits for its scores.
    """
    if len(params) == 1:
        return params
    (batch, _, n), size = node.shape, math.prod(params[0].shape[:2]) * node.shape[-1] ** 2 * node.element_size()
    if len(params[0]) == batch and not (n <= ALONE and fits_budget(4 * size)):
        return params
    return (product(params[0], params[1].mT),)


class _LogPartition(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, reference: Callable[..., Tensor], last: Tensor, node: Tensor, *params: Tensor) -> Tensor:
        from tailsum.numerics.fused.log_steps import enter, log_partition  # noqa: PLC0415
        from tailsum.numerics.fused.scores import Pairs  # noqa: PLC0415

        pairs = Pairs(params)
        messages = enter(node, pairs, last)
        ctx.reference, ctx.pairs = reference, pairs
        ctx.save_for_backward(last, *messages, node, *params)
        return log_partition(messages, pairs, last)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        from tailsum.numerics.fused.log_gradients import flow_back, pair_gradient  # noqa: PLC0415
        from tailsum.numerics.fused.log_steps import Messages  # noqa: PLC0415

        last, *found = ctx.saved_tensors
        messages, (node, *params) = Messages(*found[:4]), found[4:]
        if torch.is_grad_enabled():
            return None, None, *_by_reference(ctx, grads[0], lambda x, *y: ctx.reference(x, y), (node, *params))
        flow = flow_back(messages, ctx.pairs, last, grad=grads[0].contiguous())
        total = flow.sum(-1)  # of a position: the gradient of log Z, but for rounding that adds up over the steps
        flow.mul_(torch.where(total == 0, 1.0, grads[0].to(flow.dtype)[:, None] / total)[..., None])
        wanted = any(ctx.needs_input_grad[3:]) and node.shape[1] > 1
        return None, None, flow, *(pair_gradient(messages, flow, ctx.pairs, last) if wanted else _zeros(params))


class _Messages(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, reference: Callable[..., Forward], last: Tensor, node: Tensor, *params: Tensor) -> Any:
        from tailsum.numerics.fused.log_steps import enter  # noqa: PLC0415
        from tailsum.numerics.fused.scores import Pairs  # noqa: PLC0415

        pairs = Pairs(params)
        messages = enter(node, pairs, last)
        highest = finite(messages.highest)
        gain = messages.peak.double() + highest.double()
        gain[1:] += pairs.centre.double().mT.repeat_interleave(pairs.per_group(len(node)), 1)
        ctx.reference, ctx.pairs = reference, pairs
        ctx.save_for_backward(last, *messages, node, *params)
        ctx.mark_non_differentiable(gain)
        ctx.set_materialize_grads(False)
        return messages.alpha - highest[..., None], gain

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        from tailsum.numerics.fused.log_gradients import flow_back, pair_gradient  # noqa: PLC0415
        from tailsum.numerics.fused.log_steps import Messages  # noqa: PLC0415

        last, *found = ctx.saved_tensors
        messages, (node, *params), grad = Messages(*found[:4]), found[4:], grads[0]
        if grad is None:
            return None, None, None, *(None for _ in params)
        if torch.is_grad_enabled():
            return None, None, *_by_reference(ctx, grad, lambda x, *y: ctx.reference(x, y).log_mass, (node, *params))
        flow = flow_back(messages, ctx.pairs, last, source=grad)
        flow.mul_(regained(grad, flow.transpose(0, 1)).transpose(0, 1))
        wanted = any(ctx.needs_input_grad[3:]) and node.shape[1] > 1
        return None, None, flow, *(pair_gradient(messages, flow, ctx.pairs, last) if wanted else _zeros(params))


def _by_reference(ctx: Any, grad: Tensor, reference: Callable[..., Tensor], inputs: Params) -> list[Tensor | None]:
    """The gradient, which will be differentiated."""
    from tailsum.numerics.fused.reference import reference_gradients  # noqa: PLC0415

    with kernels("never"):
        return reference_gradients(reference, inputs, ctx.needs_input_grad[2:], grad)


def _zeros(params: list[Tensor]) -> list[Tensor]:
    return [torch.zeros_like(p) for p in params]
