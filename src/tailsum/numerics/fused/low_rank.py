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
    reachable,
)
from tailsum.numerics.fused.exponential import exp
from tailsum.numerics.fused.kernel import Kept
from tailsum.numerics.precision import in_float32
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


@triton.jit(do_not_specialize=["start", "size"])
def _receive(
    grads, from_parents, states, totals, of_totals, skip, start, size, LAST: tl.constexpr, BLOCK: tl.constexpr
):
    """Add to `grads` of the spans of a width what comes from larger spans; the gradients in their totals.

    `from_parents [spans, N]` are gradients in the states of spans, `grads` those in their logarithms. In `totals` the spans
    begin at `start`, in `states` and `grads` at `skip + start`. The LAST width has no parents.
    """
    k = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside, place = k < size, start + k
    grad = tl.load(grads + skip + place, inside, 0.0)
    if not LAST:
        grad += tl.load(from_parents + k, inside, 0.0) * tl.load(states + skip + place, inside, 0.0)
        tl.store(grads + skip + place, grad, inside)
    total = tl.load(totals + place, inside, 0.0)
    tl.store(of_totals + place, tl.where(total > 0, grad / tl.where(total > 0, total, 1.0), 0.0), inside)


class Grammar:
    """Exponentiated factors, and the chart of sentences under them."""

    def __init__(self, chart: Chart, head: Tensor, both: Tensor, ranks: Tensor, merged: Tensor) -> None:
        self.chart, self.head, self.both, self.ranks, self.merged = chart, head, both, ranks, merged
        self.rank = head.shape[-1]
        self.inner, self.leaves = both[: len(head)], both[len(head) :]

    @classmethod
    def summed(cls, spans: Tensor, head: Tensor, left: Tensor, right: Tensor, reach: bool = False) -> "Grammar":
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
            grammar._fill(scale[None], reach)
        return grammar

    def _fill(self, scale: Tensor, reach: bool) -> None:
        """The sums of all longer spans."""
        chart, sizes = self.chart, (self.chart.batch, self.chart.length, self.rank)
        inner, skip = chart.inner(chart.states)[0], chart.batch * chart.length
        torch.mm(chart.leaves(chart.states)[0], self.leaves, out=self.ranks[:skip])
        rows = zip(*map(chart.by_width, (inner, self.ranks[skip:], self.merged, chart.kept.totals[:, 0])), strict=True)
        from_ranks = self.head.mT
        for width, (states, ranks, merged, totals) in enumerate(rows, 2):
            work = (self.ranks, chart.peaks, chart.tops, merged)
            _merge[self._grid(width)](*work, *sizes, width, S=32, BLOCK=512)
            torch.mm(merged, from_ranks, out=totals)
            chart.finish(width, scale, reach=reach)
            if width < chart.length:
                torch.mm(states, self.inner, out=ranks)

    def _grid(self, width: int) -> tuple[int, int]:
        return self.chart.batch * (self.chart.length - width + 1), triton.cdiv(self.rank, 512)

    def gradients(self, lengths: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
        """The gradients of the log sums in the scores of spans and in the three factors."""
        chart = self.chart
        grads, of_ranks = torch.zeros_like(chart.states), torch.zeros_like(self.ranks)
        of_totals = self.ranks.new_empty(len(self.merged), chart.n_heads)
        chart.seed(lengths, grad, grads)
        with in_float32(grad):
            self._pass_down(grads, of_ranks, of_totals)
            leaves, skip = chart.leaves(chart.states)[0], chart.batch * chart.length
            torch.mul(of_ranks[:skip] @ self.leaves.mT, leaves, out=chart.leaves(grads)[0])
            inner = (chart.inner(chart.states)[0].mT @ of_ranks[skip:]).mul_(self.inner)
            last = (leaves.mT @ of_ranks[:skip]).mul_(self.leaves)
            head = (of_totals.mT @ self.merged).mul_(self.head)
        return chart.unpack(grads)[0], head, *torch.cat((inner, last)).split(self.rank, -1)

    def _pass_down(self, grads: Tensor, of_ranks: Tensor, of_totals: Tensor) -> None:
        """From the widest spans to those of two words, filling all three."""
        chart, sizes = self.chart, (self.chart.batch, self.chart.length, self.rank)
        skip, to_states = chart.batch * chart.length, self.inner.mT
        by_width = zip(chart.by_width(of_totals), chart.by_width(of_ranks[skip:]), strict=True)
        for width, (totals, ranks) in reversed(list(enumerate(by_width, 2))):
            last = width == chart.length
            from_parents = totals if last else ranks @ to_states
            start, size = (chart.first_row(width) - skip) * chart.n_heads, totals.numel()
            work = (grads, from_parents, chart.states, chart.kept.totals, of_totals)
            places = (skip * chart.n_leaves, start, size)
            _receive[(triton.cdiv(size, 1024),)](*work, *places, LAST=last, BLOCK=1024)
            work = (self.ranks, chart.peaks, chart.tops, totals @ self.head, of_ranks)
            _spread[self._grid(width)](*work, *sizes, width, BLOCK=512)


def forward(spans: Tensor, head: Tensor, left: Tensor, right: Tensor, *, lengths: Tensor) -> tuple[Tensor, Kept] | None:
    """Log of the sum over all trees `[B]` from scores `spans [B, T, T, S]`, T at least 2, and the factors of rules.

    The factors are `head [N, R]`, `left [N+P, R]` and `right [N+P, R]`. None for scores of so wide a range that products underflow.
    """
    scores = spans, head, left, right
    grammar = Grammar.summed(*scores)
    chart = grammar.chart
    if is_lost(chart, lambda: Grammar.summed(*map(reachable, scores), reach=True).chart):
        return None
    kept = (chart.spans, grammar.head, grammar.both, grammar.ranks, grammar.merged, *chart.kept)
    return chart.log_sums(lengths), kept


def backward(kept: Kept, grad: Tensor, _wanted: Sequence[bool], *, lengths: Tensor) -> Sequence[Tensor | None]:
    """The gradients in the scores of spans and in the factors."""
    spans, head, both, ranks, merged, *rows = kept
    chart = Chart(spans, len(head), len(both) - len(head), kept=Rows(*rows))
    return Grammar(chart, head, both, ranks, merged).gradients(lengths, grad)
