"""Semirings of one number for each score: sums of weights, of scores in log space, and maxima."""

import torch
from jaxtyping import Float
from torch import Tensor

from tailsum.compat.torch_struct.semirings.base import Make, Semiring, raw_or_plain
from tailsum.numerics import reduce
from tailsum.structure.terms import tensors_in


class StdSemiring(Semiring):
    """Sums and products of weights; a dynamic program takes weights, at least zero, in place of their logarithms."""

    @classmethod
    def sum(cls, xs: Float[Tensor, "size ..."], dim: int = -1) -> Float[Tensor, "size ..."]:
        return xs.sum(dim)

    @classmethod
    def mul(cls, a: Float[Tensor, "size ..."], b: Float[Tensor, "size ..."]) -> Float[Tensor, "size ..."]:
        return a * b

    @classmethod
    def matmul(cls, a: Float[Tensor, "size ..."], b: Float[Tensor, "size ..."]) -> Float[Tensor, "size ..."]:
        return a @ b

    @classmethod
    def of_sum(cls, make: Make, potentials: Tensor | tuple[Tensor, ...], raw: bool) -> Tensor:
        if any((x < 0).any() for x in tensors_in(potentials)):
            raise ValueError("log_potentials of a StdSemiring are weights and must be at least 0: got one below")
        logs = potentials.log() if isinstance(potentials, Tensor) else tuple(x.log() for x in potentials)
        return raw_or_plain(make(logs).partition.exp(), raw)


class LogSemiring(Semiring):
    """Sums of exponentials in log space: log-partitions, whose gradients are marginals."""

    zero, one = float("-inf"), 0.0

    @classmethod
    def sum(cls, xs: Float[Tensor, "size ..."], dim: int = -1) -> Float[Tensor, "size ..."]:
        return reduce.log_sum_exp(xs, dim)

    @classmethod
    def mul(cls, a: Float[Tensor, "size ..."], b: Float[Tensor, "size ..."]) -> Float[Tensor, "size ..."]:
        return a + b

    @classmethod
    def prod(cls, xs: Float[Tensor, "size ..."], dim: int = -1) -> Float[Tensor, "size ..."]:
        return xs.sum(dim)

    @classmethod
    def of_sum(cls, make: Make, potentials: Tensor | tuple[Tensor, ...], raw: bool) -> Tensor:
        return raw_or_plain(make(potentials).partition, raw)

    @classmethod
    def of_marginals(
        cls, make: Make, potentials: Tensor | tuple[Tensor, ...], raw: bool
    ) -> Tensor | tuple[Tensor, ...]:
        return make(potentials).marginals


class MaxSemiring(LogSemiring):
    """Maxima, whose gradients are the best configuration."""

    @classmethod
    def sum(cls, xs: Float[Tensor, "size ..."], dim: int = -1) -> Float[Tensor, "size ..."]:
        return torch.max(xs, dim).values

    @classmethod
    def of_sum(cls, make: Make, potentials: Tensor | tuple[Tensor, ...], raw: bool) -> Tensor:
        return raw_or_plain(make(potentials).max, raw)

    @classmethod
    def of_marginals(
        cls, make: Make, potentials: Tensor | tuple[Tensor, ...], raw: bool
    ) -> Tensor | tuple[Tensor, ...]:
        return make(potentials).argmax


class SparseMaxSemiring(Semiring):
    """Not here: sums by sparsemax depend on the order in which a recursion takes them, so they have no value of their own."""
