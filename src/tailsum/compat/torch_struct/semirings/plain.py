"""Semirings of one number for each score: sums of weights, of scores in log space, and maxima."""

from typing import Any

import torch
from jaxtyping import Float, Num
from torch import Tensor

from tailsum.compat.torch_struct.semirings.base import OfLogarithms, Semiring, raw_or_plain
from tailsum.numerics import reduce


class StdSemiring(Semiring):
    """Sums and products of weights: a dynamic program takes weights of any dtype, not their logarithms."""

    @classmethod
    def sum(cls, xs: Num[Tensor, "size ..."], dim: int = -1) -> Num[Tensor, "size ..."]:
        return xs.sum(dim)

    @classmethod
    def mul(cls, a: Num[Tensor, "size ..."], b: Num[Tensor, "size ..."]) -> Num[Tensor, "size ..."]:
        return a * b

    @classmethod
    def matmul(cls, a: Num[Tensor, "size ..."], b: Num[Tensor, "size ..."]) -> Num[Tensor, "size ..."]:
        return a @ b


class LogSemiring(OfLogarithms):
    """Sums of exponentials in log space: log-partitions, whose gradients are marginals."""

    sum_from, marginals_from = "partition", "marginals"  # the attributes of a distribution

    @classmethod
    def sum(cls, xs: Float[Tensor, "size ..."], dim: int = -1) -> Float[Tensor, "size ..."]:
        return reduce.log_sum_exp(xs, dim)

    @classmethod
    def of_sum(cls, struct: Any, potentials: Any, lengths: Any, raw: bool) -> Tensor:
        return raw_or_plain(getattr(struct.distribution(potentials, lengths), cls.sum_from), raw)

    @classmethod
    def of_marginals(cls, struct: Any, potentials: Any, lengths: Any, raw: bool) -> Any:
        return raw_or_plain(getattr(struct.distribution(potentials, lengths), cls.marginals_from), raw)


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
