"""Semirings that carry an expectation along with log-sums: entropy, cross-entropy and Kullback-Leibler divergence.

A number is `(log-sum of p, value)`, or `(log-sum of p, log-sum of q, value)`. The value of a product is the sum of the values.
The value of a sum is the mean of the values under p, plus the contribution of the choice among the terms.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from tailsum.compat.torch_struct.semirings.base import OfLogarithms
from tailsum.numerics.reduce import log_sum_exp
from tailsum.numerics.tensors import finite


class _Expectation(OfLogarithms):
    n_models = 1
    choice: ClassVar[Callable[..., Tensor]]  # the contribution of a choice, from its log-probability under each model
    value: ClassVar[Callable[..., Tensor]]  # the expectation, as the distributions compute it

    @classmethod
    def size(cls) -> int:
        return cls.n_models + 1

    @classmethod
    def convert(cls, potentials: Float[Tensor, "..."] | list[Tensor]) -> Float[Tensor, "size ..."]:
        models = [potentials] if isinstance(potentials, Tensor) else potentials
        return torch.stack([*models, torch.zeros_like(models[0])])

    @classmethod
    def unconvert(cls, potentials: Float[Tensor, "size ..."]) -> Float[Tensor, "..."]:
        return potentials[-1]

    @classmethod
    def zero_(cls, xs: Float[Tensor, "size ..."]) -> Float[Tensor, "size ..."]:
        xs[:-1], xs[-1] = cls.zero, 0.0
        return xs

    @classmethod
    def sum(cls, xs: Float[Tensor, "size ..."], dim: int = -1) -> Float[Tensor, "size ..."]:
        dim = dim if dim < 0 else dim - xs.dim()
        totals = log_sum_exp(xs[:-1], dim)
        log_share = xs[:-1] - finite(totals).unsqueeze(dim)
        share = log_share[0].exp()
        values = torch.where(share > 0, share * (xs[-1] + cls.choice(*finite(log_share))), 0.0)
        return torch.cat((totals, values.sum(dim)[None]))

    @classmethod
    def of_sum(cls, struct: Any, potentials: Any, lengths: Any, raw: bool) -> Tensor:
        models = [struct.distribution(x, lengths) for x in (potentials if cls.n_models > 1 else [potentials])]
        value = cls.value(*models)
        return torch.stack((*(model.partition for model in models), value)) if raw else value

    @classmethod
    def of_marginals(cls, struct: Any, potentials: Any, lengths: Any, raw: bool) -> Any:
        raise NotImplementedError(
            f"{cls.__name__} has no marginals here: the gradient of its sum is neither marginals nor an event. "
            "For that gradient, call torch.autograd.grad on the sum"
        )


class EntropySemiring(_Expectation):
    """The log-sum and the entropy."""

    choice = staticmethod(lambda p: -p)
    value = staticmethod(lambda p: p.entropy)


class CrossEntropySemiring(_Expectation):
    """The log-sums of p and q, and the cross-entropy of q under p; potentials are a list of two."""

    n_models = 2
    choice = staticmethod(lambda _, q: -q)
    value = staticmethod(lambda p, q: p.cross_entropy(q))


class KLDivergenceSemiring(_Expectation):
    """The log-sums of p and q, and the divergence of p from q; potentials are a list of two."""

    n_models = 2
    choice = staticmethod(lambda p, q: p - q)
    value = staticmethod(lambda p, q: p.kl(q))
