"""Rules scored from embeddings by a trilinear product."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.numerics.precision import product
from tailsum.numerics.reduce import Reduce
from tailsum.numerics.tensors import largest, take
from tailsum.numerics.transforms import every
from tailsum.scores.factored import Factored
from tailsum.scores.potential import Potential
from tailsum.trees.rules.vector_rule import FactorRule, SpanFactors, VectorRule

_NEVER = -1e30  # in place of minus infinity, which would become NaN in a product of matrices


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

    def reduced(
        self, head: Tensor, left: Tensor, right: Tensor, before: Tensor, after: Tensor, reduce: Reduce, *factor: Tensor
    ) -> Tensor:
        if factor:
            return super().reduced(head, left, right, before, after, reduce, *factor)
        # The children's inside scores are two more dimensions of the vectors, so that the product adds them.
        one, ones = torch.ones_like(before)[..., None], head.new_ones(*head.shape[:-1], 2)
        before, after = (x.clamp(min=_NEVER)[..., None] for x in (before, after))
        table = self.scores(
            torch.cat((head, ones), -1), torch.cat((left, before, one), -1), torch.cat((right, one, after), -1)
        )
        total = reduce(reduce(table.flatten(-2), -1), 1)
        return total.masked_fill(total < _NEVER / 2, -math.inf)


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
