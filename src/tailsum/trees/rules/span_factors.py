"""Rules of a restricted grammar from vectors of the states that each span keeps.

For each span the vectors of its states `[*lead, T, T, K, d]`, as head, as left and as right child. Tables are made for a
few spans at a time and dropped.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.numerics.charts import Watch, by_width, keep
from tailsum.numerics.noise import Choose
from tailsum.numerics.precision import product
from tailsum.numerics.reduce import LogProduct, Reduce, log_sum_exp
from tailsum.numerics.stream import Parts, streamed
from tailsum.numerics.table import tile_size
from tailsum.numerics.tensors import largest, scaled
from tailsum.trees.reader import Reader
from tailsum.trees.rules.grammar_reader import RankReader
from tailsum.trees.rules.span_rule import SpanRule, SpanTables, taken

# Stands for minus infinity where a product of matrices would make NaN of it.
_NEVER = -1e30


def trilinear(
    head: Float[Tensor, "*#lead a d"], left: Float[Tensor, "*#lead b d"], right: Float[Tensor, "*#lead c d"]
) -> Float[Tensor, "*lead a b c"]:
    """`sum_d head[a, d] left[b, d] right[c, d]`."""
    pairs = head[..., :, None, :] * left[..., None, :, :]
    return product(pairs.flatten(-3, -2), right.mT).unflatten(-2, pairs.shape[-3:-1])


def summed_over_ranks(
    head: Float[Tensor, "*#lead a d"], left: Float[Tensor, "*#lead b d"], right: Float[Tensor, "*#lead c d"]
) -> Float[Tensor, "*lead a b c"]:
    """`log sum_r exp(head[a, r] + left[b, r] + right[c, r])`."""
    pairs = (left[..., :, None, :] + right[..., None, :, :]).flatten(-3, -2)
    return LogProduct(pairs.mT)(head).unflatten(-1, (left.shape[-2], right.shape[-2]))


class SpanFactors(SpanRule):
    """For each span the vectors of its states, as head, as left and as right child: `[*lead, T, T, K, d]`."""

    trailing = 4

    def __init__(self, vectors: Sequence[Tensor], n_heads: int, n_children: int, factor: Tensor | None = None) -> None:
        self.vectors, self.n_heads, self.n_children = tuple(vectors), n_heads, n_children
        self.factor = factor  # what every score is multiplied by, if anything

    @staticmethod
    @abstractmethod
    def scores(
        head: Float[Tensor, "*#lead a d"], left: Float[Tensor, "*#lead b d"], right: Float[Tensor, "*#lead c d"]
    ) -> Float[Tensor, "*lead a b c"]:
        """Scores of all given heads with all given left and right children."""

    @property
    def lead(self) -> torch.Size:
        return torch.broadcast_shapes(*(x.shape[:-4] for x in self.vectors))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.vectors

    def map(self, change: Callable[[Tensor], Tensor]) -> "SpanFactors":
        return type(self)([change(x) for x in self.vectors], self.n_heads, self.n_children, self.factor)

    def scaled(self, factor: Float[Tensor, ""] | float) -> "SpanFactors":
        factor = torch.as_tensor(factor, dtype=self.vectors[0].dtype, device=self.vectors[0].device)
        factor = factor if self.factor is None else self.factor * factor
        return type(self)(self.vectors, self.n_heads, self.n_children, factor)

    def at_spans(self, index: Int[Tensor, "*lead T T k"]) -> "SpanFactors":
        return self.map(lambda x: taken(x, index[..., None], -2))

    def rows(
        self, batch: Int[Tensor, " r"], first: Int[Tensor, " r"], last: Int[Tensor, " r"], head: Int[Tensor, " r"]
    ) -> Float[Tensor, "r T k k"]:
        heads, left, right = self.vectors
        own = [batch if len(x) > 1 else torch.zeros_like(batch) for x in self.vectors]
        after = (torch.arange(left.shape[1], device=batch.device) + 1).clamp(max=left.shape[1] - 1)
        return self._scores(
            self.factor,
            heads[own[0], first, last, head][:, None, None],
            left[own[1], first],
            right[own[2][:, None], after, last[:, None]],
        )[:, :, 0]

    def tabled(self) -> SpanTables:
        length, lead = self.vectors[0].shape[-4], self.lead
        charts = [by_width(x.expand(*lead, *x.shape[-4:]).reshape(lead.numel(), *x.shape[-4:])) for x in self.vectors]
        found = []
        for width in range(2, length + 1):
            head, left, right = self._around(charts, width)
            table = self._scores(self.factor, head[:, :, None], left, right)
            found.append(table.reshape(*lead, *table.shape[1:]))
        return SpanTables(found, self.n_heads, self.n_children)

    def _scores(self, factor: Tensor | None, *vectors: Tensor) -> Tensor:
        plain = self.scores(*vectors)
        return plain if factor is None else scaled(plain, factor)

    @staticmethod
    def _around(charts: list[list[Tensor]], width: int) -> tuple[Tensor, Tensor, Tensor]:
        """The vectors of the heads `[G, n, K, d]` of one width, and of their children, `[G, n, split, K, d]`."""
        head, left, right = charts
        count = len(head) - width + 1
        return (
            head[width - 1],
            torch.stack([left[size - 1][:, :count] for size in range(1, width)], 2),
            torch.stack([right[width - size - 1][:, size : size + count] for size in range(1, width)], 2),
        )

    def contract(
        self, width: int, left: Sequence[Tensor], right: Sequence[Tensor], reduce: Reduce
    ) -> Float[Tensor, "B n heads"]:
        charts = [by_width(x) for x in self.vectors]
        before, after = torch.stack(list(left), 2), torch.stack(list(right), 2)
        return self._contract(self._around(charts, width), before, after, reduce)

    def _contract(
        self, vectors: tuple[Tensor, Tensor, Tensor], before: Tensor, after: Tensor, reduce: Reduce
    ) -> Tensor:
        """Heads `[B, n, K]` from their children `[B, n, split, K]`, a few spans at a time: tables are made and dropped."""
        lead = before.shape[:2]
        if not lead.numel():
            return before[:, :, 0]
        shapes = [x.shape[2:] for x in (*vectors, before, after)]
        rows = [
            x.expand(*lead, *shape).reshape(lead.numel(), shape.numel())
            for x, shape in zip((*vectors, before, after), shapes, strict=True)
        ]

        def tile(parts: Parts) -> Parts:
            head, left, right, before, after = (
                x.reshape(-1, *shape) for x, shape in zip(parts.rows, shapes, strict=True)
            )
            return Parts((self._tile(head[:, None], left, right, before, after, reduce, *parts.whole),))

        size = before.shape[-2] * before.shape[-1] ** 3
        chunk = max(1, 4 * tile_size(before.device) // max(1, size))
        whole = () if self.factor is None else (self.factor,)
        return streamed(tile, Parts(tuple(rows), whole), chunk, 1).rows[0].reshape(*lead, before.shape[-1])

    def _tile(
        self, head: Tensor, left: Tensor, right: Tensor, before: Tensor, after: Tensor, reduce: Reduce, *factor: Tensor
    ) -> Tensor:
        table = self._scores(factor[0] if factor else None, head, left, right)
        table = table + before[..., None, :, None] + after[..., None, None, :]
        return reduce(reduce(table.flatten(-2), -1), 1)


class SpanTrilinear(SpanFactors):
    """From embeddings: `FactoredRule` restricted."""

    scores = staticmethod(trilinear)

    def finite(self) -> "SpanTrilinear":
        return self

    def bound(self) -> float:
        return math.prod(largest(x.norm(dim=-1)) for x in self.vectors)

    def _tile(
        self, head: Tensor, left: Tensor, right: Tensor, before: Tensor, after: Tensor, reduce: Reduce, *factor: Tensor
    ) -> Tensor:
        if factor:
            return super()._tile(head, left, right, before, after, reduce, *factor)
        # The children's own scores are two more dimensions of the vectors: the product adds them on its way.
        one, other = torch.ones_like(before)[..., None], head.new_ones(*head.shape[:-1], 2)
        before, after = (x.clamp(min=_NEVER)[..., None] for x in (before, after))
        table = trilinear(
            torch.cat((head, other), -1), torch.cat((left, before, one), -1), torch.cat((right, one, after), -1)
        )
        found = reduce(reduce(table.flatten(-2), -1), 1)
        return found.masked_fill(found < _NEVER / 2, -math.inf)


class SpanLowRank(SpanFactors):
    """From factors in logarithms: `LowRankRule` restricted. Sums cost T^3 R + T^2 K R."""

    scores = staticmethod(summed_over_ranks)

    def bound(self) -> float:
        return sum(map(largest, self.vectors)) + math.log(self.vectors[0].shape[-1])

    def chart(self, spans: list[Tensor], reduce: Reduce, watch: Watch = keep) -> list[Tensor]:
        if reduce is not log_sum_exp or self.factor is not None:
            return super().chart(spans, reduce, watch)
        head, left, right = (by_width(x) for x in self.vectors)

        def to_ranks(width: int, entry: Tensor) -> list[Tensor]:
            return [LogProduct(x[width - 1])(entry[:, :, None])[:, :, 0] for x in (left, right)]

        def from_ranks(width: int, ranks: Tensor) -> Tensor:
            return spans[width - 1] + LogProduct(head[width - 1].mT)(ranks[:, :, None])[:, :, 0]

        return rank_chart(spans[0], to_ranks, from_ranks, watch)

    def reader(self, chart: list[Tensor], length: Tensor, choose: Choose, reduce: Reduce) -> Reader:
        if reduce is not log_sum_exp:
            return super().reader(chart, length, choose, reduce)
        return RankReader(chart, self, self.vectors, length, choose, reduce)


def rank_chart(
    leaves: Tensor,
    to_ranks: Callable[[int, Tensor], Sequence[Tensor]],
    from_ranks: Callable[[int, Tensor], Tensor],
    watch: Watch,
) -> list[Tensor]:
    """An inside chart whose children meet in ranks: `to_ranks(width, entry)` as left and as right child, `[B, n, R]`."""
    chart = [watch(1, leaves)]
    ranks = [to_ranks(1, chart[0])]
    length = leaves.shape[1]
    for width in range(2, length + 1):
        count = length - width + 1
        ways = [
            ranks[size - 1][0][:, :count] + ranks[width - size - 1][1][:, size : size + count]
            for size in range(1, width)
        ]
        chart.append(watch(width, from_ranks(width, log_sum_exp(torch.stack(ways), 0))))
        if width < length:
            ranks.append(to_ranks(width, chart[-1]))
    return chart
