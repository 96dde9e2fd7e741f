"""Scores of a grammar's rules in a restricted model, where every span has K states of its own.

The rules of span (i, j) with split k join the states of (i, j) with those of (i, k) and (k+1, j): for each width a table
`[*lead, T-w+1, w-1, K, K, K]` (first position, split, head, left, right), or for each span the vectors of its states
`[*lead, T, T, K, d]`, as head, as left and as right child. Since the sets differ, splits cannot be merged before the
rules are contracted: a chart costs T^3 K^3, or T^3 R + T^2 K R with rules of rank R.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.numerics.charts import by_width, fill_chart
from tailsum.numerics.reduce import LogProduct, Reduce, log_sum_exp
from tailsum.numerics.stream import Parts, streamed
from tailsum.numerics.table import tile_size
from tailsum.numerics.tensors import as_values, largest, scaled, take
from tailsum.scores.base import Scores
from tailsum.trees.rules.factors import FactoredRule, FactorRule, LowRankRule, rank_chart
from tailsum.trees.rules.rule import DenseRule, Rule
from tailsum.trees.rules.scored import ScoredRule

# Stands for minus infinity where a product of matrices would make NaN of it.
_NEVER = -1e30


class SpanRule(Scores):
    """Scores of rules between the states that spans keep."""

    @abstractmethod
    def map(self, change: Callable[[Tensor], Tensor]) -> "SpanRule": ...

    @abstractmethod
    def tables(self) -> list[Tensor]:
        """The table of each width, from 2."""

    @abstractmethod
    def chart(self, spans: list[Tensor], reduce: Reduce) -> list[Tensor]:
        """The inside chart over scores `[B, n, K]` of the spans of each width."""

    @abstractmethod
    def gather(self, index: Int[Tensor, "*lead T T k"]) -> "SpanRule":
        """The rules between some of the states of each span."""

    @abstractmethod
    def rows(
        self, batch: Int[Tensor, " r"], first: Int[Tensor, " r"], last: Int[Tensor, " r"], state: Int[Tensor, " r"]
    ) -> Float[Tensor, "r T k k"]:
        """All rules of one state of the span from `first` to `last`, by the last position of the left child."""

    def scaled(self, factor: Float[Tensor, ""] | float) -> "SpanRule":
        return SpanTables([scaled(x, factor) for x in self.tables()])

    def plus(self, other: "SpanRule") -> "SpanRule":
        return SpanTables([a + b for a, b in zip(self.tables(), other.tables(), strict=True)])

    def finite(self) -> "SpanRule":
        return SpanTables([as_values(x) for x in self.tables()])

    def forbidden(self, dtype: torch.dtype) -> "SpanRule":
        return SpanTables([(x == -math.inf).to(dtype) for x in self.tables()])

    def centred(self) -> "SpanRule":
        return self


class SpanTables(SpanRule):
    """A table for each width from 2."""

    def __init__(self, scores: list[Tensor]) -> None:
        self.scores = scores

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(self.scores)

    def map(self, change: Callable[[Tensor], Tensor]) -> "SpanTables":
        return SpanTables([change(x) for x in self.scores])

    def tables(self) -> list[Tensor]:
        return self.scores

    def gather(self, index: Int[Tensor, "*lead T T k"]) -> "SpanTables":
        found = []
        for width, table in enumerate(self.scores, 2):
            first = torch.arange(index.shape[-2] - width + 1, device=index.device)[:, None]
            more = torch.arange(width - 1, device=index.device)
            head = index[..., first[:, 0], first[:, 0] + width - 1, :][..., :, None, :, None, None]
            left = index[..., first, first + more, :][..., None, :, None]
            right = index[..., first + more + 1, first + width - 1, :][..., None, None, :]
            for dim, chosen in ((-3, head), (-2, left), (-1, right)):
                table = _taken(table, chosen, dim)  # noqa: PLW2901
            found.append(table)
        return SpanTables(found)

    def rows(
        self, batch: Int[Tensor, " r"], first: Int[Tensor, " r"], last: Int[Tensor, " r"], state: Int[Tensor, " r"]
    ) -> Float[Tensor, "r T k k"]:
        size = self.scores[0].shape[-1]
        found = self.scores[0].new_full((len(batch), len(self.scores) + 1, size, size), -math.inf)
        for width, table in enumerate(self.scores, 2):
            (rows,) = torch.nonzero(last - first + 1 == width, as_tuple=True)
            own = batch[rows] if len(table) > 1 else torch.zeros_like(rows)
            position = first[rows, None] + torch.arange(width - 1, device=rows.device)
            found[rows[:, None], position] = table[own, first[rows], :, state[rows]]
        return found

    def bound(self) -> float:
        return max(map(largest, self.scores), default=0.0)

    def chart(self, spans: list[Tensor], reduce: Reduce) -> list[Tensor]:
        def combine(width: int, left: list[Tensor], right: list[Tensor]) -> Tensor:
            before, after = torch.stack(left, 2), torch.stack(right, 2)
            rules = self.scores[width - 2] + before[..., None, :, None] + after[..., None, None, :]
            return spans[width - 1] + reduce(reduce(rules.flatten(-2), -1), 2)

        return fill_chart(spans[0], combine)


class SpanFactors(SpanRule):
    """For each span the vectors of its states, as head, as left and as right child, and how they are scored."""

    def __init__(self, kind: type[FactorRule], factor: Tensor | None, *vectors: Tensor) -> None:
        self.kind, self.factor, self.vectors = kind, factor, vectors

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.vectors

    def map(self, change: Callable[[Tensor], Tensor]) -> "SpanFactors":
        return SpanFactors(self.kind, self.factor, *map(change, self.vectors))

    def scaled(self, factor: Float[Tensor, ""] | float) -> "SpanFactors":
        factor = torch.as_tensor(factor, dtype=self.vectors[0].dtype, device=self.vectors[0].device)
        return SpanFactors(self.kind, factor if self.factor is None else self.factor * factor, *self.vectors)

    def gather(self, index: Int[Tensor, "*lead T T k"]) -> "SpanFactors":
        return self.map(lambda x: _taken(x, index[..., None], -2))

    def rows(
        self, batch: Int[Tensor, " r"], first: Int[Tensor, " r"], last: Int[Tensor, " r"], state: Int[Tensor, " r"]
    ) -> Float[Tensor, "r T k k"]:
        head, left, right = self.vectors
        own = [batch if len(x) > 1 else torch.zeros_like(batch) for x in self.vectors]
        after = (torch.arange(left.shape[1], device=batch.device) + 1).clamp(max=left.shape[1] - 1)
        return self._scores(
            self.factor,
            head[own[0], first, last, state][:, None, None],
            left[own[1], first],
            right[own[2][:, None], after, last[:, None]],
        )[:, :, 0]

    def finite(self) -> SpanRule:
        return self if self.kind is FactoredRule else super().finite()

    def bound(self) -> float:
        return self.kind(*(x.flatten(0, -2) for x in self.vectors)).bound()

    def tables(self) -> list[Tensor]:
        length = self.vectors[0].shape[-4]
        lead = torch.broadcast_shapes(*(x.shape[:-4] for x in self.vectors))
        charts = [by_width(x.expand(*lead, *x.shape[-4:]).reshape(lead.numel(), *x.shape[-4:])) for x in self.vectors]
        found = []
        for width in range(2, length + 1):
            head, left, right = self._around(charts, width)
            table = self._scores(self.factor, head[:, :, None], left, right)
            found.append(table.reshape(*lead, *table.shape[1:]))
        return found

    def _scores(self, factor: Tensor | None, *vectors: Tensor) -> Tensor:
        plain = self.kind.scores(*vectors)
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

    def chart(self, spans: list[Tensor], reduce: Reduce) -> list[Tensor]:
        charts = [by_width(x) for x in self.vectors]
        if self.kind is LowRankRule and reduce is log_sum_exp and self.factor is None:
            return self._rank_chart(charts, spans)

        def combine(width: int, left: list[Tensor], right: list[Tensor]) -> Tensor:
            before, after = torch.stack(left, 2), torch.stack(right, 2)
            return spans[width - 1] + self._contract(self._around(charts, width), before, after, reduce)

        return fill_chart(spans[0], combine)

    @staticmethod
    def _rank_chart(charts: list[list[Tensor]], spans: list[Tensor]) -> list[Tensor]:
        head, left, right = charts

        def to_ranks(width: int, entry: Tensor) -> list[Tensor]:
            return [LogProduct(x[width - 1])(entry[:, :, None])[:, :, 0] for x in (left, right)]

        def from_ranks(width: int, ranks: Tensor) -> Tensor:
            return spans[width - 1] + LogProduct(head[width - 1].mT)(ranks[:, :, None])[:, :, 0]

        return rank_chart(spans[0], to_ranks, from_ranks)

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
        if self.kind is not FactoredRule or factor:
            table = self._scores(factor[0] if factor else None, head, left, right)
            table = table + before[..., None, :, None] + after[..., None, None, :]
            return reduce(reduce(table.flatten(-2), -1), 1)
        # The children's own scores are two more dimensions of the vectors: the product adds them on its way.
        one, other = torch.ones_like(before)[..., None], head.new_ones(*head.shape[:-1], 2)
        before, after = (x.clamp(min=_NEVER)[..., None] for x in (before, after))
        table = FactoredRule.scores(
            torch.cat((head, other), -1), torch.cat((left, before, one), -1), torch.cat((right, one, after), -1)
        )
        found = reduce(reduce(table.flatten(-2), -1), 1)
        return found.masked_fill(found < _NEVER / 2, -math.inf)


def _taken(x: Tensor, index: Tensor, dim: int) -> Tensor:
    """`take_along_dim`, leading dimensions broadcast also where one of the two lacks some."""
    missing = x.dim() - index.dim()
    return x[(None,) * max(0, -missing)].take_along_dim(index[(None,) * max(0, missing)], dim)


class Sets(NamedTuple):
    """The states of the spans of one width and of their children, as rules number them: `[*lead, n, (split,) K]`."""

    head: Int[Tensor, "*lead n k"]
    left: Int[Tensor, "*lead n split k"]
    right: Int[Tensor, "*lead n split k"]


def sets_of_width(index: Int[Tensor, "*lead T T k"], width: int, rule: Rule | ScoredRule) -> Sets:
    """Of the spans with `width` positions, where every span keeps the states `index`."""
    head, child = _numbered(index, rule)
    first = torch.arange(index.shape[-2] - width + 1, device=index.device)[:, None]
    more = torch.arange(width - 1, device=index.device)
    return Sets(
        head[..., first[:, 0], first[:, 0] + width - 1, :],
        child[..., first, first + more, :],
        child[..., first + more + 1, first + width - 1, :],
    )


def _numbered(index: Tensor, rule: Rule | ScoredRule) -> tuple[Tensor, Tensor]:
    """The states of spans as heads and as children. What is out of range has score minus infinity at its span."""
    leaf = torch.eye(index.shape[-2], dtype=torch.bool, device=index.device)[..., None]
    child = torch.where(leaf, index + rule.n_heads, index)
    return index.clamp(max=rule.n_heads - 1), child.clamp(max=rule.n_children - 1)


def at_spans(rule: Rule | ScoredRule, index: Int[Tensor, "*lead T T k"]) -> SpanRule:
    """The rules between the given states of every span: nonterminals, or preterminals where it has one position."""
    length, size = index.shape[-2:]
    if isinstance(rule, FactorRule):
        head, child = (x.flatten(-3) for x in _numbered(index, rule))
        given = zip(rule.tensors, (head, child, child), strict=True)
        return SpanFactors(
            type(rule), rule.factor, *(take(x, i).unflatten(-2, (length, length, size)) for x, i in given)
        )
    found = []
    for width in range(2, length + 1):
        head, left, right = sets_of_width(index, width, rule)
        if isinstance(rule, ScoredRule):
            found.append(rule.between(head[..., None, :], left, right))
            continue
        lead = torch.broadcast_shapes(rule.lead, index.shape[:-3])
        shape = (*left.shape[-3:-1], *(size,) * 3)
        triples = (head[..., None, :, None, None], left[..., None, :, None], right[..., None, None, :])
        flat = [x.expand(*lead, *shape).flatten(-5) for x in triples]
        found.append(rule.at(*flat).unflatten(-1, shape))
    return SpanTables(found)


def flattened(rule: Rule | SpanRule, batch: torch.Size) -> Rule | SpanRule:
    """The rules with their leading dimensions as one: of size 1 where all sentences share them."""
    if isinstance(rule, Rule):
        trailing = 3 if isinstance(rule, DenseRule) else 2
    else:
        trailing = 5 if isinstance(rule, SpanTables) else 4

    def flat(x: Tensor) -> Tensor:
        lead, rest = x.shape[:-trailing], x.shape[-trailing:]
        shape = lead if lead.numel() == 1 and batch.numel() != 1 else batch
        return x.expand(*shape, *rest).reshape(shape.numel(), *rest) if shape else x[None]

    return rule.map(flat)
