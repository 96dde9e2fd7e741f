"""Marginals of a chain, with gradients that keep their digits.

The gradient of `sum_t w_t . marginals_t` equals the gradient of the mean of the score `sum_t w_t(x_t)` over paths.
`mean_score` computes it without the part of the score that all states share. That part grows along the chain; derivatives
of the log-partition would include it, and cancel it only at the end.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tailsum.numerics.gradients import gradients

LogSum = Callable[[Sequence[Tensor]], Tensor]  # from the node scores and other tensors to the log-partition `[*batch]`
Mean = Callable[[Sequence[Tensor], Tensor], Tensor]  # from the same and node values to their mean over paths `[*batch]`


def chain_marginals(log_sum: LogSum, mean: Mean, tensors: Sequence[Tensor]) -> Tensor:
    """The gradient of `log_sum(tensors)` in the first of the tensors; differentiable any number of times."""
    return _Marginals.apply(log_sum, mean, *tensors)


class _Marginals(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, log_sum: LogSum, mean: Mean, *tensors: Tensor) -> Tensor:
        ctx.mean = mean
        ctx.save_for_backward(*tensors)
        with torch.enable_grad():
            nodes, *rest = (x.detach() for x in tensors)
            total = log_sum((nodes.requires_grad_(), *rest)).sum()
            return torch.autograd.grad(total, nodes, materialize_grads=True)[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        mean = gradients(lambda x: ctx.mean(x, grads[0]).sum(), ctx.saved_tensors, ctx.needs_input_grad[2:])
        return None, None, *mean
