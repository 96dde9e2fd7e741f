"""Maxima: the best score, the k best, and sparse maxima."""

import math
from typing import Any

import torch
from jaxtyping import Float, Num
from torch import Tensor

from tailsum.compat.torch_struct.semirings.base import OfLogarithms
from tailsum.compat.torch_struct.semirings.plain import LogSemiring
from tailsum.numerics.check import at_least


class MaxSemiring(LogSemiring):
    """Maxima, whose gradients are the best configuration."""

    sum_from, marginals_from = "max", "argmax"

    @classmethod
    def sum(cls, xs: Float[Tensor, "size ..."], dim: int = -1) -> Float[Tensor, "size ..."]:
        return torch.max(xs, dim).values

    @classmethod
    def sparse_sum(cls, xs: Num[Tensor, "size ..."], dim: int = -1) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The maximum, and where it comes from: which of the semiring's numbers (the first), and the place in `dim`."""
        best = torch.max(xs, dim)
        return best.values, (torch.zeros_like(best.indices), best.indices)


FastMaxSemiring = MaxSemiring  # faster in torch-struct only


def KMaxSemiring(k: int) -> type[LogSemiring]:
    """The semiring of the k largest: `KMaxSemiring(3)`."""
    at_least(1, k=k)
    return type("KMaxSemiring", (_KMax,), {"k": k})


class _KMax(LogSemiring):
    k = 1

    @classmethod
    def size(cls) -> int:
        return cls.k

    @classmethod
    def convert(cls, potentials: Float[Tensor, "..."]) -> Float[Tensor, "size ..."]:
        none = torch.full_like(potentials, cls.zero)
        return torch.stack([potentials, *[none] * (cls.k - 1)])

    @classmethod
    def one_(cls, xs: Float[Tensor, "size ..."]) -> Float[Tensor, "size ..."]:
        cls.zero_(xs)[0] = cls.one
        return xs

    @classmethod
    def sum(cls, xs: Num[Tensor, "size ..."], dim: int = -1) -> Num[Tensor, "size ..."]:
        return cls.sparse_sum(xs, dim)[0]

    @classmethod
    def sparse_sum(cls, xs: Num[Tensor, "size ..."], dim: int = -1) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The k largest, and where they come from: which of the k numbers, and the place in `dim`."""
        best = xs.movedim(dim, 0).flatten(0, 1).topk(cls.k, 0)
        return best.values, (best.indices % cls.k, best.indices // cls.k)

    @classmethod
    def mul(cls, a: Float[Tensor, "size ..."], b: Float[Tensor, "size ..."]) -> Float[Tensor, "size ..."]:
        return (a[:, None] + b).flatten(0, 1).topk(cls.k, 0).values

    @classmethod
    def of_sum(cls, struct: Any, potentials: Any, lengths: Any, raw: bool) -> Tensor:
        best = struct.distribution(potentials, lengths).kmax(cls.k)
        return best if raw else best[0]

    @classmethod
    def of_marginals(cls, struct: Any, potentials: Any, lengths: Any, raw: bool) -> Any:
        model = struct.distribution(potentials, lengths)
        return model.topk(cls.k) if raw else model.argmax


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
