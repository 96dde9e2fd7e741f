"""Small operations on tensors of scores that several rooms need. Minus infinity stands for what is forbidden."""

import functools
import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor


def take(table: Tensor, index: Tensor) -> Tensor:
    """Rows `index [*lead, k]` of `table [*lead, n, d]`, the leading dimensions broadcast: `[*lead, k, d]`.

    One look-up in one flat table, whose backward pass adds up the rows that were used, not all.
    """
    *lead, n, d = table.shape
    if lead:
        index = index.expand(*torch.broadcast_shapes(lead, index.shape[:-1]), -1)
        index = index + n * torch.arange(math.prod(lead), device=index.device).view(*lead, 1)
    return F.embedding(index, table.reshape(math.prod(lead) * n, d))


def working_type(*tensors: Tensor) -> torch.dtype:
    """The type to compute in: the widest of the scores' types, float32 for half precision."""
    widest = functools.reduce(torch.promote_types, [x.dtype for x in tensors if x.is_floating_point()])
    return torch.float32 if widest in (torch.float16, torch.bfloat16) else widest


def largest(scores: Tensor) -> float:
    """The size of the largest finite score; zero of none."""
    return finite(scores).abs().max().item() if scores.numel() else 0.0


def scaled(scores: Tensor, factor: Tensor | float) -> Tensor:
    """Every score times `factor`; minus infinity and masks by the lowest number stay, and do not depend on the factor."""
    masked = scores < torch.finfo(scores.dtype).min / 4
    return torch.where(masked, scores, scores.masked_fill(masked, 0.0) * factor)


def finite(scores: Tensor) -> Tensor:
    """Zero in place of minus infinity."""
    return scores.masked_fill(scores == -math.inf, 0.0)


def as_values(scores: Tensor) -> Tensor:
    """Scores to take means of: zero in place of minus infinity, and of masks by the lowest number, whose sums overflow."""
    return scores.masked_fill(scores < torch.finfo(scores.dtype).min / 4, 0.0)


def flattened(x: Tensor, trailing: int, batch_shape: torch.Size) -> Tensor:
    """`[*batch, steps, ...]` as `[b, steps, ...]`, `trailing` dimensions last; b, and steps if there are none, may be 1."""
    lead, rest = x.shape[:-trailing], x.shape[-trailing:]
    if not lead:
        return x[None, None]
    if lead[:-1].numel() == 1:
        return x.reshape(1, lead[-1], *rest)
    return x.expand(*batch_shape, lead[-1], *rest).reshape(batch_shape.numel(), lead[-1], *rest)


def without_common(scores: Tensor, axes: int) -> Tensor:
    """Scores less the highest over the last few axes, which is the same to whatever holds one entry of each table."""
    return scores - finite(scores.detach().amax(tuple(range(-axes, 0)), keepdim=True)) if scores.numel() else scores


def at_step(tensor: Tensor, trailing: int, t: int) -> Tensor:
    """Step t of a tensor `[*batch, steps, ...]` with `trailing` dimensions after the steps, which may be shared."""
    if tensor.dim() <= trailing:
        return tensor
    steps = tensor.shape[-trailing - 1]
    return tensor.select(-trailing - 1, t if steps > 1 else 0)
