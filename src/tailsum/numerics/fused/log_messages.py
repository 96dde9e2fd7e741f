"""Messages of chains by the steps of `log_steps.py`, and their gradients."""

from collections.abc import Sequence

from torch import Tensor

from tailsum.numerics.fused.kernel import Kept
from tailsum.numerics.fused.log_chains import falls, gradients_of_pairs
from tailsum.numerics.fused.log_gradients import flow_back
from tailsum.numerics.fused.log_steps import Messages, enter
from tailsum.numerics.fused.scores import Pairs
from tailsum.numerics.fused.small_tables import LOST, has_digits
from tailsum.numerics.gradients import regained
from tailsum.numerics.tensors import finite


def forward(node: Tensor, *params: Tensor, last: Tensor) -> tuple[tuple[Tensor, Tensor], Kept] | None:
    """Messages `[T, B, N]` less their highest, and what was subtracted from all up to each, `[T, B]` in float64.

    From scores `node [B, T, N]` and a table or two factors, up to `last [B]`. None where they would have too few digits.
    """
    pairs = Pairs(params)
    messages = enter(node, pairs, last)
    if not has_digits(falls(messages), LOST):
        return None
    highest = finite(messages.highest)
    gain = messages.peak.double() + highest.double()
    gain[1:] += pairs.centre.double().mT.repeat_interleave(pairs.per_group(len(node)), 1)
    return (messages.alpha - highest[..., None], gain.cumsum(0)), (*messages, *params)


def backward(kept: Kept, grad: Tensor, wanted: Sequence[bool], *, last: Tensor) -> Sequence[Tensor | None]:
    """The gradients in all inputs."""
    messages, pairs = Messages(*kept[:4]), Pairs(kept[4:])
    flow = flow_back(messages, pairs, last, source=grad)
    flow.mul_(regained(grad, flow.transpose(0, 1)).transpose(0, 1))
    return flow, *gradients_of_pairs(messages, flow, pairs, last, wanted)
