"""Sums of weights, and of scores in log space, with one number for each score."""

from typing import Any

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


# These save time or memory in torch-struct. Here they are the plain semirings, as there is nothing to save.
FastLogSemiring = LogSemiring


def CheckpointSemiring(cls: type[Semiring], min_size: int = 0) -> type[Semiring]:
    """The semiring itself: backward passes keep no products of tables."""
    return cls


def CheckpointShardSemiring(cls: type[Semiring], max_size: int, min_size: int = 0) -> type[Semiring]:
    """The semiring itself."""
    return cls
