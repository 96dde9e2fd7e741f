"""Reductions, and their products with a table: what every recursion is made of.

A reduction is called as `reduce(x, dim)`. `log_sum_exp` sums in log space, and its gradient is the probability of each
entry. `highest` takes the maximum, and its gradient is one at one best entry. `Draw` sums too, but its gradient is one at
an entry drawn by these probabilities. So a sum over configurations that is written for any reduction gives marginals, a
best configuration or a random one, by its gradient.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tailsum.numerics.noise import gumbel
from tailsum.numerics.precision import product
from tailsum.numerics.stream import Parts, streamed
from tailsum.numerics.table import tile_size

Reduce = Callable[[Tensor, int], Tensor]


def log_sum_exp(x: Tensor, dim: int) -> Tensor:
    """`torch.logsumexp` with gradients, of every order, that stay finite where all entries are minus infinity."""
    highest = x.detach().amax(dim, keepdim=True)
    highest = highest.masked_fill(highest == -math.inf, 0.0)
    total = _exp(x - highest).sum(dim)
    return log_or_never(total) + highest.squeeze(dim)


def _exp(fresh: Tensor) -> Tensor:
    """The exponential of a tensor that nobody else uses."""
    return fresh.exp() if torch.is_grad_enabled() else fresh.exp_()


def log_or_never(total: Tensor) -> Tensor:
    """The logarithm, minus infinity (with no gradient) of zero."""
    empty = total == 0
    return total.masked_fill(empty, 1.0).log().masked_fill(empty, -math.inf)


def highest(x: Tensor, dim: int) -> Tensor:
    """The maximum; its gradient is one at one of the highest entries."""
    return x.max(dim).values if torch.is_grad_enabled() and x.requires_grad else x.amax(dim)


@dataclass(frozen=True)
class Draw:
    """`log_sum_exp` whose gradient is one at an entry drawn by its probability, with fresh noise in each backward pass."""

    generator: torch.Generator | None

    def __call__(self, x: Tensor, dim: int) -> Tensor:
        """The sum over one dimension."""
        return _Draw.apply(x, dim, self.generator)


class _Draw(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, generator: torch.Generator | None) -> Tensor:
        ctx.save_for_backward(x)
        ctx.dim, ctx.generator = dim, generator
        return log_sum_exp(x, dim)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        drawn = gumbel(x, ctx.generator).argmax(ctx.dim, keepdim=True)
        return torch.zeros_like(x).scatter(ctx.dim, drawn, grads[0].unsqueeze(ctx.dim)), None, None


def log_product(x: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """`log sum_i exp(x[r, i]) table[i, j]`, and where it is so small that the product may have lost something."""
    peak = x.detach().amax(-1, keepdim=True)
    peak = peak.masked_fill(peak == -math.inf, 0.0)
    total = product(_exp(x - peak), table)
    limits = torch.finfo(x.dtype)
    return log_or_never(total) + peak, total.detach() < limits.tiny / limits.eps * x.shape[-1]


@torch.no_grad()
def reached(x: Tensor, scores: Tensor) -> Tensor:
    """Where something arrives, however little."""
    return product((x > -math.inf).to(x.dtype), (scores > -math.inf).to(x.dtype)) > 0


def column_tops(scores: Tensor) -> Tensor:
    """The largest score of each column, zero where all are minus infinity."""
    top = scores.detach().amax(-2, keepdim=True)
    return top.masked_fill(top == -math.inf, 0.0)


class LogProduct:
    """`out[r, j] = log sum_i exp(x[r, i] + scores[i, j])`, or the maximum in place of the sum; leading dimensions batch.

    The sum is a matrix product of exponentials, each side scaled by its maximum. Where that could lose something that
    matters below the smallest number of the type, it is repeated in log space, which is right for scores of any size.
    """

    def __init__(self, scores: Tensor, reduce: Reduce = log_sum_exp) -> None:
        self.scores, self.reduce = scores, reduce
        if reduce is log_sum_exp:
            self.top = column_tops(scores)
            self.scaled = _exp(scores - self.top)

    def __call__(self, x: Tensor) -> Tensor:
        if self.reduce is not log_sum_exp:
            return self._tiled(x)
        out, small = log_product(x, self.scaled)
        return self._tiled(x) if self._lost(x, small) else out + self.top

    def _lost(self, x: Tensor, small: Tensor) -> bool:
        """Whether the product may lack something that no rounding explains."""
        return bool(small.any()) and bool((small & reached(x, self.scores)).any())

    def _tiled(self, x: Tensor) -> Tensor:
        """With no product: a tile of columns at a time."""

        def tile(parts: Parts) -> Parts:
            (columns,), (x,) = parts
            return Parts((self.reduce(columns[..., :, None, :] + x[..., None, :, :], -1),))

        lead = torch.broadcast_shapes(x.shape[:-2], self.scores.shape[:-2])
        chunk = max(1, tile_size(x.device) // max(1, lead.numel() * x.shape[-2] * x.shape[-1]))
        return streamed(tile, Parts((self.scores.mT,), (x,)), chunk, 1).rows[0].mT
