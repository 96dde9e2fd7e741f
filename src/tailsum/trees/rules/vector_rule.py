"""Rules scored from vectors of their three states, over all states or over those that spans keep.

Vectors are `[*lead, N, d]` for heads and `[*lead, N+P, d]` for left and right children; in a restricted grammar
`[*lead, T, T, K, d]` for the states of each span in each role. Tables are built for a few heads, or spans, at a time.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.numerics.charts import by_width
from tailsum.numerics.check import check_tensor
from tailsum.numerics.kernels import fused
from tailsum.numerics.noise import Choose
from tailsum.numerics.reduce import LogProduct, Reduce
from tailsum.numerics.stream import Parts, streamed
from tailsum.numerics.tensors import scaled, take
from tailsum.numerics.tiles import fits_budget, tile_size
from tailsum.sketch.sweep import Sweep
from tailsum.trees.reader import TreeReader
from tailsum.trees.rules.dense import DenseRule
from tailsum.trees.rules.grammar_reader import Expansion
from tailsum.trees.rules.rule import Norms, Rule
from tailsum.trees.rules.span_rule import SpanRule, SpanTables, child_ids, taken
from tailsum.trees.rules.whole_rule import Between, Heads, Kind, Lefts, Rights, WholeRule

This = TypeVar("This", bound="VectorRule")


class VectorRule(Rule):
    """Rules scored from a vector for each head, each left and each right child."""

    factor: tuple[Tensor, ...] = ()  # of every score, if there is one

    @staticmethod
    @abstractmethod
    def scores(
        head: Float[Tensor, "*#lead a d"], left: Float[Tensor, "*#lead b d"], right: Float[Tensor, "*#lead c d"]
    ) -> Float[Tensor, "*lead a b c"]:
        """Scores of all given heads with all given left and right children."""

    def norm(self, vectors: Float[Tensor, "*lead n d"]) -> Float[Tensor, "*lead n"]:
        """The L1 norm of each vector."""
        return vectors.abs().sum(-1)

    def map(self: This, change: Callable[[Tensor], Tensor]) -> This:
        return self.with_vectors([change(x) for x in self.tensors], self.factor)

    def with_vectors(self: This, vectors: Sequence[Tensor], factor: tuple[Tensor, ...]) -> This:
        """The same kind of rules from other vectors."""
        other = object.__new__(type(self))
        other.tensors, other.factor = tuple(vectors), factor
        other.n_heads, other.n_children = self.n_heads, self.n_children
        return other

    def scaled(self: This, factor: Float[Tensor, ""] | float) -> This:
        factor = torch.as_tensor(factor, dtype=self.tensors[0].dtype, device=self.tensors[0].device)
        return self.with_vectors(self.tensors, (self.factor[0] * factor if self.factor else factor,))

    def scored(self, factor: tuple[Tensor, ...], *vectors: Tensor) -> Tensor:
        """Scores of all given vectors, times the factor if there is one."""
        plain = self.scores(*vectors)
        return scaled(plain, *factor) if factor else plain


class FactorRule(VectorRule, WholeRule):
    """Over all states: `head [*lead, N, d]`, `left [*lead, N+P, d]` and `right [*lead, N+P, d]`.

    A sketch needs only the vectors of the states it keeps. Exact sums need the table of all rules; where it does not fit
    `table_budget`, they build it a few heads at a time, once for each width of spans.
    """

    trailing = 2
    span_kind: type["SpanFactors"]
    _table: DenseRule | None = None

    def __init__(
        self,
        head: Float[Tensor, "*#lead N d"],
        left: Float[Tensor, "*#lead C d"],
        right: Float[Tensor, "*#lead C d"],
    ) -> None:
        for name, x in (("head", head), ("left", left), ("right", right)):
            check_tensor(name, x)
        got = f"got {list(head.shape)}, {list(left.shape)} and {list(right.shape)}"
        if min(head.dim(), left.dim(), right.dim()) < 2 or left.shape[-2] != right.shape[-2]:
            raise ValueError(f"head, left and right must be [*lead, N, d], [*lead, N+P, d] and [*lead, N+P, d]: {got}")
        if not head.shape[-1] == left.shape[-1] == right.shape[-1] > 0:
            raise ValueError(f"head, left and right must have the same last dimension, of at least 1: {got}")
        try:
            torch.broadcast_shapes(head.shape[:-2], left.shape[:-2], right.shape[:-2])
        except RuntimeError:
            raise ValueError(f"head, left and right must have leading dimensions that broadcast: {got}") from None
        self.tensors, self.n_heads, self.n_children = (head, left, right), head.shape[-2], left.shape[-2]

    def at_spans(self, index: Int[Tensor, "*lead T T k"]) -> SpanRule:
        child = child_ids(index, self.n_heads, self.n_children).flatten(-3)
        pairs = zip(self.tensors, (index.clamp(max=self.n_heads - 1).flatten(-3), child, child), strict=True)
        rule = object.__new__(self.span_kind)
        rule.n_heads, rule.n_children = self.n_heads, self.n_children
        return rule.with_vectors([take(x, i).unflatten(-2, index.shape[-3:]) for x, i in pairs], self.factor)

    def state_norms(self) -> Norms:
        """A state's embedding is its vectors in all roles, side by side."""
        head, left, right = map(self.norm, self.tensors)
        child = (left + right)[..., None, None, :]
        return Norms(head[..., None, None, :] + child[..., : self.n_heads], child[..., self.n_heads :])

    def block(self) -> Float[Tensor, "*lead N C C"]:
        """The whole table."""
        return self.scored(self.factor, *self.tensors)

    def tabled(self) -> DenseRule:
        return DenseRule(self.block())

    def as_table(self) -> DenseRule | None:
        return self.tabled() if self._fits() else None

    def reader(self, spans: Float[Tensor, "B T T n"], length: Tensor, choose: Choose, reduce: Reduce) -> TreeReader:
        """By kernels, from the table."""
        table = self.as_table() if fused(spans, *self.tensors) else None
        return (
            super().reader(spans, length, choose, reduce)
            if table is None
            else table.reader(spans, length, choose, reduce)
        )

    def total(self, spans: Float[Tensor, "B T T n"], length: Int[Tensor, " B"], reduce: Reduce) -> Float[Tensor, " B"]:
        """By kernels, from the table."""
        table = self.as_table() if fused(spans, *self.tensors) else None
        return super().total(spans, length, reduce) if table is None else table.total(spans, length, reduce)

    def between(self, head: Heads, left: Lefts, right: Rights) -> Between:
        pairs = zip(self.tensors, (head, left, right), strict=True)
        return self.scored(self.factor, *(take(x, i.flatten(-3)).unflatten(-2, i.shape[-3:]) for x, i in pairs))

    def rows(self, batch: Int[Tensor, " r"], head: Int[Tensor, " r"]) -> Float[Tensor, "r C C"]:
        heads, left, right = (x[batch if len(x) > 1 else torch.zeros_like(batch)] for x in self.tensors)
        return self.scored(self.factor, heads.take_along_dim(head[:, None, None], 1), left, right)[:, 0]

    def _fits(self) -> bool:
        """Whether the table, its exponentials and, if recorded, their gradients fit the budget for tables."""
        copies = 4 if torch.is_grad_enabled() else 2
        entries = math.prod(self.lead) * self.n_heads * self.n_children**2
        return fits_budget(copies * entries * self.tensors[0].element_size())

    def sweep(self, spans: Float[Tensor, "B T T n"], length: Int[Tensor, " B"], batch: torch.Size) -> Sweep:
        """By exact messages where the table of all rules may be built."""
        return (self.tabled() if self._fits() else super()).sweep(spans, length, batch)

    def contract_pairs(self, pairs: Float[Tensor, "G r pair"], kind: Kind, reduce: Reduce) -> Float[Tensor, "G r N"]:
        if self._table is None and self._fits():
            self._table = DenseRule(self.block())
        if self._table is not None:
            return self._table.contract_pairs(pairs, kind, reduce)
        left, right = (x[..., self.children(leaf), :] for x, leaf in zip(self.tensors[1:], kind, strict=True))

        def tile(parts: Parts) -> Parts:
            (head,), (pairs, left, right, *factor) = parts
            table = self.scored(tuple(factor), head, left, right)
            return Parts((LogProduct(table.flatten(-2).mT, reduce)(pairs).mT,))

        whole = (pairs, left, right, *self.factor)
        chunk = max(1, 4 * tile_size(pairs.device) // max(1, left.shape[-2] * right.shape[-2]))
        return streamed(tile, Parts((self.tensors[0],), whole), chunk, 1).rows[0].mT


class SpanFactors(VectorRule, SpanRule):
    """Over the states that spans keep: vectors `[*lead, T, T, K, d]` in each role."""

    trailing = 4

    def state_norms(self) -> Norms:
        head, left, right = map(self.norm, self.tensors)
        return Norms(head + left + right, left + right)

    def at_spans(self, index: Int[Tensor, "*lead T T k"]) -> "SpanFactors":
        return self.map(lambda x: taken(x, index[..., None], -2))

    def rows(self, at: Expansion) -> Float[Tensor, "r T k k"]:
        of_head, of_left, of_right = (at.batch if len(x) > 1 else torch.zeros_like(at.batch) for x in self.tensors)
        heads, left, right = self.tensors
        head = heads[of_head, at.first, at.last, at.head][:, None, None]
        after = (torch.arange(left.shape[1], device=left.device) + 1).clamp(max=left.shape[1] - 1)
        right = right[of_right[:, None], after, at.last[:, None]]
        return self.scored(self.factor, head, left[of_left, at.first], right)[:, :, 0]

    def tabled(self) -> SpanTables:
        length, lead = self.tensors[0].shape[-4], self.lead
        charts = [by_width(x.expand(*lead, *x.shape[-4:]).reshape(lead.numel(), *x.shape[-4:])) for x in self.tensors]
        tables = []
        for width in range(2, length + 1):
            head, left, right = self._around(charts, width)
            table = self.scored(self.factor, head[:, :, None], left, right)
            tables.append(table.reshape(*lead, *table.shape[1:]))
        return SpanTables(tables, self.n_heads, self.n_children)

    @staticmethod
    def _around(charts: list[list[Tensor]], width: int) -> tuple[Tensor, Tensor, Tensor]:
        """The vectors of the heads `[G, n, K, d]` of one width and of their children `[G, n, split, K, d]`."""
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
        """A few spans at a time: tables are built and dropped."""
        charts = [by_width(x) for x in self.tensors]
        before, after = torch.stack(list(left), 2), torch.stack(list(right), 2)
        inputs = (*self._around(charts, width), before, after)
        lead, (splits, size) = after.shape[:2], after.shape[2:]
        if not lead.numel():
            return after[:, :, 0]
        shapes = [x.shape[2:] for x in inputs]
        rows = (x.expand(*lead, *x.shape[2:]).reshape(lead.numel(), x.shape[2:].numel()) for x in inputs)

        def tile(parts: Parts) -> Parts:
            pieces = (x.reshape(-1, *shape) for x, shape in zip(parts.rows, shapes, strict=True))
            head, left, right, before, after = pieces
            table = self.scored(parts.whole, head[:, None], left, right)
            table = table + before[..., None, :, None] + after[..., None, None, :]
            return Parts((reduce(reduce(table.flatten(-2), -1), 1),))

        chunk = max(1, 4 * tile_size(after.device) // max(1, splits * size**3))
        return streamed(tile, Parts(tuple(rows), self.factor), chunk, 1).rows[0].reshape(*lead, size)
