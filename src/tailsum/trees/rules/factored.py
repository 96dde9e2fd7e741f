"""Rules scored from embeddings."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.numerics.tensors import largest, take
from tailsum.scores.factored import Factored
from tailsum.scores.potential import Potential
from tailsum.trees.rules.factor_rule import FactorRule
from tailsum.trees.rules.rule import Role
from tailsum.trees.rules.span_factors import SpanTrilinear, trilinear
from tailsum.trees.rules.span_rule import SpanRule


class FactoredRule(FactorRule):
    """Rules scored from embeddings: `score(a -> b c) = sum_d head[a, d] left[b, d] right[c, d]`.

    >>> N, P, d = 20, 30, 8
    >>> rule = FactoredRule(torch.randn(N, d), torch.randn(N + P, d), torch.randn(N + P, d))
    >>> rule.block().shape
    torch.Size([20, 50, 50])
    """

    @staticmethod
    def scores(
        head: Float[Tensor, "*#lead a d"], left: Float[Tensor, "*#lead b d"], right: Float[Tensor, "*#lead c d"]
    ) -> Float[Tensor, "*lead a b c"]:
        return trilinear(head, left, right)

    def with_span_vectors(self, vectors: list[Tensor]) -> SpanRule:
        return SpanTrilinear(vectors, self.n_heads, self.n_children, self.factor)

    def check(self, device: torch.device) -> None:
        super().check(device)
        if not all((tensor > -math.inf).all() for tensor in self.tensors):
            raise ValueError("rule must have finite factors: got -inf")

    def finite(self) -> "FactoredRule":
        return self

    def fan(self, role: Role, first: Int[Tensor, "G m"], second: Int[Tensor, "G m"], rest: slice) -> Potential:
        one, other, third = {
            "head": (self.left, self.right, self.head),
            "left": (self.head, self.right, self.left),
            "right": (self.head, self.left, self.right),
        }[role]
        return Factored(take(one, first) * take(other, second), third[..., rest, :])

    def bound(self) -> float:
        return math.prod(largest(x.norm(dim=-1)) for x in self.tensors)
