"""Rules scored from embeddings by a trilinear product."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.numerics.precision import product
from tailsum.numerics.tensors import largest, take
from tailsum.numerics.transforms import every
from tailsum.scores.factored import Factored
from tailsum.scores.potential import Potential
from tailsum.trees.rules.vector_rule import FactorRule, SpanFactors, VectorRule


class Trilinear(VectorRule):
    """Scores `sum_d head[a, d] left[b, d] right[c, d]`, all finite."""

    @staticmethod
    def scores(
        head: Float[Tensor, "*#lead a d"], left: Float[Tensor, "*#lead b d"], right: Float[Tensor, "*#lead c d"]
    ) -> Float[Tensor, "*lead a b c"]:
        pairs = head[..., :, None, :] * left[..., None, :, :]
        return product(pairs.flatten(-3, -2), right.mT).unflatten(-2, pairs.shape[-3:-1])

    def finite(self) -> "Trilinear":
        return self

    def unmasked(self) -> "Trilinear":
        return self

    def bound(self) -> float:
        return math.prod(largest(x.norm(dim=-1)) for x in self.tensors)


class SpanTrilinear(Trilinear, SpanFactors):
    """Over the states that spans keep."""


class FactoredRule(Trilinear, FactorRule):
    """Rules scored from embeddings: `score(a -> b c) = sum_d head[a, d] left[b, d] right[c, d]`.

    >>> N, P, d = 20, 30, 8
    >>> rule = FactoredRule(torch.randn(N, d), torch.randn(N + P, d), torch.randn(N + P, d))
    >>> rule.block().shape
    torch.Size([20, 50, 50])
    """

    span_kind = SpanTrilinear

    def check(self, device: torch.device) -> None:
        super().check(device)
        if not all(every(tensor > -math.inf) for tensor in self.tensors):
            raise ValueError("rule must have finite factors: got -inf")

    def fan(self, role: int, first: Int[Tensor, "G m"], second: Int[Tensor, "G m"], rest: slice) -> Potential:
        vectors = list(self.tensors)
        to = vectors.pop(role)
        return Factored(take(vectors[0], first) * take(vectors[1], second), to[..., rest, :])
