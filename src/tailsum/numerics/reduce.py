"""Reductions, and their products with a table: the building blocks of every recursion.

A reduction is called as `reduce(x, dim)`. `log_sum_exp` sums in log space; its gradient is the softmax. `highest` is
the maximum; its gradient is one at one best entry. `Draw` sums too; its gradient is one at an entry sampled from the
softmax. So, depending on the reduction, the gradient of a sum over configurations is the marginals, a best configuration or a
sample.
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
from tailsum.numerics.tensors import finite
from tailsum.numerics.tiles import tile_size

Reduce = Callable[[Tensor, int], Tensor]


def log_sum_exp(x: Tensor, dim: int) -> Tensor:
    """`torch.logsumexp` with gradients, of every order, that stay finite where all entries are minus infinity."""
    highest = finite(x.detach().amax(dim, keepdim=True))
    return log_or_never(_exp(x - highest).sum(dim)) + highest.squeeze(dim)


def suited(reduce: Reduce, scores: Tensor) -> Reduce:
    """The reduction, or a faster one with the same values, and the same gradients if they are recorded.

    The time of a recursion over charts is the number of its small operations: `torch.logsumexp` is a single one, and so is
    its gradient, which is right if all of `scores` are finite.
    """
    if reduce is not log_sum_exp or (torch.is_grad_enabled() and not math.isfinite(scores.detach().sum().item())):
        return reduce
    return torch.logsumexp


def _exp(fresh: Tensor) -> Tensor:
    """The exponential of a temporary, in place where no graph is recorded."""
    return fresh.exp() if torch.is_grad_enabled() else fresh.exp_()


def log_or_never(total: Tensor) -> Tensor:
    """The logarithm of numbers that are zero or not tiny; of zero it is minus infinity, with zero gradient."""
    empty = total == 0
    return total.masked_fill(empty, 1.0).log().masked_fill(empty, -math.inf)


def highest(x: Tensor, dim: int) -> Tensor:
    """The maximum; its gradient is one at one of the highest entries."""
    return x.max(dim).values if torch.is_grad_enabled() and x.requires_grad else x.amax(dim)


@dataclass(frozen=True)
class Draw:
    """`log_sum_exp` with gradient one at an entry sampled from the softmax, with new noise in each backward pass."""

    generator: torch.Generator | None

    def __call__(self, x: Tensor, dim: int) -> Tensor:
        return _Draw.apply(x, dim, self.generator)

    def seed(self, device: torch.device) -> Tensor:
        """A new seed for the random numbers of a kernel, `[1]`, which stays on the device."""
        return torch.randint(1 << 31, (1,), generator=self.generator, device=device)


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


def shares(reduce: Reduce, x: Tensor) -> Tensor:
    """The gradient of a reduction over the first dimension; for a sum, zero where all entries are minus infinity."""
    if reduce is log_sum_exp:
        return x.softmax(0).nan_to_num_(0.0)
    chosen = gumbel(x, reduce.generator) if isinstance(reduce, Draw) else x
    return torch.zeros_like(x).scatter_(0, chosen.max(0, keepdim=True).indices, 1.0)


class _Log(torch.autograd.Function):
    """The logarithm; of zero it is minus infinity, with zero gradient.

    The second derivative of `log` is an inverse square, which overflows where the inverse itself does not. Here the
    inverse is a function of the logarithm, so derivatives of every order multiply by it once at a time, and each time the
    other factor is as small as the inverse is large.
    """

    @staticmethod
    def forward(ctx: Any, total: Tensor) -> Tensor:
        log = total.log()
        ctx.save_for_backward(total, log)
        return log

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        total, log = ctx.saved_tensors
        empty = total == 0
        inverse = total.detach().reciprocal().masked_fill(empty, 0.0)
        if torch.is_grad_enabled():
            inverse = inverse * (log.detach() - log).masked_fill(empty, 0.0).exp()
        return grads[0] * inverse


def log_product(x: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """`log sum_i exp(x[r, i]) table[i, j]`, and where the sum is so small that terms may have underflowed."""
    peak = finite(x.detach().amax(-1, keepdim=True))
    total = product(_exp(x - peak), table)
    limits = torch.finfo(x.dtype)
    return _Log.apply(total) + peak, total.detach() < limits.tiny / limits.eps * x.shape[-1]


@torch.no_grad()
def reached(x: Tensor, scores: Tensor) -> Tensor:
    """Where `sum_i exp(x[r, i] + scores[i, j])` is positive, however small."""
    return product((x > -math.inf).to(x.dtype), (scores > -math.inf).to(x.dtype)) > 0


def column_tops(scores: Tensor) -> Tensor:
    """The largest score of each column, zero where all are minus infinity."""
    return finite(scores.detach().amax(-2, keepdim=True))


class LogProduct:
    """`out[r, j] = log sum_i exp(x[r, i] + scores[i, j])`, or the maximum in place of the sum, in batches.

    The sum is a matrix product of exponentials, each side scaled by its maximum. If a positive sum may have underflowed,
    all are computed again in log space, which is accurate for scores of any size.
    """

    def __init__(self, scores: Tensor, reduce: Reduce = log_sum_exp) -> None:
        self.scores, self.reduce = scores, reduce
        if reduce is log_sum_exp:
            self.top = column_tops(scores)
            self.scaled = _exp(scores - self.top)

    def __call__(self, x: Tensor) -> Tensor:
        if self.reduce is not log_sum_exp:
            return self._tiled(x, self.scores)
        out, small = log_product(x, self.scaled)
        return self._tiled(x, self.scores) if self._lost(x, small, self.scores) else out + self.top

    @torch.no_grad()
    def back(self, x: Tensor) -> Tensor:
        """`out[r, i] = log sum_j exp(x[r, j] + scores[i, j])`, from the same exponentials, without gradients."""
        out, small = log_product(x + self.top, self.scaled.mT)
        return self._tiled(x, self.scores.mT) if self._lost(x, small, self.scores.mT) else out

    @staticmethod
    def _lost(x: Tensor, small: Tensor, scores: Tensor) -> bool:
        """Whether a positive sum may have underflowed."""
        return bool(small.any()) and bool((small & reached(x, scores)).any())

    def _tiled(self, x: Tensor, scores: Tensor) -> Tensor:
        """The same in log space, a tile of columns at a time."""

        def tile(parts: Parts) -> Parts:
            (columns,), (x,) = parts
            return Parts((self.reduce(columns[..., :, None, :] + x[..., None, :, :], -1),))

        lead = torch.broadcast_shapes(x.shape[:-2], scores.shape[:-2])
        chunk = max(1, tile_size(x.device) // max(1, lead.numel() * x.shape[-2] * x.shape[-1]))
        return streamed(tile, Parts((scores.mT,), (x,)), chunk, 1).rows[0].mT
