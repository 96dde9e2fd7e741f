"""Rules of low rank."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.numerics.charts import Watch, keep
from tailsum.numerics.noise import Choose
from tailsum.numerics.reduce import LogProduct, Reduce, log_sum_exp
from tailsum.numerics.tensors import largest
from tailsum.scores.potential import Potential
from tailsum.sketch.sweep import Sweep
from tailsum.trees.reader import Reader
from tailsum.trees.rules.exact_sweep import ExactSweep
from tailsum.trees.rules.factor_rule import FactorRule
from tailsum.trees.rules.grammar_reader import RankReader
from tailsum.trees.rules.rule import Role
from tailsum.trees.rules.span_factors import SpanLowRank, rank_chart, summed_over_ranks
from tailsum.trees.rules.span_rule import SpanRule


class LowRankRule(FactorRule):
    """Rules of low rank: `exp score(a -> b c) = sum_r exp(head[a, r] + left[b, r] + right[c, r])`.

    The factors are logarithms, normalised or not: for a normalised grammar `head` sums to one over ranks, `left` and
    `right` over children. Exact sums and samples cost T^3 R + T^2 N R, and never build the table. `argmax`, `entropy` and
    divergences are of trees and states (a rank is no part of a tree), so they build the table, a few heads at a time.

    >>> N, P, R = 20, 30, 8
    >>> rule = LowRankRule(
    ...     torch.randn(N, R).log_softmax(-1), torch.randn(N + P, R).log_softmax(0), torch.randn(N + P, R).log_softmax(0)
    ... )
    >>> bool(torch.allclose(rule.block().exp().sum((-2, -1)), torch.ones(N)))
    True
    """

    @staticmethod
    def scores(
        head: Float[Tensor, "*#lead a d"], left: Float[Tensor, "*#lead b d"], right: Float[Tensor, "*#lead c d"]
    ) -> Float[Tensor, "*lead a b c"]:
        return summed_over_ranks(head, left, right)

    def with_span_vectors(self, vectors: list[Tensor]) -> SpanRule:
        return SpanLowRank(vectors, self.n_heads, self.n_children, self.factor)

    def fan(self, role: Role, first: Int[Tensor, "G m"], second: Int[Tensor, "G m"], rest: slice) -> Potential:
        raise NotImplementedError("states meet in ranks: nothing needs pairs of them")

    def chart(self, spans: list[Tensor], reduce: Reduce, watch: Watch = keep) -> list[Tensor]:
        """Sums meet in ranks: T^3 R + T^2 N R."""
        if reduce is not log_sum_exp or self.factor is not None:
            return super().chart(spans, reduce, watch)
        to_rank = {
            leaf: [LogProduct(x[..., self.children(leaf), :]) for x in (self.left, self.right)]
            for leaf in (True, False)
        }
        from_rank = LogProduct(self.head.mT)
        return rank_chart(
            self.own(1, spans[0]),
            lambda width, entry: [self._rows(product, entry) for product in to_rank[width == 1]],
            lambda width, ranks: self.own(width, spans[width - 1]) + self._rows(from_rank, ranks),
            watch,
        )

    def reader(self, chart: list[Tensor], length: Tensor, choose: Choose, reduce: Reduce) -> Reader:
        if reduce is not log_sum_exp:
            return super().reader(chart, length, choose, reduce)
        return RankReader(chart, self, [x[:, None, None] for x in self.tensors], length, choose, reduce)

    def sweep(self, spans: Float[Tensor, "B T T n"], length: Int[Tensor, " B"], batch: torch.Size) -> Sweep:
        return ExactSweep(self, spans, length, batch)

    def _rows(self, product: LogProduct, entry: Tensor) -> Tensor:
        """A product with entries `[B, n, ..]` of a chart."""
        if len(entry) == math.prod(self.lead):
            return product(entry)
        return product(entry.flatten(0, 1)[None])[0].unflatten(0, entry.shape[:2])

    def bound(self) -> float:
        return sum(map(largest, self.tensors)) + math.log(self.head.shape[-1])
