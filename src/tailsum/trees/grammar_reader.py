"""Trees read from the inside chart of a grammar, from the top down: exact samples, or best trees."""

import math
from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from tailsum.numerics.charts import square
from tailsum.numerics.noise import Choose
from tailsum.numerics.reduce import LogProduct, Reduce
from tailsum.trees.reader import Reader
from tailsum.trees.rules.factors import LowRankRule
from tailsum.trees.rules.rule import Rule
from tailsum.trees.rules.spans import SpanFactors, SpanRule


class _GrammarReader(Reader):
    """Children as rules number them: nonterminals, then preterminals. A restricted model has one numbering of its own."""

    def __init__(self, chart: Sequence[Tensor], n_heads: int | None, length: Tensor, choose: Choose) -> None:
        self.length, self.choose, self.n_heads = length, choose, n_heads
        whole = torch.stack([entry[:, 0] for entry in chart[1:]]) if len(chart) > 1 else chart[0][None, :, 0]
        self.whole = whole[(length - 2).clamp(min=0), torch.arange(len(length), device=length.device)]
        self.possible = (self.whole > -math.inf).any(-1) & (length > 1)
        if n_heads is not None:
            n_leaves = chart[0].shape[-1]
            leaves = F.pad(chart[0], (n_heads, 0), value=-math.inf)
            chart = [leaves, *(F.pad(entry, (0, n_leaves), value=-math.inf) for entry in chart[1:])]
        self.inside = square(chart)  # [B, T, T, children]
        # From the position after a split: what lies to its right, by last position.
        self.after = F.pad(self.inside[:, 1:], (0, 0, 0, 0, 0, 1), value=-math.inf)

    def root(self, batch: Tensor) -> Tensor:
        return self.choose(self.whole[batch])

    def _sides(self, batch: Tensor, first: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        """The inside scores of the left and the right child by the last position of the left: `[R, T, children]`."""
        before = torch.arange(self.inside.shape[1], device=last.device) < last[:, None]
        left = self.inside[batch, first].masked_fill(~before[..., None], -math.inf)
        return left, self.after[batch, :, last]

    def _states(self, *children: Tensor) -> tuple[Tensor, ...]:
        """The states of children, each kind counted from zero."""
        if self.n_heads is None:
            return children
        return tuple(torch.where(x < self.n_heads, x, x - self.n_heads) for x in children)


class PairReader(_GrammarReader):
    """Over all states: first the pair of children, the splits merged; then the split."""

    def __init__(self, chart: Sequence[Tensor], rule: Rule, length: Tensor, choose: Choose, reduce: Reduce) -> None:
        super().__init__(chart, rule.n_heads, length, choose)
        self.rule, self.reduce = rule, reduce
        self.width = rule.n_children**2

    def expand(self, batch: Tensor, first: Tensor, last: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        left, right = self._sides(batch, first, last)
        pairs = LogProduct(right, self.reduce)(left.mT) + self.rule.rows(batch, state.clamp(max=self.rule.n_heads - 1))
        pick = self.choose(pairs.flatten(1))
        one, other = pick // self.rule.n_children, pick % self.rule.n_children
        ways = left.take_along_dim(one[:, None, None], -1) + right.take_along_dim(other[:, None, None], -1)
        return self.choose(ways[..., 0]), *self._states(one, other)  # pyright: ignore[reportReturnType]


class SpanPairReader(_GrammarReader):
    """In a restricted model: split and children at once, since every split has states of its own."""

    def __init__(self, chart: Sequence[Tensor], rule: SpanRule, length: Tensor, choose: Choose) -> None:
        super().__init__(chart, None, length, choose)
        self.rule, self.size = rule, chart[0].shape[-1]
        self.width = len(chart) * self.size**2

    def expand(self, batch: Tensor, first: Tensor, last: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        left, right = self._sides(batch, first, last)
        rules = self.rule.rows(batch, first, last, state)
        pick = self.choose((rules + left[..., :, None] + right[..., None, :]).flatten(1))
        return pick // self.size**2, pick // self.size % self.size, pick % self.size


class RankReader(_GrammarReader):
    """With rules of low rank: split and rank at once, then each child on its own."""

    def __init__(self, chart: Sequence[Tensor], rule: Rule | SpanRule, length: Tensor, choose: Choose) -> None:
        whole = isinstance(rule, LowRankRule)
        super().__init__(chart, rule.n_heads if whole else None, length, choose)
        if whole:  # the same for every span
            spans = self.inside.shape[:-1].numel() // max(1, len(rule.left))
            rows = self.inside.reshape(len(rule.left), spans, self.inside.shape[-1])
            ranks = [LogProduct(x)(rows).reshape(*self.inside.shape[:-1], x.shape[-1]) for x in (rule.left, rule.right)]
            self.head, self.left, self.right = (x[:, None, None] for x in rule.tensors)
        else:
            self.head, self.left, self.right = cast("SpanFactors", rule).vectors
            ranks = [LogProduct(x)(self.inside[..., None, :])[..., 0, :] for x in (self.left, self.right)]
        self.width = (len(chart) + self.inside.shape[-1]) * self.head.shape[-1]
        self.to_left, self.to_right = ranks
        self.to_right = F.pad(self.to_right[:, 1:], (0, 0, 0, 0, 0, 1), value=-math.inf)

    @staticmethod
    def _at(x: Tensor, batch: Tensor, first: Tensor, last: Tensor) -> Tensor:
        """The vectors of the states of a span, `[R, n, R']`."""
        index = (
            i if size > 1 else torch.zeros_like(i) for i, size in zip((batch, first, last), x.shape[:3], strict=True)
        )
        return x[tuple(index)]

    def expand(self, batch: Tensor, first: Tensor, last: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        own = self._at(self.head, batch, first, last)
        own = own.take_along_dim(state.clamp(max=own.shape[1] - 1)[:, None, None], 1)  # [R, 1, ranks]
        before = torch.arange(self.inside.shape[1], device=last.device) < last[:, None]
        ways = self.to_left[batch, first] + self.to_right[batch, :, last] + own
        pick = self.choose(ways.masked_fill(~before[..., None], -math.inf).flatten(1))
        split, rank = pick // own.shape[-1], pick % own.shape[-1]
        right = (split + 1).clamp(max=len(before[0]) - 1)
        children = []
        for x, one, other in ((self.left, first, split), (self.right, right, last)):
            by_rank = self._at(x, batch, one, other).take_along_dim(rank[:, None, None], -1)[..., 0]
            children.append(self.choose(self.inside[batch, one, other] + by_rank))
        return split, *self._states(*children)  # pyright: ignore[reportReturnType]
