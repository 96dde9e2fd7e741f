"""The base of all semirings: arithmetic on tensors, and what a dynamic program computes under one.

A semiring keeps `size()` numbers for each score, in a first dimension that `convert` adds and `unconvert` removes. Its
arithmetic is for your own recursions. The dynamic programs of this package do not run it: `struct(semiring).sum(..)` asks
the structure for what the semiring stands for, such as the log-partition or the k best.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Make = Callable[[Any], Any]  # from log-potentials to a distribution


class Semiring:
    """Two operations, `sum` over a dimension and `mul`, with neutral elements `zero` and `one`."""

    zero = 0.0
    one = 1.0

    @classmethod
    def size(cls) -> int:
        """How many numbers stand for each score."""
        return 1

    @classmethod
    def convert(cls, potentials: Float[Tensor, "..."]) -> Float[Tensor, "size ..."]:
        """Scores as numbers of the semiring."""
        return potentials[None]

    @classmethod
    def unconvert(cls, potentials: Float[Tensor, "size ..."]) -> Float[Tensor, "..."]:
        """The result that the semiring is for."""
        return potentials[0]

    @classmethod
    def sum(cls, xs: Float[Tensor, "size ..."], dim: int = -1) -> Float[Tensor, "size ..."]:
        """The sum over a dimension, not the first."""
        raise NotImplementedError(f"{cls.__name__} has no sum")

    @classmethod
    def mul(cls, a: Float[Tensor, "size ..."], b: Float[Tensor, "size ..."]) -> Float[Tensor, "size ..."]:
        """The product of two numbers, or tensors of them."""
        raise NotImplementedError(f"{cls.__name__} has no mul")

    @classmethod
    def times(cls, *xs: Float[Tensor, "size ..."]) -> Float[Tensor, "size ..."]:
        """The product of several tensors."""
        return functools.reduce(cls.mul, xs)

    @classmethod
    def prod(cls, xs: Float[Tensor, "size ..."], dim: int = -1) -> Float[Tensor, "size ..."]:
        """The product over a dimension."""
        return functools.reduce(cls.mul, xs.unbind(dim))

    @classmethod
    def plus(cls, a: Float[Tensor, "size ..."], b: Float[Tensor, "size ..."]) -> Float[Tensor, "size ..."]:
        """The sum of two tensors."""
        return cls.sum(torch.stack(torch.broadcast_tensors(a, b), -1), -1)

    @classmethod
    def dot(cls, a: Float[Tensor, "size ..."], b: Float[Tensor, "size ..."]) -> Float[Tensor, "size ..."]:
        """The inner product over the last dimension."""
        return cls.sum(cls.mul(a, b), -1)

    @classmethod
    def matmul(cls, a: Float[Tensor, "size ..."], b: Float[Tensor, "size ..."]) -> Float[Tensor, "size ..."]:
        """The matrix product."""
        return cls.dot(a[..., :, None, :], b.mT[..., None, :, :])

    @classmethod
    def zero_(cls, xs: Float[Tensor, "size ..."]) -> Float[Tensor, "size ..."]:
        """Fill with zero, in place."""
        return xs.fill_(cls.zero)

    @classmethod
    def one_(cls, xs: Float[Tensor, "size ..."]) -> Float[Tensor, "size ..."]:
        """Fill with one, in place."""
        return xs.fill_(cls.one)

    @classmethod
    def zero_mask_(cls, xs: Float[Tensor, "size ..."], mask: Bool[Tensor, "..."]) -> None:
        """Fill with zero where `mask` is true, in place."""
        xs.copy_(torch.where(mask, cls.zero_(torch.empty_like(xs)), xs))

    # What a dynamic program computes.

    @classmethod
    def of_sum(cls, make: Make, potentials: Any, raw: bool) -> Tensor:
        """`struct(semiring).sum(potentials)`; `raw` keeps the semiring's first dimension."""
        raise NotImplementedError(_unknown(cls, "sum"))

    @classmethod
    def of_marginals(cls, make: Make, potentials: Any, raw: bool) -> Any:
        """`struct(semiring).marginals(potentials)`: the gradient of the sum, in torch-struct."""
        raise NotImplementedError(_unknown(cls, "marginals"))


def raw_or_plain(value: Tensor, raw: bool) -> Tensor:
    """A result of a semiring of size one, with its first dimension if `raw`."""
    return value[None] if raw else value


def _unknown(semiring: type[Semiring], what: str) -> str:
    return (
        f"{semiring.__name__} has no {what} here: dynamic programs do not run the arithmetic of a semiring, they compute what "
        "a known one stands for. For a recursion of your own, write a structure: docs/your_own_structure.md"
    )
