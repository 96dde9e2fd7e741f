"""Charts of grammars: the order of their rows, and the step from sums over rules to the states of spans.

A chart has one row for each span, ordered by width, sentence and first position, so the rows of a width are contiguous. Row r
holds a peak, the highest inside sum of its states, and the exponentials of all of them relative to the peak, at most one.

Sums in these units are products. They underflow only where a sum is far below the highest that its span could have: totals
below `FLOOR` are suspect. All totals are checked together at the end.
"""

# pyright: reportArgumentType=false, reportOperatorIssue=false

from collections.abc import Callable
from dataclasses import dataclass

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
    spans, totals, scale, tops, states, peaks, low, B, T, size, stride, per_group, width, floor,
    LEAVES: tl.constexpr, REACH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Inside sums of the states of all spans of a width, from totals `[rows, size]` in units of `exp(tops + scale)`.

    LEAVES (width 1) have no totals. Writes the rows of `states` and `peaks`, and to `low` whether a total is below `floor`.
    """
    span, count = tl.program_id(0), T - width + 1
    b, i = span // count, span % count
    row = first_row(width, B, T) + span
    spans += ((b * T + i).to(tl.int64) * T + i + width - 1) * stride
    states += span.to(tl.int64) * size
    totals += span.to(tl.int64) * size
    scale += (span // per_group).to(tl.int64) * size
    top = tl.load(tops + row + tl.zeros((BLOCK,), tl.int32), LEAVES == 0, 0.0)
    possible = top > -float("inf")
    peak = tl.full((BLOCK,), -float("inf"), tl.float32)
    few = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, size, BLOCK):
        h = start + tl.arange(0, BLOCK)
        inside = tl.load(spans + h, h < size, -float("inf"))
        if not LEAVES:
            total = tl.load(totals + h, h < size, 0.0)
            there = (total > 0) & (inside > -float("inf")) & possible
            few = tl.maximum(few, tl.where((total < floor) & (inside > -float("inf")) & possible, 1, 0))
            if REACH:
                inside = tl.where(there, 0.0, -float("inf"))
            else:
                common = tl.where(possible, top, 0.0)
                more = tl.log(tl.where(there, total, 1.0)) + common + tl.load(scale + h, h < size, 0.0)
                inside = tl.where(there, tl.where(there, inside, 0.0) + more, -float("inf"))
        peak = tl.maximum(peak, inside)
        tl.store(states + h, inside, h < size)
    high = tl.max(peak, 0)
    tl.store(peaks + row, high)
    tl.store(low + row, tl.max(few, 0))
    base = tl.where(high > -float("inf"), high, 0.0)
    tl.debug_barrier()
    for start in range(0, size, BLOCK):
        h = start + tl.arange(0, BLOCK)
        inside = tl.load(states + h, h < size, -float("inf"))
        tl.store(states + h, exp(inside - base), h < size)


@triton.jit
def _unpack(leaves, inner, grads, B, T, P, N, stride, BLOCK: tl.constexpr):
    """Gradients of rows as a square `[B, T, T, stride]`; zero below the diagonal and for states that a span cannot have."""
    place = tl.program_id(0)
    b, i, j = place // (T * T), place // T % T, place % T
    grads += place.to(tl.int64) * stride
    width = tl.maximum(j - i + 1, 1)
    row = (first_row(width, B, T) + b * (T - width + 1) + i).to(tl.int64)
    for start in range(0, stride, BLOCK):
        h = start + tl.arange(0, BLOCK)
        leaf = tl.load(leaves + row * P + h, h < tl.where(i == j, P, 0), 0.0)
        other = tl.load(inner + (row - B * T) * N + h, h < tl.where(j > i, N, 0), 0.0)
        tl.store(grads + h, leaf + other, h < stride)


def _block(size: int) -> int:
    return min(1024, max(16, triton.next_power_of_2(size)))


@dataclass
class Chart:
    """The rows of a chart over scores `spans [B, T, T, S]`, with N states for spans of several positions and P for one."""

    spans: Tensor
    n_heads: int
    n_leaves: int

    def __post_init__(self) -> None:
        self.spans = self.spans.contiguous()
        self.batch, self.length = self.spans.shape[:2]
        rows = self.first_row(self.length + 1)
        leaves = self.batch * self.length
        self.buffer = self.spans.new_empty(leaves * self.n_leaves + (rows - leaves) * self.n_heads)
        self.peaks, self.tops = self.spans.new_empty(rows), self.spans.new_empty(rows)
        self.low = torch.empty(rows, dtype=torch.int32, device=self.spans.device)
        self.totals: list[Tensor] = [self.spans.new_empty(0)] * 2  # by width, from 2

    def first_row(self, width: int) -> int:
        """The row of the first span of a width."""
        return self.batch * ((width - 1) * (self.length + 1) - (width - 1) * width // 2)

    def rows(self, width: int) -> slice:
        """The rows of a width."""
        return slice(self.first_row(width), self.first_row(width + 1))

    def leaves(self, x: Tensor) -> Tensor:
        """The part `[B T, P]` of single positions, of a tensor laid out as `buffer`."""
        return x[: self.batch * self.length * self.n_leaves].view(-1, self.n_leaves)

    def inner(self, x: Tensor) -> Tensor:
        """The part `[rows, N]` of all longer spans."""
        return x[self.batch * self.length * self.n_leaves :].view(-1, self.n_heads)

    def of_width(self, x: Tensor, width: int) -> Tensor:
        """The part of one width."""
        skip = self.batch * self.length
        rows = self.rows(width)
        return self.leaves(x) if width == 1 else self.inner(x)[rows.start - skip : rows.stop - skip]

    def finish(self, width: int, totals: Tensor | None, scale: Tensor, reach: bool) -> None:
        """The states and peaks of one width; `totals [rows, N]` in units of `exp(tops + scale)`, `scale [G, N]`."""
        states = self.of_width(self.buffer, width)
        rows, size = states.shape
        tensors = (self.spans, states if totals is None else totals, scale, self.tops, states, self.peaks, self.low)
        sizes = (self.batch, self.length, size, self.spans.shape[-1], rows // len(scale), width, FLOOR)
        _finish[(rows,)](*tensors, *sizes, LEAVES=totals is None, REACH=reach, BLOCK=_block(size))
        if totals is not None:
            self.totals.append(totals)

    def whole(self, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """The row of each whole sentence within `inner`, and its peak; arbitrary for single words."""
        width = lengths.clamp(min=2)
        first = self.batch * ((width - 1) * (self.length + 1) - (width - 1) * width // 2)
        row = first + torch.arange(self.batch, device=lengths.device) * (self.length - width + 1)
        return row - self.batch * self.length, self.peaks[row]

    def log_sums(self, lengths: Tensor) -> Tensor:
        """Log of the sum over all trees of each sentence; minus infinity for a single word."""
        row, peak = self.whole(lengths)
        return (self.inner(self.buffer)[row].sum(-1).log() + peak).masked_fill(lengths < 2, -torch.inf)

    def seed(self, lengths: Tensor, grad: Tensor, grads: Tensor) -> None:
        """Write the gradients in the states of whole sentences to `grads`, laid out as `buffer`."""
        row, _ = self.whole(lengths)
        states = self.inner(self.buffer)[row]
        total = states.sum(-1, keepdim=True)
        share = states / torch.where(total > 0, total, 1.0) * grad.masked_fill(lengths < 2, 0.0)[:, None]
        self.inner(grads)[row] = share

    def unpack(self, grads: Tensor) -> Tensor:
        """Gradients laid out as `buffer`, as a square."""
        spans = torch.empty_like(self.spans)
        sizes = (self.batch, self.length, self.n_leaves, self.n_heads, self.spans.shape[-1])
        grid = (self.batch * self.length**2,)
        _unpack[grid](self.leaves(grads), self.inner(grads), spans, *sizes, BLOCK=_block(sizes[-1]))
        return spans


def is_lost(chart: Chart, reached: Callable[[], Chart]) -> bool:
    """Whether a positive total underflowed; `reached()` is the chart of the states that are possible at all.

    Waits for the device once, if no total is suspect.
    """
    if not bool(chart.low[chart.rows(2).start :].any()):
        return False
    possible = reached()
    lost = [
        ((chart.totals[width] < FLOOR) & (possible.of_width(possible.buffer, width) > 0)).any()
        for width in range(2, chart.length + 1)
    ]
    return bool(torch.stack(lost).any())


def reachable(scores: Tensor) -> Tensor:
    """Zero for all finite scores."""
    return torch.zeros_like(scores).masked_fill(~(scores > -torch.inf), -torch.inf)
