"""Rules of low rank, whose sums and samples need no table of all rules."""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.numerics.charts import Watch, by_width, keep
from tailsum.numerics.fused.kernel import Example, Kernel, unseen
from tailsum.numerics.kernels import fused
from tailsum.numerics.noise import Choose, Drawn, seed_from
from tailsum.numerics.reduce import LogProduct, Reduce, highest, log_sum_exp
from tailsum.numerics.tensors import largest, scaled
from tailsum.numerics.tiles import tile_size
from tailsum.sketch.sweep import Sweep
from tailsum.trees.reader import TreeReader, Walker
from tailsum.trees.rules.best_pairs import best_pairs
from tailsum.trees.rules.grammar_reader import RankReader
from tailsum.trees.rules.rule import Rule
from tailsum.trees.rules.vector_rule import FactorRule, SpanFactors, VectorRule
from tailsum.trees.rules.whole_rule import Kind


class LowRank(VectorRule):
    """Scores `log sum_r exp(head[a, r] + left[b, r] + right[c, r])`."""

    @staticmethod
    def scores(
        head: Float[Tensor, "*#lead a d"], left: Float[Tensor, "*#lead b d"], right: Float[Tensor, "*#lead c d"]
    ) -> Float[Tensor, "*lead a b c"]:
        pairs = (left[..., :, None, :] + right[..., None, :, :]).flatten(-3, -2)
        return LogProduct(pairs.mT)(head).unflatten(-1, (left.shape[-2], right.shape[-2]))

    def norm(self, vectors: Float[Tensor, "*lead n d"]) -> Float[Tensor, "*lead n"]:
        """The L1 norm of the exponentials, which make up the scores; divided by the largest, so that none overflows."""
        return (vectors - vectors.amax().clamp(min=torch.finfo(vectors.dtype).min)).exp().sum(-1)

    def bound(self) -> float:
        return sum(map(largest, self.tensors)) + math.log(self.tensors[0].shape[-1])

    @abstractmethod
    def rank_chart(self, spans: list[Tensor], watch: Watch) -> list[Tensor]:
        """The inside chart of sums, by way of the ranks."""

    def chart(self, spans: list[Tensor], reduce: Reduce, watch: Watch = keep) -> list[Tensor]:
        """Sums go through the ranks: T^3 R + T^2 N R. Maxima, and sums of scaled scores, need the table."""
        if reduce is not log_sum_exp or self.factor:
            return super().chart(spans, reduce, watch)
        return self.rank_chart(spans, watch)

    def reader(self, spans: Float[Tensor, "B T T n"], length: Tensor, choose: Choose, reduce: Reduce) -> TreeReader:
        if reduce is not log_sum_exp or self.factor:
            return super().reader(spans, length, choose, reduce)
        vectors = self.tensors if self.by_span else [x[:, None, None] for x in self.tensors]
        n_heads = None if self.by_span else self.n_heads
        return RankReader(self.chart(by_width(spans), reduce), length, n_heads, choose, vectors)


class SpanLowRank(LowRank, SpanFactors):
    """Over the states that spans keep: T^3 R + T^2 K R."""

    def rank_chart(self, spans: list[Tensor], watch: Watch) -> list[Tensor]:
        head, left, right = (by_width(x) for x in self.tensors)

        def to_ranks(width: int, entry: Tensor) -> list[Tensor]:
            return [LogProduct(x[width - 1])(entry[:, :, None])[:, :, 0] for x in (left, right)]

        def from_ranks(width: int, ranks: Tensor) -> Tensor:
            return spans[width - 1] + LogProduct(head[width - 1].mT)(ranks[:, :, None])[:, :, 0]

        return _fill(spans[0], to_ranks, from_ranks, watch)


class LowRankRule(LowRank, FactorRule):
    """Rules of low rank: `exp score(a -> b c) = sum_r exp(head[a, r] + left[b, r] + right[c, r])`.

    The factors are logarithms, normalised or not: for a normalised grammar `exp(head)` sums to one over ranks, `exp(left)`
    and `exp(right)` over children. Exact sums and samples cost T^3 R + T^2 N R, and never build the table. `entropy` and
    divergences sum over ranks first, so they build the table, a few heads at a time. So does `argmax` of small grammars;
    for large ones it scores pairs of children in the order of an upper bound (`best_pairs.py`).

    >>> N, P, R = 20, 30, 8
    >>> rule = LowRankRule(
    ...     torch.randn(N, R).log_softmax(-1), torch.randn(N + P, R).log_softmax(0), torch.randn(N + P, R).log_softmax(0)
    ... )
    >>> bool(torch.allclose(rule.block().exp().sum((-2, -1)), torch.ones(N)))
    True
    """

    span_kind = SpanLowRank

    def rank_chart(self, spans: list[Tensor], watch: Watch) -> list[Tensor]:
        head, left, right = self.tensors
        to_rank = {leaf: [LogProduct(x[..., self.children(leaf), :]) for x in (left, right)] for leaf in (True, False)}
        from_rank = LogProduct(head.mT)

        def rows(product: LogProduct, entry: Tensor) -> Tensor:
            if len(entry) == math.prod(self.lead):
                return product(entry)
            return product(entry.flatten(0, 1)[None])[0].unflatten(0, entry.shape[:2])

        return _fill(
            self.of_width(1, spans[0]),
            lambda width, entry: [rows(product, entry) for product in to_rank[width == 1]],
            lambda width, ranks: self.of_width(width, spans[width - 1]) + rows(from_rank, ranks),
            watch,
        )

    def total(self, spans: Float[Tensor, "B T T n"], length: Int[Tensor, " B"], reduce: Reduce) -> Float[Tensor, " B"]:
        if reduce is not log_sum_exp or self.factor:
            return super().total(spans, length, reduce)
        if max(len(x) for x in self.tensors) > 1:
            return Rule.total(self, spans, length, reduce)  # through the ranks
        return low_rank_sum(spans, *(x[0] for x in self.tensors), lengths=length)

    def reader(self, spans: Float[Tensor, "B T T n"], length: Tensor, choose: Choose, reduce: Reduce) -> TreeReader:
        """Samples by kernels, whole trees at once."""
        factors = [x[0] for x in self.tensors]
        shared = not self.factor and max(len(x) for x in self.tensors) == 1
        if isinstance(choose, Drawn) and shared and fused(spans, *factors) and unseen(spans) and _some_pairs(spans):
            from tailsum.numerics.fused.low_rank_parses import Samples  # noqa: PLC0415  (needs Triton)

            samples = Samples(spans, *factors, lengths=length)
            if not samples.lost:
                return Walker(samples.possible, lambda batch: samples.drawn(batch, seed_from(choose.generator)))
        return super().reader(spans, length, choose, reduce)

    def contract_pairs(self, pairs: Float[Tensor, "G r pair"], kind: Kind, reduce: Reduce) -> Float[Tensor, "G r N"]:
        """Maxima over many pairs of children by bounds, without a table."""
        few = self.n_heads * pairs.shape[-1] <= 4 * tile_size(pairs.device)
        if reduce is not highest or torch.is_grad_enabled() or self.factor or few:
            return super().contract_pairs(pairs, kind, reduce)
        head, *children = self.tensors
        return best_pairs(pairs, head, *(x[:, self.children(leaf)] for x, leaf in zip(children, kind, strict=True)))

    def rows(self, batch: Int[Tensor, " r"], head: Int[Tensor, " r"]) -> Float[Tensor, "r C C"]:
        """By a product over ranks for each head."""
        heads, left, right = (x[batch if len(x) > 1 else torch.zeros_like(batch)] for x in self.tensors)
        scores = LogProduct(right.mT)(heads.take_along_dim(head[:, None, None], 1) + left)
        return scaled(scores, *self.factor) if self.factor else scores

    def sweep(self, spans: Float[Tensor, "B T T n"], length: Int[Tensor, " B"], batch: torch.Size) -> Sweep:
        return Rule.sweep(self, spans, length, batch)  # exact


def _fill(
    leaves: Tensor,
    to_ranks: Callable[[int, Tensor], Sequence[Tensor]],
    from_ranks: Callable[[int, Tensor], Tensor],
    watch: Watch,
) -> list[Tensor]:
    """An inside chart through ranks: `to_ranks(width, entry)` sums over the states of left and right children, `[B, n, R]`."""
    chart = [watch(1, leaves)]
    ranks = [to_ranks(1, chart[0])]
    length = leaves.shape[1]
    for width in range(2, length + 1):
        count = length - width + 1
        by_split = [
            ranks[size - 1][0][:, :count] + ranks[width - size - 1][1][:, size : size + count]
            for size in range(1, width)
        ]
        chart.append(watch(width, from_ranks(width, log_sum_exp(torch.stack(by_split), 0))))
        if width < length:
            ranks.append(to_ranks(width, chart[-1]))
    return chart


def _total(spans: Tensor, head: Tensor, left: Tensor, right: Tensor, lengths: Tensor) -> Tensor:
    rule = LowRankRule(head[None], left[None], right[None])
    return Rule.total(rule, spans, lengths, log_sum_exp)


def _some_pairs(spans: Tensor, *_: Tensor, **__: Tensor) -> bool:
    """Whether there is any sentence of two words."""
    return len(spans) > 0 and spans.shape[1] > 1


def _example(batch: int, length: int, heads: int, leaves: int, ranks: int) -> Example:
    spans = torch.randn(batch, length, length, max(heads, leaves))
    factors = (torch.randn(n, ranks) for n in (heads, heads + leaves, heads + leaves))
    return Example((spans, *factors), {"lengths": torch.randint(1, length + 1, (batch,))})


low_rank_sum = Kernel(
    "low_rank",
    _total,
    _example,
    sizes=({"batch": 2, "length": 4, "heads": 3, "leaves": 4, "ranks": 5},),
    large={"batch": 8, "length": 30, "heads": 300, "leaves": 500, "ranks": 100},
    takes=_some_pairs,
)
