"""Log-partition and messages by kernels in log space; first derivatives by kernels too, higher ones by a reference.

In float32, so not where all paths break a mask such as -1e9 (`has_digits`).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from tailsum.chains import plan
from tailsum.chains.messages import Forward, furthest_fall, has_digits
from tailsum.chains.ways.scan import regained
from tailsum.numerics.kernels import kernels
from tailsum.numerics.tensors import finite
from tailsum.scores.potential import Potential

if TYPE_CHECKING:
    from tailsum.numerics.fused.log_steps import Messages

Value = TypeVar("Value")
Params = tuple[Tensor, ...]  # a table, or factors, as kernels take them


def fused_log_partition(
    node: Tensor, pairs: Potential, last: Tensor, reference: Callable[..., Tensor]
) -> Tensor | None:
    """Log Z `[B]` in float64 from scores `node [B, T, N]` and a flat potential; `last [B]` is each last position.

    None where its gradients would have too few digits.
    """
    pairs = _tabled(node, pairs)
    total, fell = _LogPartition.apply(_of_tensors(reference, pairs), last, node, *pairs.tensors)
    return total if not total.requires_grad or has_digits(fell) else None


def fused_messages(node: Tensor, pairs: Potential, last: Tensor, reference: Callable[..., Forward]) -> Forward | None:
    """Forward messages, or None if they would have too few digits; arguments as of `fused_log_partition`."""
    pairs = _tabled(node, pairs)
    log_mass, gain, fell = _Messages.apply(_of_tensors(reference, pairs), last, node, *pairs.tensors)
    return Forward(log_mass, gain.cumsum(0)) if has_digits(fell) else None


def _of_tensors(reference: Callable[..., Value], pairs: Potential) -> Callable[..., Value]:
    """The reference as a function of the tensors of the pair scores."""
    return lambda node, *tensors: reference(node, pairs.with_tensors(tensors))


def _tabled(node: Tensor, pairs: Potential) -> Potential:
    """With few states, a table in place of factors, for the batch or for each step of each sequence.

    One product makes them all, whereas each step of a kernel would have to wait for its scores.
    """
    batch, _, n = node.shape
    if pairs.lead[0] == batch:
        return pairs.within(4) if n <= plan.ALONE else pairs
    return pairs.tabled()


class _LogPartition(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, reference: Callable[..., Tensor], last: Tensor, node: Tensor, *params: Tensor) -> Any:
        from tailsum.numerics.fused.log_steps import log_partition  # noqa: PLC0415

        messages = _entered(ctx, reference, last, node, params)
        fell = furthest_fall(messages.highest)
        ctx.mark_non_differentiable(fell)
        return log_partition(messages, ctx.pairs, last), fell

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        grad = grads[0]

        def rescaled(flow: Tensor) -> Tensor:
            # At each position, the gradient of log Z but for rounding, which adds up over the steps.
            total = flow.sum(-1)
            return flow.mul_(torch.where(total == 0, 1.0, grad.to(flow.dtype)[:, None] / total)[..., None])

        return _gradients(ctx, grad, ctx.reference, rescaled, grad=grad.contiguous())


class _Messages(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, reference: Callable[..., Forward], last: Tensor, node: Tensor, *params: Tensor) -> Any:
        messages = _entered(ctx, reference, last, node, params)
        highest = finite(messages.highest)
        gain = messages.peak.double() + highest.double()
        gain[1:] += ctx.pairs.centre.double().mT.repeat_interleave(ctx.pairs.per_group(len(node)), 1)
        fell = furthest_fall(messages.highest)
        ctx.mark_non_differentiable(gain, fell)
        ctx.set_materialize_grads(False)
        return messages.alpha - highest[..., None], gain, fell

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        grad = grads[0]
        if grad is None:
            return (None,) * len(ctx.needs_input_grad)

        def rescaled(flow: Tensor) -> Tensor:
            return flow.mul_(regained(grad, flow.transpose(0, 1)).transpose(0, 1))

        return _gradients(ctx, grad, lambda *x: ctx.reference(*x).log_mass, rescaled, source=grad)


def _entered(ctx: Any, reference: Callable[..., Any], last: Tensor, node: Tensor, params: Params) -> "Messages":
    """The messages, saved for `_gradients`."""
    from tailsum.numerics.fused.log_steps import enter  # noqa: PLC0415
    from tailsum.numerics.fused.scores import Pairs  # noqa: PLC0415

    ctx.reference, ctx.pairs = reference, Pairs(params)
    messages = enter(node, ctx.pairs, last)
    ctx.save_for_backward(last, *messages, node, *params)
    return messages


def _gradients(
    ctx: Any, grad: Tensor, reference: Callable[..., Tensor], rescaled: Callable[[Tensor], Tensor], /, **source: Tensor
) -> tuple[Tensor | None, ...]:
    """The gradients in all arguments: by kernels, or by the reference if they will be differentiated."""
    from tailsum.numerics.fused.log_gradients import flow_back, pair_gradient  # noqa: PLC0415
    from tailsum.numerics.fused.log_steps import Messages  # noqa: PLC0415
    from tailsum.numerics.fused.reference import reference_gradients  # noqa: PLC0415

    last, *saved = ctx.saved_tensors
    messages, (node, *params) = Messages(*saved[:4]), saved[4:]
    if torch.is_grad_enabled():
        with kernels("never"):
            return None, None, *reference_gradients(reference, (node, *params), ctx.needs_input_grad[2:], grad)
    flow = rescaled(flow_back(messages, ctx.pairs, last, **source))
    if any(ctx.needs_input_grad[3:]) and node.shape[1] > 1:
        return None, None, flow, *pair_gradient(messages, flow, ctx.pairs, last)
    return None, None, flow, *(torch.zeros_like(p) for p in params)
