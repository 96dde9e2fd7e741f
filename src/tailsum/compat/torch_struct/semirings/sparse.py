"""Sums by sparsemax, whose gradients are sparse: recursions give marginals with many zeros (Mensch & Blondel 2018)."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from tailsum.compat.torch_struct.semirings.base import OfLogarithms


class SparseMaxSemiring(OfLogarithms):
    """The highest mean score minus half the sum of squared weights, over all weights of the choices; the weights are its gradient.

    Sums of sums depend on their order, so values depend on the recursion: chains multiply neighbouring steps.
    """

    @classmethod
    def sum(cls, xs: Float[Tensor, "size ..."], dim: int = -1) -> Float[Tensor, "size ..."]:
        weights = sparsemax(xs, dim)
        mean = torch.where(weights > 0, weights * xs, 0.0).sum(dim)
        value = mean + 0.5 * (1 - weights.square().sum(dim))  # of a single choice, its score
        return value.masked_fill(~(weights > 0).any(dim), -math.inf)


def sparsemax(xs: Float[Tensor, "..."], dim: int) -> Float[Tensor, "..."]:
    """The point of the simplex nearest to the scores (Martins & Astudillo 2016); zeros where all are minus infinity.

    >>> sparsemax(torch.tensor([1.0, 0.5, -2.0]), 0)
    tensor([0.7500, 0.2500, 0.0000])
    """
    scores = xs.detach()
    ranked = scores.sort(dim, descending=True).values
    rank = torch.ones_like(ranked).cumsum(dim)
    lowest = torch.where(1 + rank * ranked > ranked.cumsum(dim), ranked, math.inf).amin(dim, keepdim=True)
    used = scores >= lowest
    count = used.sum(dim, keepdim=True)
    threshold = (torch.where(used, xs, 0.0).sum(dim, keepdim=True) - 1) / count.clamp(min=1)
    return torch.where(used, xs - threshold, 0.0)
