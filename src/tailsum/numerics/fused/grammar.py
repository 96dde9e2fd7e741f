"""Sums over the trees of a grammar with a table of rules: three launches a width forward, and three backward.

The reference is `DenseRule` in `trees/rules`. Splits are merged into pairs of children, then one product contracts the pairs
with the rules. Kinds of pairs: 0, two nonterminals; 1, a preterminal and a nonterminal; 2, a nonterminal and a preterminal; and
3, two preterminals, for spans of two words alone.

With slopes along a direction, every number has two parts, and the same products serve blocks of them. Rules R and their slopes
S are `[R; S]`. Pairs are `[slope; sum]`, times both: one row has `slope R`, the other `sum R` and `sum S`. Gradients of totals are
`[gradient, 0; slope, gradient]`: times `[R; S]` they are the gradients of pairs, and their transpose times the pairs are
those of the rules, slope first.
"""

# pyright: reportArgumentType=false

import math
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
    split_weights,
)
from tailsum.numerics.fused.kernel import Kept
from tailsum.numerics.precision import in_float32
from tailsum.numerics.tensors import finite

PAIRS = 2**24  # weights of pairs of children in memory at once, in a backward pass


@triton.jit
def kind_of(kind, width, N, P):
    """For a kind of pairs: the numbers of left and right states, the sizes of left children, and where its pairs begin."""
    left = tl.where((kind == 0) | (kind == 2), N, P)
    right = tl.where(kind <= 1, N, P)
    low = tl.where(kind == 0, 2, tl.where(kind == 2, width - 1, 1))
    high = tl.where(kind == 0, width - 1, tl.where(kind == 2, width, 2))
    start = tl.where(kind == 1, N * N, tl.where(kind == 2, N * N + P * N, 0))
    return left, right, low, high, start


@triton.jit
def place_of(row, size, B, T, N, P):
    """Where the states of rows begin: the rows of single positions come first."""
    leaves = B * T
    return tl.where(size == 1, row * P, leaves * P + (row - leaves) * N)


@triton.jit(do_not_specialize=["width"])
def _merge(
    states, peaks, tops, pairs, entries, B, T, N, P, width, Q, G,
    PARTS: tl.constexpr, L: tl.constexpr, S: tl.constexpr,
):  # fmt: skip
    """The weights of pairs of children, summed over splits, in units of `exp(tops)`; slopes first.

    Of all spans of as many widths as the third axis of programs has, from `width` on: `[G, spans of a group, PARTS, Q]`.
    """
    begin, last = first_row(width, B, T), first_row(width + tl.num_programs(2), B, T)
    width += tl.program_id(2)
    span, block, count = tl.program_id(0), tl.program_id(1), T - width + 1
    if span >= B * count:
        return
    b, i = span // count, span % count
    each = B // G * count
    row = span // each * ((last - begin) // G) + (first_row(width, B, T) - begin) // G + span % each
    heads, leaves = tl.cdiv(N, L), tl.cdiv(P, L)
    first, second = heads * heads, heads * heads + leaves * heads
    kind = tl.where(width == 2, 3, tl.where(block < first, 0, tl.where(block < second, 1, 2)))
    block -= tl.where(kind == 1, first, tl.where(kind == 2, second, 0))
    n_left, n_right, low, high, start_of_kind = kind_of(kind, width, N, P)
    across = tl.cdiv(n_right, L)
    l, r = block // across * L + tl.arange(0, L), block % across * L + tl.arange(0, L)
    top = highest_split(peaks, b, i, width, B, T, S)
    tl.store(tops + first_row(width, B, T) + span, top)
    total = tl.zeros((L, L), tl.float32)
    slope = tl.zeros((L, L), tl.float32)
    for start in range(low, high, S):
        s = start + tl.arange(0, S)
        left, right = children(b, i, s, width, B, T)
        weight = split_weights(peaks, left, right, s < high, top)
        left, right = place_of(left, s, B, T, N, P), place_of(right, width - s, B, T, N, P)
        of_left, of_right = left[None, :] + l[:, None], right[:, None] + r[None, :]
        in_left, in_right = (s < high)[None, :] & (l < n_left)[:, None], (s < high)[:, None] & (r < n_right)[None, :]
        x = tl.load(states + of_left, in_left, 0.0) * weight[None, :]
        y = tl.load(states + of_right, in_right, 0.0)
        total += tl.dot(x, y, input_precision="tf32x3")
        if PARTS == 2:
            slope += tl.dot(x, tl.load(states + entries + of_right, in_right, 0.0), input_precision="tf32x3")
            x = tl.load(states + entries + of_left, in_left, 0.0) * weight[None, :]
            slope += tl.dot(x, y, input_precision="tf32x3")
    place = pairs + row.to(tl.int64) * PARTS * Q + start_of_kind + l[:, None] * n_right + r[None, :]
    inside = (l < n_left)[:, None] & (r < n_right)[None, :]
    tl.store(place + (PARTS - 1) * Q, total, inside)
    if PARTS == 2:
        tl.store(place, slope, inside)


@triton.jit(do_not_specialize=["width"])
def _spread(
    states, peaks, tops, pairs, grads, entries, B, T, N, P, width, Q,
    PARTS: tl.constexpr, L: tl.constexpr, S: tl.constexpr,
):  # fmt: skip
    """Add to `grads [2, PARTS, entries]`, for left and right children, the gradients of their states from `pairs [spans, PARTS, Q]`.

    A span is the left child of one span of this width and the right child of one: no two programs write to one place.
    """
    span, block, count = tl.program_id(0), tl.program_id(1), T - width + 1
    b, i = span // count, span % count
    heads, leaves = tl.cdiv(N, L), tl.cdiv(P, L)
    whole = tl.where(width == 2, leaves, 2 * heads + leaves)  # blocks of left states, and as many of right states
    to_left = block < whole
    block = tl.where(to_left, block, block - whole)
    # Left states: N, P, N by kind. Right states: N, N, P.
    first, second = heads, tl.where(to_left, heads + leaves, 2 * heads)
    kind = tl.where(width == 2, 3, tl.where(block < first, 0, tl.where(block < second, 1, 2)))
    block -= tl.where(kind == 1, first, tl.where(kind == 2, second, 0))
    n_left, n_right, low, high, begin = kind_of(kind, width, N, P)
    own, others = tl.where(to_left, n_left, n_right), tl.where(to_left, n_right, n_left)
    own_step, other_step = tl.where(to_left, n_right, 1), tl.where(to_left, 1, n_right)
    pairs += span.to(tl.int64) * PARTS * Q + begin
    grads += tl.where(to_left, 0, PARTS * entries)
    top = tl.load(tops + first_row(width, B, T) + span)
    l = block * L + tl.arange(0, L)
    for start in range(low, high, S):
        s = start + tl.arange(0, S)
        left, right = children(b, i, s, width, B, T)
        weight = split_weights(peaks, left, right, s < high, top)
        left, right = place_of(left, s, B, T, N, P), place_of(right, width - s, B, T, N, P)
        mine, theirs = tl.where(to_left, left, right), tl.where(to_left, right, left)
        total = tl.zeros((S, L), tl.float32)
        slope = tl.zeros((S, L), tl.float32)
        for other in range(0, others, L):
            c = other + tl.arange(0, L)
            at, there = theirs[:, None] + c[None, :], (s < high)[:, None] & (c < others)[None, :]
            y = tl.load(states + at, there, 0.0) * weight[:, None]
            inside = (c < others)[:, None] & (l < own)[None, :]
            pair = pairs + c[:, None] * other_step + l[None, :] * own_step
            g = tl.load(pair, inside, 0.0)
            total += tl.dot(y, g, input_precision="tf32x3")
            if PARTS == 2:
                slope += tl.dot(y, tl.load(pair + Q, inside, 0.0), input_precision="tf32x3")
                y = tl.load(states + entries + at, there, 0.0) * weight[:, None]
                slope += tl.dot(y, g, input_precision="tf32x3")
        inside = (s < high)[:, None] & (l < own)[None, :]
        place = mine[:, None] + l[None, :]
        x = tl.load(states + place, inside, 0.0)
        tl.store(grads + place, tl.load(grads + place, inside, 0.0) + total * x, inside)
        if PARTS == 2:
            slope = slope * x + total * tl.load(states + entries + place, inside, 0.0)
            place += entries
            tl.store(grads + place, tl.load(grads + place, inside, 0.0) + slope, inside)


class Grammar:
    """Exponentiated rules `[G, parts N, pairs]`, for spans of two words and for others, and the chart of sentences under them."""

    def __init__(self, chart: Chart, tables: Sequence[Tensor]) -> None:
        self.chart, self.tables, self.groups = chart, tables, len(tables[0])

    @classmethod
    def summed(
        cls, spans: Tensor, rules: Tensor, slopes: tuple[Tensor, Tensor] | None = None, reach: bool = False
    ) -> "Grammar":
        """With the chart filled; `slopes` of the scores of spans and of rules, if slopes are wanted."""
        heads, states = rules.shape[1:3]
        scores = by_pairs(rules, heads)
        scales = [finite(x.amax(-1)) for x in scores]
        tables = [(x - scale[..., None]).exp_() for x, scale in zip(scores, scales, strict=True)]
        if slopes is not None:
            changes = by_pairs(slopes[1], heads)
            tables = [torch.cat((table, table * change), 1) for table, change in zip(tables, changes, strict=True)]
        chart = Chart(spans.contiguous(), heads, states - heads, 1 if slopes is None else 2)
        grammar = cls(chart, tables)
        of_spans = None if slopes is None else slopes[0].contiguous()
        chart.finish(1, spans.new_zeros(1, chart.n_leaves), of_spans, reach)
        with in_float32(spans):
            to_heads = [table.mT for table in tables]
            for width, totals in enumerate(chart.by_width(chart.kept.totals), 2):
                torch.bmm(grammar.merged(width), to_heads[width > 2], out=grammar.grouped(totals))
                chart.finish(width, scales[width > 2], of_spans, reach)
        return grammar

    def grouped(self, x: Tensor) -> Tensor:
        """Rows with all their parts, by the table of rules that they have."""
        return x.view(self.groups, -1, x.shape[-1])

    def _launch(
        self,
        kernel: triton.JITFunction,
        blocks: int,
        tensors: Sequence[Tensor],
        width: int,
        widths: int = 1,
        *groups: int,
    ) -> None:
        """With one program for each span of some widths and each block."""
        chart = self.chart
        sizes = (chart.states.shape[1], chart.batch, chart.length, chart.n_heads, chart.n_leaves, width)
        grid = (chart.batch * (chart.length - width + 1), blocks, widths)
        pairs, how = self.tables[width > 2].shape[-1], {"PARTS": chart.parts, **self._tiles()}
        kernel[grid](chart.states, chart.peaks, chart.tops, *tensors, *sizes, pairs, *groups, **how)

    def _tiles(self) -> dict[str, int]:
        small = self.chart.n_heads <= 32 or self.chart.parts == 2
        return {"L": 32 if small else 64, "S": 16, "num_warps": 4 * self.chart.parts}

    def _blocks(self) -> tuple[int, int]:
        """How many tiles the nonterminals and the preterminals take."""
        size = self._tiles()["L"]
        return triton.cdiv(self.chart.n_heads, size), triton.cdiv(self.chart.n_leaves, size)

    def merged(self, width: int, widths: int = 1) -> Tensor:
        """The pairs of children of all spans of some widths, of two alone or from three on, `[G, rows and parts, pairs]`."""
        chart, (heads, leaves) = self.chart, self._blocks()
        rows, size = chart.first_row(width + widths) - chart.first_row(width), self.tables[width > 2].shape[-1]
        pairs = chart.spans.new_empty(self.groups, rows * chart.parts // self.groups, size)
        blocks = leaves**2 if width == 2 else heads**2 + 2 * heads * leaves
        self._launch(_merge, blocks, [pairs], width, widths, self.groups)
        return pairs

    def gradients(self, lengths: Tensor, grad: Tensor, with_rules: bool) -> tuple[Tensor, Tensor | None]:
        """The gradients of the log sums in the scores of spans and of rules `[parts, ..]`, with their slopes."""
        chart, (heads, leaves) = self.chart, self._blocks()
        both = chart.states.new_zeros(2, *chart.states.shape)
        chart.seed(lengths, grad, both[0])
        sent = {}
        with in_float32(grad):
            for width in range(chart.length, 1, -1):
                sent[width] = self.grouped(chart.over_totals(both, width))
                pairs = torch.bmm(sent[width], self.tables[width > 2])
                self._launch(_spread, 2 * (leaves if width == 2 else 2 * heads + leaves), [pairs, both], width)
            rules = self._rules(self._tables(sent)) if with_rules else None
        return chart.unpack(both[0].add_(both[1])), rules

    def _tables(self, sent: dict[int, Tensor]) -> list[Tensor]:
        """The gradients in the tables, from those in the totals of each width: by products over the spans of many widths."""
        found = [torch.bmm(sent[2].mT, self.merged(2)), torch.zeros_like(self.tables[1])]
        count, widest = self.chart.first_row, self.chart.length
        most = max(1, PAIRS // (self.chart.parts * self.tables[1].shape[-1]))
        width = 3
        while width <= widest:
            stop = width + 1
            while stop <= widest and count(stop + 1) - count(width) <= most:
                stop += 1
            of_totals = torch.cat([sent[w] for w in range(width, stop)], 1)
            found[1].baddbmm_(of_totals.mT, self.merged(width, stop - width))
            width = stop
        return found

    def _rules(self, grads: list[Tensor]) -> Tensor:
        """The gradient in the scores of rules from the gradients in their exponentials, slope first: `[parts, G, N, C, C]`."""
        n, p = self.chart.n_heads, self.chart.n_leaves
        found = list[Tensor]()
        for grad, table in zip(grads, self.tables, strict=True):
            slope, own = grad[:, :n], grad[:, -n:]
            rules, changes = table[:, :n], table[:, -n:]
            in_scores = own * rules
            found.append(
                in_scores[None] if len(grad[0]) == n else torch.stack((in_scores, slope * rules + own * changes))
            )
        ends, rest = found
        both, last, first = rest.split((n * n, p * n, n * p), -1)
        upper = torch.cat((both.unflatten(-1, (n, n)), first.unflatten(-1, (n, p))), -1)
        lower = torch.cat((last.unflatten(-1, (p, n)), ends.unflatten(-1, (p, p))), -1)
        return torch.cat((upper, lower), -2)

    def kept(self) -> Kept:
        """What `again` needs."""
        return self.chart.spans, *self.tables, *self.chart.kept

    @classmethod
    def again(cls, kept: Kept) -> "Grammar":
        """As it was, from what was kept."""
        spans, ends, rest, *rows = kept
        chart = Rows(*rows)
        parts = len(chart.states)
        leaves = math.isqrt(ends.shape[-1])
        return cls(Chart(spans, ends.shape[1] // parts, leaves, parts, chart), (ends, rest))

    def is_lost(self, spans: Tensor, rules: Tensor) -> bool:
        """Whether a positive sum underflowed."""
        return is_lost(self.chart, lambda: Grammar.summed(reachable(spans), reachable(rules), reach=True).chart)


def by_pairs(rules: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Scores `[G, N, pairs]` of rules for spans of two words, and for others: the pairs of kinds 0, 1 and 2."""
    inner, leaf = slice(0, heads), slice(heads, None)
    kinds = (inner, inner), (leaf, inner), (inner, leaf)
    rest = torch.cat([rules[:, :, left, right].flatten(2) for left, right in kinds], -1)
    return rules[:, :, leaf, leaf].flatten(2), rest


def forward(spans: Tensor, rules: Tensor, *, lengths: Tensor) -> tuple[Tensor, Kept] | None:
    """Log of the sum over all trees `[B]` from scores `spans [B, T, T, S]` and `rules [G, N, N+P, N+P]`, T at least 2.

    None for scores of so wide a range that products underflow.
    """
    grammar = Grammar.summed(spans, rules)
    return None if grammar.is_lost(spans, rules) else (grammar.chart.log_sums(lengths), grammar.kept())


def backward(kept: Kept, grad: Tensor, wanted: Sequence[bool], *, lengths: Tensor) -> Sequence[Tensor | None]:
    """The gradients in the scores of spans and of rules."""
    spans, rules = Grammar.again(kept).gradients(lengths, grad, wanted[1])
    return spans[0], None if rules is None else rules[0]
