"""Small operations on tensors of scores. Minus infinity is the score of a forbidden part."""

import functools
import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from tailsum.numerics.transforms import every, values_of

_FEW = 1 << 22  # numbers that a GPU copies faster than it answers


def take(table: Tensor, index: Tensor) -> Tensor:
    """Rows `index [*lead, k]` of `table [*lead, n, d]`, the leading dimensions broadcast: `[*lead, k, d]`.

    One look-up in a flat table, whose backward pass adds up only the rows that were used.
    """
    *lead, n, d = table.shape
    if 0 in (*lead, *index.shape):  # torch's look-up of nothing has no backward pass
        return table.flatten()[:0].reshape(*torch.broadcast_shapes(lead, index.shape[:-1]), index.shape[-1], d)
    if lead:
        if index.shape[:-1] != table.shape[:-2]:
            index = index.expand(*torch.broadcast_shapes(lead, index.shape[:-1]), -1)
        if math.prod(lead) > 1:
            index = index + n * torch.arange(math.prod(lead), device=index.device).view(*lead, 1)
    return F.embedding(index, table.reshape(math.prod(lead) * n, d))


def working_type(*tensors: Tensor) -> torch.dtype:
    """The dtype to compute in: the widest dtype of the scores, at least float32."""
    widest = functools.reduce(torch.promote_types, [x.dtype for x in tensors if x.is_floating_point()])
    return torch.float32 if widest in (torch.float16, torch.bfloat16) else widest


def largest(scores: Tensor) -> float:
    """The largest absolute value of the finite scores; zero if there are none."""
    return finite(scores).abs().max().item() if scores.numel() else 0.0


def scaled(scores: Tensor, factor: Tensor | float) -> Tensor:
    """Every score times `factor`; minus infinity and masks by the lowest number stay, without a gradient in the factor."""
    masked = scores < torch.finfo(scores.dtype).min / 4
    return torch.where(masked, scores, scores.masked_fill(masked, 0.0) * factor)


# A little above the logarithm of the smallest normal number.
_LEAST = {torch.float32: -85.0, torch.float64: -700.0}


def exponentials(fresh: Tensor) -> Tensor:
    """The exponentials of a temporary tensor, computed in place where no graph is recorded.

    Those below the range of the dtype are zero there. On a CPU the exponential function would take ten times as long for
    such numbers, which finite masks and cold models are full of.
    """
    if torch.is_grad_enabled():
        return fresh.exp()
    least, some = _LEAST[fresh.dtype], fresh[..., ::8, :]  # one row in eight shows whether it is worth the time
    if fresh.device.type != "cpu" or not some.numel() or some.amin() >= least:
        return fresh.exp_()
    return torch.threshold_(fresh.clamp_(min=least).exp_(), 1.001 * math.exp(least), 0.0)


def finite(scores: Tensor) -> Tensor:
    """Zero in place of minus infinity."""
    return scores.masked_fill(scores == -math.inf, 0.0)


def unmasked(scores: Tensor) -> Tensor:
    """Minus infinity in place of finite masks such as -1e30 or the lowest number, beside which other scores lose all digits.

    There is no copy without masks, except of few numbers on a GPU, where a copy takes less time than to wait for an answer.
    """
    recorded = scores.requires_grad and torch.is_grad_enabled()
    few = scores.is_cuda and scores.is_floating_point() and scores.numel() <= _FEW and not recorded
    return scores.masked_fill(scores < lowest_score(scores.dtype), -math.inf) if few or has_masks(scores) else scores


def has_masks(scores: Tensor) -> bool:
    """Whether scores, if that is what they are, hold minus infinity or finite masks."""
    if not scores.is_floating_point() or not scores.numel():
        return False
    return not values_of(scores).detach().amin().item() >= lowest_score(scores.dtype)


def lowest_score(dtype: torch.dtype) -> float:
    """What is lower is a mask."""
    return max(-1e29, torch.finfo(dtype).min / 4)


def without_nan(x: Tensor) -> Tensor:
    """Zero in place of NaN and plus infinity, in a floating-point tensor."""
    return x.masked_fill(~(x < math.inf), 0.0) if x.is_floating_point() else x


def as_values(scores: Tensor) -> Tensor:
    """Zero in place of minus infinity, and in place of masks by the lowest finite number, whose sums would overflow."""
    return scores.masked_fill(scores < torch.finfo(scores.dtype).min / 4, 0.0)


def flattened(x: Tensor, trailing: int, batch_shape: torch.Size) -> Tensor:
    """`[*batch, steps, ...]`, with `trailing` dimensions after the steps, as `[b, steps, ...]`; b is 1 if the batch shares it."""
    lead, rest = x.shape[:-trailing], x.shape[-trailing:]
    if not lead:
        return x[None, None]
    if lead[:-1].numel() == 1:
        return x.reshape(1, lead[-1], *rest)
    return x.expand(*batch_shape, lead[-1], *rest).reshape(batch_shape.numel(), lead[-1], *rest)


def without_common(scores: Tensor, axes: int) -> Tensor:
    """Scores minus about their maximum over the last `axes`: the same distribution if each table is used exactly once.

    The number subtracted has no digit below the last digit of the largest score, so that finite masks lose none.
    """
    if not scores.numel():
        return scores
    dims, values = tuple(range(-axes, 0)), scores.detach()
    highest, lowest = finite(values.amax(dims, keepdim=True)), values.amin(dims, keepdim=True)
    if not every(lowest > -math.inf):
        lowest = finite(values).amin(dims, keepdim=True)
    largest = torch.maximum(highest.abs(), lowest.abs())
    unit = torch.ldexp(torch.full_like(largest, torch.finfo(scores.dtype).eps), torch.frexp(largest).exponent)
    return scores - (highest / unit).round() * unit


def at_step(tensor: Tensor, trailing: int, t: int) -> Tensor:
    """Step t of `[*batch, steps, ...]`, with `trailing` dimensions after the steps. The steps may be 1, or the dimension absent."""
    if tensor.dim() <= trailing:
        return tensor
    steps = tensor.shape[-trailing - 1]
    return tensor.select(-trailing - 1, t if steps > 1 else 0)
