"""Charts of grammars: the order of their rows, and the step from sums over rules to the states of spans.

A chart has one row for each span, ordered by width, sentence and first position, so the rows of a width are contiguous. Row r
holds a peak, the highest inside sum of its states, and the exponentials of all of them relative to the peak, at most one.

Sums in these units are products. They underflow only where a sum is far below the highest that its span could have: totals
below `FLOOR` are suspect. All totals are checked together at the end.

A chart of two parts has, beside each number, its slope along a direction in the scores. The slope of a product is a sum of two
products, so all slopes together are one more sum of products: `grammar.py`.
"""

# pyright: reportArgumentType=false, reportOperatorIssue=false, reportPossiblyUnboundVariable=false

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from tailsum.numerics.fused.exponential import exp

FLOOR = 1e-26  # lower sums may have lost terms


@triton.jit
def first_row(width, B, T):
    """The row of the first span of a width."""
    return B * ((width - 1) * (T + 1) - (width - 1) * width // 2)


@triton.jit
def children(b, i, s, width, B, T):
    """The rows of the two children of a span of sentence b from i on; the left child has s positions."""
    left = first_row(s, B, T) + b * (T - s + 1) + i
    right = first_row(width - s, B, T) + b * (T - width + s + 1) + i + s
    return left.to(tl.int64), right.to(tl.int64)


@triton.jit
def highest_split(peaks, b, i, width, B, T, S: tl.constexpr):
    """The highest sum of the peaks of two children of a span, over all splits."""
    top = tl.full((S,), -float("inf"), tl.float32)
    for start in range(1, width, S):
        s = start + tl.arange(0, S)
        left, right = children(b, i, s, width, B, T)
        x = tl.load(peaks + left, s < width, -float("inf")) + tl.load(peaks + right, s < width, -float("inf"))
        top = tl.maximum(top, x)
    return tl.max(top, 0)


@triton.jit
def split_weights(peaks, left, right, inside, top):
    """`exp(peaks of two children - top)` for some splits; zero where something is minus infinity."""
    x = tl.load(peaks + left, inside, -float("inf")) + tl.load(peaks + right, inside, -float("inf"))
    there = x > -float("inf")
    return tl.where(there, exp(tl.where(there, x, 0.0) - tl.where(there, top, 0.0)), 0.0)


@triton.jit(do_not_specialize=["width"])
def _finish(
    spans, slopes, totals, scale, tops, states, peaks, low, B, T, N, P, entries, stride, per_group, width, floor,
    PARTS: tl.constexpr, LEAVES: tl.constexpr, REACH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Inside sums of the states of all spans of a width, from totals `[rows, PARTS, PARTS N]` in units of `exp(tops + scale)`.

    LEAVES (width 1) have no totals. Writes the rows of `states [PARTS, entries]` and `peaks`, and to `low` whether a total is
    below `floor`.
    """
    span, count = tl.program_id(0), T - width + 1
    b, i = span // count, span % count
    row = first_row(width, B, T) + span
    place = ((b * T + i).to(tl.int64) * T + i + width - 1) * stride
    spans, slopes = spans + place, slopes + place
    if LEAVES:
        size = P
        states += row.to(tl.int64) * P
    else:
        size = N
        longer = (row - B * T).to(tl.int64) * N
        states += (B * T).to(tl.int64) * P + longer
        totals += longer * PARTS * PARTS
    scale += (span // per_group).to(tl.int64) * size
    top = tl.load(tops + row + tl.zeros((BLOCK,), tl.int32), LEAVES == 0, 0.0)
    possible = top > -float("inf")
    peak = tl.full((BLOCK,), -float("inf"), tl.float32)
    few = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, size, BLOCK):
        h = start + tl.arange(0, BLOCK)
        inside = tl.load(spans + h, h < size, -float("inf"))
        if PARTS == 2:
            slope = tl.load(slopes + h, h < size, 0.0)
        if not LEAVES:
            # Of two parts the first row has the slopes of pairs times the rules, the second has their sums times both.
            total = tl.load(totals + (PARTS - 1) * PARTS * size + h, h < size, 0.0)
            there = (total > 0) & (inside > -float("inf")) & possible
            few = tl.maximum(few, tl.where((total < floor) & (inside > -float("inf")) & possible, 1, 0))
            if REACH:
                inside = tl.where(there, 0.0, -float("inf"))
            else:
                common = tl.where(possible, top, 0.0)
                more = tl.log(tl.where(there, total, 1.0)) + common + tl.load(scale + h, h < size, 0.0)
                inside = tl.where(there, tl.where(there, inside, 0.0) + more, -float("inf"))
            if PARTS == 2:
                change = tl.load(totals + h, h < size, 0.0) + tl.load(totals + 3 * size + h, h < size, 0.0)
                slope += tl.where(there, change, 0.0) / tl.where(there, total, 1.0)
        peak = tl.maximum(peak, inside)
        tl.store(states + h, inside, h < size)
        if PARTS == 2:
            tl.store(states + entries + h, slope, h < size)
    high = tl.max(peak, 0)
    tl.store(peaks + row, high)
    tl.store(low + row, tl.max(few, 0))
    base = tl.where(high > -float("inf"), high, 0.0)
    tl.debug_barrier()
    for start in range(0, size, BLOCK):
        h = start + tl.arange(0, BLOCK)
        weight = exp(tl.load(states + h, h < size, -float("inf")) - base)
        tl.store(states + h, weight, h < size)
        if PARTS == 2:
            tl.store(states + entries + h, weight * tl.load(states + entries + h, h < size, 0.0), h < size)


@triton.jit
def _unpack(grads, squares, entries, B, T, P, N, stride, BLOCK: tl.constexpr):
    """Gradients of rows as squares `[B, T, T, stride]`; zero below the diagonal and for states that a span cannot have."""
    place, part = tl.program_id(0), tl.program_id(1).to(tl.int64)
    b, i, j = place // (T * T), place // T % T, place % T
    squares += (part * B * T * T + place) * stride
    grads += part * entries
    width = tl.maximum(j - i + 1, 1)
    row = (first_row(width, B, T) + b * (T - width + 1) + i).to(tl.int64)
    leaves, inner = grads + row * P, grads + B * T * P + (row - B * T) * N
    for start in range(0, stride, BLOCK):
        h = start + tl.arange(0, BLOCK)
        leaf = tl.load(leaves + h, h < tl.where(i == j, P, 0), 0.0)
        other = tl.load(inner + h, h < tl.where(j > i, N, 0), 0.0)
        tl.store(squares + h, leaf + other, h < stride)


@triton.jit(do_not_specialize=["begin", "skip"])
def _divide(grads, totals, out, begin, skip, size, N, entries, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """`(left + right) / totals` `[rows, N]`, zero where the total is zero; of two parts, see `over_totals`.

    The rows begin at `begin` in the two halves of `grads [2, PARTS, entries]`, `skip` before in `totals`.
    """
    k = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    place = k if PARTS == 1 else k // N * (4 * N) + k % N
    left, right, totals = grads + begin, grads + begin + PARTS * entries, totals + (begin - skip) * PARTS * PARTS
    total = tl.load(totals + place + (PARTS - 1) * PARTS * N, k < size, 1.0)
    there = total > 0
    total = tl.where(there, total, 1.0)
    sent = tl.load(left + k, k < size, 0.0) + tl.load(right + k, k < size, 0.0)
    ratio = tl.where(there, sent / total, 0.0)
    tl.store(out + place, ratio, k < size)
    if PARTS == 2:
        sent = tl.load(left + entries + k, k < size, 0.0) + tl.load(right + entries + k, k < size, 0.0)
        change = tl.load(totals + place, k < size, 0.0) + tl.load(totals + place + 3 * N, k < size, 0.0)
        slope = tl.where(there, (sent - ratio * change) / total, 0.0)
        tl.store(out + place + N, ratio * 0.0, k < size)
        tl.store(out + place + 2 * N, slope, k < size)
        tl.store(out + place + 3 * N, ratio, k < size)


def _block(size: int) -> int:
    return min(1024, max(16, triton.next_power_of_2(size)))


class Rows(NamedTuple):
    """What is computed of a chart: its states `[parts, entries]`, peaks and highest splits, and the totals of longer spans."""

    states: Tensor
    peaks: Tensor
    tops: Tensor
    totals: Tensor


class Chart:
    """The rows of a chart over scores `spans [B, T, T, S]`, with N states for spans of several positions and P for one.

    `parts` is 2 with slopes along a direction.
    """

    def __init__(self, spans: Tensor, n_heads: int, n_leaves: int, parts: int = 1, kept: Rows | None = None) -> None:
        self.spans, self.n_heads, self.n_leaves, self.parts = spans, n_heads, n_leaves, parts
        self.batch, self.length = spans.shape[:2]
        rows, leaves = self.first_row(self.length + 1), self.batch * self.length
        if kept is None:
            states = spans.new_empty(parts, leaves * n_leaves + (rows - leaves) * n_heads)
            totals = spans.new_empty(rows - leaves, parts, parts * n_heads)
            kept = Rows(states, spans.new_empty(rows), spans.new_empty(rows), totals)
        self.kept, (self.states, self.peaks, self.tops, _) = kept, kept
        self.low = torch.empty(rows, dtype=torch.int32, device=spans.device)

    def first_row(self, width: int) -> int:
        """The row of the first span of a width."""
        return self.batch * ((width - 1) * (self.length + 1) - (width - 1) * width // 2)

    def by_width(self, rows: Tensor) -> Sequence[Tensor]:
        """The rows of each width from 2 on, of those of all longer spans."""
        return rows.split([self.batch * (self.length - width + 1) for width in range(2, self.length + 1)])

    def leaves(self, x: Tensor) -> Tensor:
        """The part `[.., B T, P]` of single positions, of a tensor laid out as `states`."""
        return x[..., : self.batch * self.length * self.n_leaves].unflatten(-1, (-1, self.n_leaves))

    def inner(self, x: Tensor) -> Tensor:
        """The part `[.., rows, N]` of all longer spans."""
        return x[..., self.batch * self.length * self.n_leaves :].unflatten(-1, (-1, self.n_heads))

    def finish(self, width: int, scale: Tensor, slopes: Tensor | None = None, reach: bool = False) -> None:
        """The states and peaks of one width, from its totals in units of `exp(tops + scale)`, `scale [G, N]`."""
        along = self.spans if slopes is None else slopes
        tensors = (self.spans, along, self.kept.totals, scale, self.tops, self.states, self.peaks, self.low)
        rows, size = self.batch * (self.length - width + 1), self.n_leaves if width == 1 else self.n_heads
        sizes = (self.batch, self.length, self.n_heads, self.n_leaves, self.states.shape[1], self.spans.shape[-1])
        more = (rows // len(scale), width, FLOOR)
        _finish[(rows,)](*tensors, *sizes, *more, PARTS=self.parts, LEAVES=width == 1, REACH=reach, BLOCK=_block(size))

    def over_totals(self, grads: Tensor, width: int) -> Tensor:
        """The gradients in the totals of one width, from two halves `[2, parts, entries]` of those in their logarithms.

        With their slopes, two rows of two blocks: gradient and zero, then slope and gradient.
        """
        rows = self.batch * (self.length - width + 1)
        out = grads.new_empty(rows, self.parts, self.parts * self.n_heads)
        skip, size = self.batch * self.length * self.n_leaves, rows * self.n_heads
        begin = skip + (self.first_row(width) - self.batch * self.length) * self.n_heads
        sizes = (begin, skip, size, self.n_heads, grads.shape[-1])
        _divide[(triton.cdiv(size, 1024),)](grads, self.kept.totals, out, *sizes, PARTS=self.parts, BLOCK=1024)
        return out

    def whole(self, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """The row of each whole sentence within `inner`, and its peak; arbitrary for single words."""
        width = lengths.clamp(min=2)
        first = self.batch * ((width - 1) * (self.length + 1) - (width - 1) * width // 2)
        row = first + torch.arange(self.batch, device=lengths.device) * (self.length - width + 1)
        return row - self.batch * self.length, self.peaks[row]

    def log_sums(self, lengths: Tensor) -> Tensor:
        """Log of the sum over all trees of each sentence, minus infinity for a single word; with its slope, `[2, B]`."""
        row, peak = self.whole(lengths)
        sums = self.inner(self.states)[:, row].sum(-1)
        total = (sums[0].log() + peak).masked_fill(lengths < 2, -torch.inf)
        if self.parts == 1:
            return total
        return torch.stack((total, torch.where(total > -torch.inf, sums[1] / sums[0], 0.0)))

    def seed(self, lengths: Tensor, grad: Tensor, grads: Tensor) -> None:
        """Write the gradients in the states of whole sentences to `grads [parts, entries]`.

        With slopes, `grad [2, B]` is in the log sums and in their slopes.
        """
        row, _ = self.whole(lengths)
        states = self.inner(self.states)[:, row]
        total = states.sum(-1, keepdim=True)
        one = torch.where(total[0] > 0, total[0], 1.0)
        share, grad = states[0] / one, grad.masked_fill(lengths < 2, 0.0)[..., None]
        if self.parts == 1:
            self.inner(grads)[0, row] = share * grad
            return
        self.inner(grads)[0, row] = share * grad[1]
        self.inner(grads)[1, row] = (states[1] - share * total[1]) / one * grad[1] + share * grad[0]

    def unpack(self, grads: Tensor) -> Tensor:
        """Gradients `[parts, entries]` as squares `[parts, B, T, T, S]`."""
        squares = self.spans.new_empty(self.parts, *self.spans.shape)
        sizes = (self.batch, self.length, self.n_leaves, self.n_heads, self.spans.shape[-1])
        grid = (self.batch * self.length**2, self.parts)
        _unpack[grid](grads, squares, grads.shape[1], *sizes, BLOCK=_block(sizes[-1]))
        return squares


def is_lost(chart: Chart, reached: Callable[[], Chart]) -> bool:
    """Whether a positive total underflowed; `reached()` is the chart, of one part, of the states that are possible at all.

    Waits for the device once, if no total is suspect.
    """
    if not bool(chart.low[chart.first_row(2) :].any()):
        return False
    totals = chart.kept.totals[:, -1, : chart.n_heads]
    possible = reached()
    return bool(((totals < FLOOR) & (possible.inner(possible.states)[0] > 0)).any())


def reachable(scores: Tensor) -> Tensor:
    """Zero for all finite scores."""
    return torch.zeros_like(scores).masked_fill(~(scores > -torch.inf), -torch.inf)
