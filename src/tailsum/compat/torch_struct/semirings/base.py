"""The base of all semirings: arithmetic on tensors, and the results of a dynamic program that uses it.

A semiring keeps `size()` numbers for each score, in a first dimension that `convert` adds and `unconvert` removes.
`struct(semiring).sum(..)` runs a recursion in its arithmetic. Where a distribution computes the same result faster, such
as the log-partition or the k best, the semiring overrides `of_sum` and `of_marginals` to ask the distribution.
"""

import functools
import math
from typing import Any

import torch
from jaxtyping import Bool, Float, Num
from torch import Tensor

from tailsum.numerics.check import check_floating


class Semiring:
    """Two operations, `sum` over a dimension and `mul`, with neutral elements `zero` and `one`.

    A semiring of your own derives from this class, or from another semiring.
    """

    zero = 0.0
    one = 1.0

    def __init_subclass__(cls) -> None:
        """A class that changes `sum` or `mul`, but not the results, gets them from the recursion again."""
        changed = vars(cls).keys()
        if changed & {"sum", "mul"} and not changed & {"of_sum", "of_marginals", "marginals_from"}:
            for name in ("of_sum", "of_marginals"):
                setattr(cls, name, vars(Semiring)[name])

    @classmethod
    def size(cls) -> int:
        """How many numbers the semiring keeps for each score."""
        return 1

    @classmethod
    def convert(cls, potentials: Num[Tensor, "..."]) -> Num[Tensor, "size ..."]:
        """Scores as numbers of the semiring."""
        return potentials[None]

    @classmethod
    def unconvert(cls, potentials: Num[Tensor, "size ..."]) -> Num[Tensor, "..."]:
        """The result that the semiring is for."""
        return potentials[0]

    @classmethod
    def sum(cls, xs: Num[Tensor, "size ..."], dim: int = -1) -> Num[Tensor, "size ..."]:
        """The sum over a dimension, not the first."""
        raise NotImplementedError(f"{cls.__name__} has no sum")

    @classmethod
    def mul(cls, a: Num[Tensor, "size ..."], b: Num[Tensor, "size ..."]) -> Num[Tensor, "size ..."]:
        """The product of two numbers, or tensors of them."""
        raise NotImplementedError(f"{cls.__name__} has no mul")

    @classmethod
    def times(cls, *xs: Num[Tensor, "size ..."]) -> Num[Tensor, "size ..."]:
        """The product of several tensors."""
        return functools.reduce(cls.mul, xs)

    @classmethod
    def prod(cls, xs: Num[Tensor, "size ..."], dim: int = -1) -> Num[Tensor, "size ..."]:
        """The product over a dimension."""
        return functools.reduce(cls.mul, xs.unbind(dim))

    @classmethod
    def plus(cls, a: Num[Tensor, "size ..."], b: Num[Tensor, "size ..."]) -> Num[Tensor, "size ..."]:
        """The sum of two tensors."""
        return cls.sum(torch.stack(torch.broadcast_tensors(a, b), -1), -1)

    @classmethod
    def dot(cls, a: Num[Tensor, "size ..."], b: Num[Tensor, "size ..."]) -> Num[Tensor, "size ..."]:
        """The inner product over the last dimension."""
        return cls.sum(cls.mul(a, b), -1)

    @classmethod
    def matmul(cls, a: Num[Tensor, "size ..."], b: Num[Tensor, "size ..."]) -> Num[Tensor, "size ..."]:
        """The matrix product."""
        return cls.dot(a[..., :, None, :], b.mT[..., None, :, :])

    @classmethod
    def zero_(cls, xs: Num[Tensor, "size ..."]) -> Num[Tensor, "size ..."]:
        """Fill with zero, in place."""
        return xs.fill_(cls.zero)

    @classmethod
    def one_(cls, xs: Num[Tensor, "size ..."]) -> Num[Tensor, "size ..."]:
        """Fill with one, in place."""
        return xs.fill_(cls.one)

    @classmethod
    def zero_mask_(cls, xs: Num[Tensor, "size ..."], mask: Bool[Tensor, "..."]) -> None:
        """Fill with zero where `mask` is true, in place."""
        xs.copy_(torch.where(mask, cls.zero_(torch.empty_like(xs)), xs))

    # The results of a dynamic program.

    @classmethod
    def of_sum(cls, struct: Any, potentials: Any, lengths: Any, raw: bool) -> Num[Tensor, "..."]:
        """`struct(semiring).sum(potentials, lengths)`; `raw` keeps the semiring's first dimension."""
        total = struct.fold(struct.converted(potentials), lengths)
        return total if raw else cls.unconvert(total)

    @classmethod
    def of_marginals(cls, struct: Any, potentials: Any, lengths: Any, raw: bool) -> Any:
        """`struct(semiring).marginals(potentials, lengths)`: the gradient of the sum, or if `raw`, of each of its numbers."""
        if isinstance(potentials, tuple):
            raise NotImplementedError(f"marginals of a grammar under a {cls.__name__} are not here; its sum is")
        check_floating("log_potentials", potentials)
        with torch.enable_grad():
            recorded = potentials.requires_grad
            parts = struct.converted(potentials if recorded else potentials.detach().requires_grad_())
            totals = struct.fold(parts, lengths)
            rows = totals if raw else cls.unconvert(totals)[None]
            gradients = [
                torch.autograd.grad(row.sum(), parts, retain_graph=True, create_graph=recorded)[0] for row in rows
            ]
        marginals = torch.stack([cls.unconvert(x) for x in gradients])
        return marginals if raw else marginals[0]


class OfLogarithms(Semiring):
    """A semiring of logarithms, such as scores: a product is a sum."""

    zero, one = -math.inf, 0.0

    @classmethod
    def mul(cls, a: Float[Tensor, "size ..."], b: Float[Tensor, "size ..."]) -> Float[Tensor, "size ..."]:
        return a + b

    @classmethod
    def prod(cls, xs: Float[Tensor, "size ..."], dim: int = -1) -> Float[Tensor, "size ..."]:
        return xs.sum(dim)


def raw_or_plain(value: Any, raw: bool) -> Any:
    """A result of a semiring of size one, or a tuple of them, with its first dimension if `raw`."""
    if not raw:
        return value
    return value[None] if isinstance(value, Tensor) else tuple(x[None] for x in value)
