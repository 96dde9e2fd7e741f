"""Forward messages by kernels in log space; their first derivatives by kernels too, further ones by the reference."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tailsum.chains.scan import Forward, regained
from tailsum.numerics.kernels import fused, kernels
from tailsum.numerics.precision import product
from tailsum.numerics.tensors import finite

ALONE = 512  # up to so many states the kernels in log space are faster than products of matrices
WIDEST = 256  # of factors


def suits_log_steps(node: Tensor, params: tuple[Tensor, ...]) -> bool:
    """Whether to use the kernels in log space: with few states, or pair scores of each sequence's own."""
    if not fused(node, *params) or not node.numel() or len(node) == 1:
        return False
    few, own = node.shape[-1] <= ALONE, len(params[0]) == node.shape[1]
    return (few or own) and (len(params) == 1 or (few and not own) or params[0].shape[-1] <= WIDEST)


def fused_messages(
    node: Tensor, params: tuple[Tensor, ...], reference: Callable[[Tensor, tuple[Tensor, ...]], Forward]
) -> Forward:
    """Forward messages from scores `node [T, B, N]` and the `params` of a `Table`."""
    if len(params) == 2 and len(params[0]) != node.shape[1]:  # few states: one table serves the batch
        params = (product(params[0], params[1].mT),)
    log_mass, gain = _Messages.apply(reference, node, *params)
    return Forward(log_mass, gain.cumsum(0))


class _Messages(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, reference: Callable[..., Forward], node: Tensor, *params: Tensor) -> tuple[Tensor, Tensor]:
        from tailsum.numerics.fused.log_steps import enter  # noqa: PLC0415
        from tailsum.numerics.fused.scores import Pairs  # noqa: PLC0415

        pairs = Pairs(params)
        peak = finite(node.amax(-1))
        alpha, entering, highest = enter(node - peak[..., None], pairs)
        highest = finite(highest)
        log_mass = alpha.sub_(highest[..., None])
        gain = peak.double() + highest.double()
        gain[1:] += pairs.centre.double().mT.repeat_interleave(pairs.per_group(node.shape[1]), 1)
        ctx.reference, ctx.pairs = reference, pairs
        ctx.save_for_backward(log_mass, entering, node, *params)
        ctx.mark_non_differentiable(gain)
        ctx.set_materialize_grads(False)
        return log_mass, gain

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        grad = grads[0]
        log_mass, entering, node, *params = ctx.saved_tensors
        if grad is None:
            return None, None, *(None for _ in params)
        wanted = ctx.needs_input_grad[1:]
        if torch.is_grad_enabled():  # the gradient will be differentiated
            with kernels("never"):
                found = ctx.reference(node, tuple(params)).log_mass
            active = [x for x, want in zip((node, *params), wanted, strict=True) if want]
            results = iter(torch.autograd.grad(found, active, grad, create_graph=True, materialize_grads=True))
            return None, *(next(results) if want else None for want in wanted)
        from tailsum.numerics.fused.log_steps import flow_back, pair_gradient  # noqa: PLC0415

        flow = flow_back(grad.contiguous(), log_mass, entering, ctx.pairs)
        flow.mul_(regained(grad, flow))
        of_pairs = pair_gradient(log_mass, entering, flow, ctx.pairs) if any(wanted[1:]) else (None,) * len(params)
        return None, flow, *of_pairs
