"""Marginals of a chain, of states and of pairs, with gradients that keep their digits.

The gradient of `sum_t w_t . marginals_t` equals the gradient of the mean of the score `sum_t w_t(x_t)` over paths.
`mean_score` computes it without the part of the score that all states share. That part grows along the chain; derivatives
of the log-partition would include it, and cancel it only at the end.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tailsum.chains.forward import forward_messages
from tailsum.numerics.gradients import gradients
from tailsum.numerics.tensors import finite
from tailsum.numerics.tiles import tile_rows
from tailsum.scores.potential import Potential

Function = Callable[[Sequence[Tensor]], Tensor]  # of the node scores and other tensors
Mean = Callable[[Sequence[Tensor], Tensor], Tensor]  # of the same and of values of parts: their mean over paths


def chain_marginals(chances: Function, mean: Mean, tensors: Sequence[Tensor]) -> Tensor:
    """The probabilities `chances(tensors)` of states or of pairs; differentiable any number of times."""
    return _Marginals.apply(chances, mean, *tensors)


def state_chances(log_sum: Function, tensors: Sequence[Tensor]) -> Tensor:
    """The gradient of `log_sum(tensors)` in the first of the tensors."""
    with torch.enable_grad():
        nodes, *rest = tensors
        nodes = nodes.detach().requires_grad_()
        return torch.autograd.grad(log_sum((nodes, *rest)).sum(), nodes, materialize_grads=True)[0]


def pair_chances(node: Tensor, pairs: Potential, last: Tensor, chance: Tensor) -> Tensor:
    """Probabilities of pairs `[B, T-1, N, N]` from those of states `[B, T, N]`; other arguments as of `forward_messages`.

    Given the later state, the earlier one has the probability `softmax_i(log_mass_t(i) + score_t(i, j))`. A few steps at a
    time: there is no memory but for the result.
    """
    messages = forward_messages(node, pairs, last).log_mass.transpose(0, 1)
    batch, length, n = messages.shape
    shared = pairs.block() if pairs.lead[1] == 1 else None
    result = node.new_empty(batch, length - 1, n, n)
    together = tile_rows(batch * n * n, node.device)
    for start in range(0, length - 1, together):
        steps = slice(start, min(start + together, length - 1))
        scores = pairs.map(lambda x, steps=steps: x[:, steps]).block() if shared is None else shared
        ways = messages[:, steps, :, None] + scores
        ways.sub_(finite(ways.amax(-2, keepdim=True))).exp_()
        total, after = ways.sum(-2), chance[:, start + 1 : steps.stop + 1]
        torch.mul(ways, torch.where(after > 0, after / total, 0.0)[..., None, :], out=result[:, steps])
    return result


class _Marginals(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, chances: Function, mean: Mean, *tensors: Tensor) -> Tensor:
        ctx.mean = mean
        ctx.save_for_backward(*tensors)
        return chances([x.detach() for x in tensors])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        mean = gradients(lambda x: ctx.mean(x, grads[0]).sum(), ctx.saved_tensors, ctx.needs_input_grad[2:])
        return None, None, *mean
