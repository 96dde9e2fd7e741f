"""Sums over the trees of a grammar with rules of low rank: a merge over splits for each rank, and three products a width.

The reference is `LowRankRule` in `trees/rules`. The states of a span are summed into its ranks as a left and as a right child,
splits are merged rank by rank, and ranks are summed into the states of the larger span. The gradient in each factor is one
product over all spans.
"""

# pyright: reportArgumentType=false, reportOperatorIssue=false

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from tailsum.numerics.fused.chart import (
    Chart,
    Rows,
    children,
    first_row,
    highest_split,
    is_lost,
    over_totals,
    reachable,
)
from tailsum.numerics.fused.exponential import exp
from tailsum.numerics.fused.kernel import Kept
from tailsum.numerics.precision import in_float32, product
from tailsum.numerics.tensors import finite


@triton.jit(do_not_specialize=["width"])
def _merge(ranks, peaks, tops, out, B, T, R, width, S: tl.constexpr, BLOCK: tl.constexpr):
    """The weights of ranks `[spans, R]` of all spans of a width, summed over splits, from `ranks [rows, 2, R]` of children."""
    span, count = tl.program_id(0), T - width + 1
    b, i = span // count, span % count
    r = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    top = highest_split(peaks, b, i, width, B, T, S)
    tl.store(tops + first_row(width, B, T) + span, top)
    base = tl.where(top > -float("inf"), top, 0.0)
    total = tl.zeros((BLOCK,), tl.float32)
    for s in range(1, width):
        left, right = children(b, i, s + 0 * span, width, B, T)
        weight = exp(tl.load(peaks + left) + tl.load(peaks + right) - base)
        x = tl.load(ranks + left * 2 * R + r, r < R, 0.0)
        y = tl.load(ranks + (right * 2 + 1) * R + r, r < R, 0.0)
        total += x * y * weight
    tl.store(out + span.to(tl.int64) * R + r, total, r < R)


@triton.jit(do_not_specialize=["width"])
def _spread(ranks, peaks, tops, of_merged, grads, B, T, R, width, BLOCK: tl.constexpr):
    """Add to `grads [rows, 2, R]` the gradients in the ranks of children from `of_merged [spans, R]`.

    A span is the left child of one span of this width and the right child of one: no two programs write to one place.
    """
    span, count = tl.program_id(0), T - width + 1
    b, i = span // count, span % count
    r = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    top = tl.load(tops + first_row(width, B, T) + span)
    base = tl.where(top > -float("inf"), top, 0.0)
    grad = tl.load(of_merged + span.to(tl.int64) * R + r, r < R, 0.0)
    for s in range(1, width):
        left, right = children(b, i, s + 0 * span, width, B, T)
        weight = grad * exp(tl.load(peaks + left) + tl.load(peaks + right) - base)
        left, right = left * 2 * R + r, (right * 2 + 1) * R + r
        x = tl.load(ranks + left, r < R, 0.0)
        y = tl.load(ranks + right, r < R, 0.0)
        tl.store(grads + left, tl.load(grads + left, r < R, 0.0) + y * weight, r < R)
        tl.store(grads + right, tl.load(grads + right, r < R, 0.0) + x * weight, r < R)


class _Grammar:
    """Exponentiated factors, and the chart of sentences under them."""

    def __init__(self, chart: Chart, head: Tensor, both: Tensor, ranks: Tensor, merged: Tensor) -> None:
        self.chart, self.head, self.both, self.ranks, self.merged = chart, head, both, ranks, merged
        self.rank = head.shape[-1]
        self.inner, self.leaves = both[: len(head)], both[len(head) :]

    @classmethod
    def summed(cls, spans: Tensor, head: Tensor, left: Tensor, right: Tensor, reach: bool = False) -> "_Grammar":
        """With the chart filled."""
        chart, rank = Chart(spans.contiguous(), len(head), len(left) - len(head)), head.shape[-1]
        tops = [finite(x.amax(0)) for x in (left, right)]
        both = torch.cat([(x - top).exp_() for x, top in zip((left, right), tops, strict=True)], -1)  # [N+P, 2 R]
        head = head + tops[0] + tops[1]
        scale = finite(head.amax(-1))
        rows, skip = len(chart.peaks), chart.batch * chart.length
        ranks, merged = spans.new_empty(rows, 2 * rank), spans.new_empty(rows - skip, rank)
        grammar = cls(chart, (head - scale[:, None]).exp_(), both, ranks, merged)
        chart.finish(1, spans.new_zeros(1, chart.n_leaves), reach=reach)
        with in_float32(spans):
            for width in range(2, chart.length + 1):
                grammar._grow(width)
                chart.finish(width, scale[None], reach=reach)
        return grammar

    def _grow(self, width: int) -> None:
        """The totals of one width."""
        chart, before = self.chart, self.chart.rows(width - 1)
        table = self.leaves if width == 2 else self.inner
        torch.mm(chart.of_width(chart.states, width - 1)[0], table, out=self.ranks[before])
        merged = self._of_width(self.merged, width)
        sizes = (chart.batch, chart.length, self.rank, width)
        _merge[self._grid(width)](self.ranks, chart.peaks, chart.tops, merged, *sizes, S=32, BLOCK=512)
        torch.mm(merged, self.head.mT, out=chart.totals(width)[:, 0])

    def _grid(self, width: int) -> tuple[int, int]:
        return self.chart.batch * (self.chart.length - width + 1), triton.cdiv(self.rank, 512)

    def _of_width(self, x: Tensor, width: int) -> Tensor:
        """The rows of one width, of the rows of all spans of several positions."""
        rows, skip = self.chart.rows(width), self.chart.batch * self.chart.length
        return x[rows.start - skip : rows.stop - skip]

    def gradients(self, lengths: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
        """The gradients of the log sums in the scores of spans and in the three factors."""
        chart = self.chart
        grads, of_ranks = torch.zeros_like(chart.states), torch.zeros_like(self.ranks)
        chart.seed(lengths, grad, grads)
        of_totals = self.ranks.new_empty(len(self.merged), chart.n_heads)
        nothing = torch.zeros_like(chart.of_width(grads, chart.length))
        for width in range(chart.length, 1, -1):
            of_states, from_parents = chart.of_width(grads, width), nothing
            if width < chart.length:
                from_parents = product(of_ranks[chart.rows(width)], self.inner.mT)[None]
                from_parents.mul_(chart.of_width(chart.states, width))
            totals = self._of_width(of_totals, width)
            totals.copy_(over_totals(of_states, from_parents, chart.totals(width))[:, 0])
            of_states += from_parents
            work = (self.ranks, chart.peaks, chart.tops, product(totals, self.head), of_ranks)
            _spread[self._grid(width)](*work, chart.batch, chart.length, self.rank, width, BLOCK=512)
        leaves, skip = chart.leaves(chart.states)[0], chart.batch * chart.length
        chart.leaves(grads)[0].copy_(product(of_ranks[:skip], self.leaves.mT).mul_(leaves))
        inner = product(chart.inner(chart.states)[0].mT, of_ranks[skip:]).mul_(self.inner)
        last = product(leaves.mT, of_ranks[:skip]).mul_(self.leaves)
        children = torch.cat((inner, last))
        head = product(of_totals.mT, self.merged).mul_(self.head)
        return chart.unpack(grads)[0], head, *children.split(self.rank, -1)


def forward(spans: Tensor, head: Tensor, left: Tensor, right: Tensor, *, lengths: Tensor) -> tuple[Tensor, Kept] | None:
    """Log of the sum over all trees `[B]` from scores `spans [B, T, T, S]`, T at least 2, and the factors of rules.

    The factors are `head [N, R]`, `left [N+P, R]` and `right [N+P, R]`. None for scores of so wide a range that products underflow.
    """
    scores = spans, head, left, right
    grammar = _Grammar.summed(*scores)
    chart = grammar.chart
    if is_lost(chart, lambda: _Grammar.summed(*map(reachable, scores), reach=True).chart):
        return None
    kept = (chart.spans, grammar.head, grammar.both, grammar.ranks, grammar.merged, *chart.kept)
    return chart.log_sums(lengths), kept


def backward(kept: Kept, grad: Tensor, _wanted: Sequence[bool], *, lengths: Tensor) -> Sequence[Tensor | None]:
    """The gradients in the scores of spans and in the factors."""
    spans, head, both, ranks, merged, *rows = kept
    chart = Chart(spans, len(head), len(both) - len(head), kept=Rows(*rows))
    return _Grammar(chart, head, both, ranks, merged).gradients(lengths, grad)
