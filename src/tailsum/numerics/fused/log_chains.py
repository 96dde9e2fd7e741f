"""Log Z of chains by the steps of `log_steps.py`, and its gradients."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tailsum.numerics.fused.kernel import Kept
from tailsum.numerics.fused.log_gradients import flow_back, pair_gradient
from tailsum.numerics.fused.log_steps import Messages, enter, log_partition
from tailsum.numerics.fused.scores import Pairs
from tailsum.numerics.fused.small_tables import LOST, has_digits


def forward(node: Tensor, *params: Tensor, last: Tensor) -> tuple[Tensor, Kept]:
    """Log Z `[B]` in float64 from scores `node [B, T, N]` and a table or two factors; `last [B]` is each last position."""
    pairs = Pairs(params)
    messages = enter(node, pairs, last)
    return log_partition(messages, pairs, last), (*messages, *params)


def backward(kept: Kept, grad: Tensor, wanted: Sequence[bool], *, last: Tensor) -> Sequence[Tensor | None] | None:
    """The gradients in all inputs; None where they have too few digits."""
    messages, params = Messages(*kept[:4]), kept[4:]
    if not has_digits(falls(messages), LOST):
        return None
    pairs = Pairs(params)
    flow = flow_back(messages, pairs, last, grad=grad.contiguous())
    # At each position, the gradient of log Z but for rounding, which adds up over the steps.
    total = flow.sum(-1)
    flow.mul_(torch.where(total == 0, 1.0, grad.to(flow.dtype)[:, None] / total)[..., None])
    return flow, *gradients_of_pairs(messages, flow, pairs, last, wanted)


def gradients_of_pairs(
    messages: Messages, flow: Tensor, pairs: Pairs, last: Tensor, wanted: Sequence[bool]
) -> Sequence[Tensor | None]:
    """The gradients in a table or two factors, if wanted, from that in the scores of states."""
    if not any(wanted[1:]):
        return [None] * len(wanted[1:])
    if flow.shape[1] > 1:
        return pair_gradient(messages, flow, pairs, last)
    return [torch.zeros_like(x) for x in (pairs.left, pairs.right)[: len(wanted) - 1]]


def falls(messages: Messages) -> Tensor:
    """By how much the highest message falls in each step; where there is no path, it is below all finite masks."""
    return -torch.where(messages.highest < -1e30, 0.0, messages.highest)
