"""Inside and outside sums of all subtrees of dependency trees with states: three launches a width, up and down.

The reference is `dependencies/around.py`, whose items and squares these are. Between the kernels stands one product: of the
states of all heads of a subtree with the scores to the states of all words outside it.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tailsum.numerics.fused.chart import FLOOR
from tailsum.numerics.precision import product


@triton.jit
def _add(top, total, scores):
    """A running maximum and the sum of exponentials relative to it `[K]`, with the `scores [S, K]` added."""
    higher = tl.maximum(top, tl.max(scores, 0))
    base = tl.where(higher == -float("inf"), 0.0, higher)
    return higher, total * tl.exp(top - base) + tl.sum(tl.exp(scores - base[None, :]), 0)


@triton.jit
def _log(top, total):
    return tl.where(total > 0, tl.log(tl.where(total > 0, total, 1.0)) + top, -float("inf"))


@triton.jit
def _add_rows(top, total, a, b, low, high, k, K, S: tl.constexpr, a_step, b_step):
    """Add `a[p] + b[p]` for low <= p < high, rows of K numbers that are `a_step` and `b_step` apart."""
    for start in range(low, high, S):
        p = start + tl.arange(0, S)
        inside = (p < high)[:, None] & (k < K)[None, :]
        x = tl.load(a + p[:, None] * a_step + k[None, :], inside, -float("inf"))
        y = tl.load(b + p[:, None] * b_step + k[None, :], inside, -float("inf"))
        top, total = _add(top, total, x + y)
    return top, total


@triton.jit
def _scale_rows(values, extra, rows, high, T, k, K, S: tl.constexpr):
    """Write `exp(values + extra - high)` of all words `[T, K]` to a row, for a product."""
    base = tl.where(high > -float("inf"), high, 0.0)
    for start in range(0, T, S):
        p = start + tl.arange(0, S)
        inside = (p < T)[:, None] & (k < K)[None, :]
        place = p[:, None] * K + k[None, :]
        x = tl.load(values + place, inside, -float("inf")) + tl.load(extra + place, inside, 0.0)
        tl.store(rows + place, tl.exp(x - base), inside)


@triton.jit(do_not_specialize=["width"])
def _fill(nodes, left, right, trees, sent, zeros, rows, peaks, T, K, width, S: tl.constexpr, KB: tl.constexpr):
    """The halves and trees of all spans of a width, and the trees scaled, `rows [spans, T K]`."""
    span, count = tl.program_id(0), T - width + 1
    b, i = (span // count).to(tl.int64), span % count
    j = i + width - 1
    square = b * T * T * K
    nodes += b * T * K
    left += square
    right += square
    trees += square * T + (i * T + j) * T * K
    sent += square * T
    k = tl.arange(0, KB)
    none, zero = tl.full((KB,), -float("inf"), tl.float32), tl.zeros((KB,), tl.float32)
    # The outermost child covers the words from p on to the last, or from the first up to p.
    top, total = _add_rows(
        none, zero, right + (i * T - 1) * K, sent + (j * T + i) * K, i + 1, j + 1, k, K, S, K, T * T * K
    )
    there = k < tl.where(width > 1, K, 0)
    tl.store(right + (i * T + j) * K + k, _log(top, total), there)
    top, total = _add_rows(none, zero, left + (T + j) * K, sent + (i * T * T + j) * K, i, j, k, K, S, T * K, T * K)
    tl.store(left + (i * T + j) * K + k, _log(top, total), there)
    tl.debug_barrier()
    high = none
    for start in range(i, j + 1, S):
        m = start + tl.arange(0, S)
        inside = (m <= j)[:, None] & (k < K)[None, :]
        x = tl.load(left + (i * T + m[:, None]) * K + k[None, :], inside, -float("inf"))
        y = tl.load(right + (m[:, None] * T + j) * K + k[None, :], inside, -float("inf"))
        own = tl.load(nodes + m[:, None] * K + k[None, :], inside, -float("inf"))
        tl.store(trees + m[:, None] * K + k[None, :], x + y + own, inside)
        high = tl.maximum(high, tl.max(x + y + own, 0))
    peak = tl.max(high, 0)
    tl.store(peaks + span, peak)
    tl.debug_barrier()
    _scale_rows(trees, zeros, rows + span.to(tl.int64) * T * K, peak, T, k, K, S)


@triton.jit(do_not_specialize=["width"])
def _send(totals, peaks, tops, sent, low, T, K, width, per_group, floor, KB: tl.constexpr):
    """What the subtrees of a width send to each word outside them; `low` becomes one where a total is suspect."""
    span, h, count = tl.program_id(0), tl.program_id(1), T - width + 1
    b, i = (span // count).to(tl.int64), span % count
    j = i + width - 1
    k = tl.arange(0, KB)
    outside = k < tl.where((h < i) | (h > j), K, 0)
    peak = tl.load(peaks + span + k * 0)
    total = tl.load(totals + (span.to(tl.int64) * T + h) * K + k, outside, 1.0)
    found = _log(tl.where(peak > -float("inf"), peak, 0.0), total)
    found += tl.load(tops + ((span // per_group).to(tl.int64) * T + h) * K + k, outside, 0.0)
    tl.store(sent + (((b * T + i) * T + j) * T + h) * K + k, found, outside)
    suspect = tl.max(tl.where(outside & (total < floor) & (peak > -float("inf")), 1, 0), 0)
    tl.atomic_max(low, suspect)


@triton.jit(do_not_specialize=["width"])
def _from_heads(
    left,
    right,
    of_left,
    of_right,
    outside,
    tops,
    rows,
    peaks,
    T,
    K,
    width,
    per_group,
    S: tl.constexpr,
    KB: tl.constexpr,
):
    """The outside sums of subtrees of a width by the head that they are attached to, and scaled, `rows [spans, T K]`."""
    span, count = tl.program_id(0), T - width + 1
    b, i = (span // count).to(tl.int64), span % count
    j = i + width - 1
    square = b * T * T * K
    left += square
    right += square
    of_left += square
    of_right += square
    outside += square * T + (i * T + j) * T * K
    tops += (span // per_group).to(tl.int64) * T * K
    k = tl.arange(0, KB)
    high = tl.full((KB,), -float("inf"), tl.float32)
    for start in range(0, T, S):
        h = start + tl.arange(0, S)
        states = (k < K)[None, :]
        before, after = (h < i)[:, None] & states, ((h > j) & (h < T))[:, None] & states
        # As the outermost child of a head before it, or after it: the rest of that half, and what is around the half.
        x = tl.load(of_right + (h[:, None] * T + j) * K + k[None, :], before, -float("inf"))
        x += tl.load(right + (h[:, None] * T + i - 1) * K + k[None, :], before, -float("inf"))
        y = tl.load(of_left + (i * T + h[:, None]) * K + k[None, :], after, -float("inf"))
        y += tl.load(left + ((j + 1) * T + h[:, None]) * K + k[None, :], after, -float("inf"))
        found = tl.maximum(x, y)
        place = h[:, None] * K + k[None, :]
        tl.store(outside + place, found, before | after)
        high = tl.maximum(high, tl.max(found + tl.load(tops + place, before | after, 0.0), 0))
    peak = tl.max(high, 0)
    tl.store(peaks + span, peak)
    tl.debug_barrier()
    _scale_rows(outside, tops, rows + span.to(tl.int64) * T * K, peak, T, k, K, S)


@triton.jit(do_not_specialize=["width"])
def _to_halves(
    totals, peaks, nodes, root, free, left, right, sent, above, of_left, of_right, low, T, K, width, floor,
    S: tl.constexpr, KB: tl.constexpr,
):  # fmt: skip
    """The outside sums of trees and halves of all spans of a width."""
    span, count = tl.program_id(0), T - width + 1
    b, i = (span // count).to(tl.int64), span % count
    j = i + width - 1
    square = b * T * T * K
    nodes += b * T * K
    root += b * T
    left += square
    right += square
    of_left += square
    of_right += square
    sent += square * T
    above += square * T
    totals += span.to(tl.int64) * T * K
    k = tl.arange(0, KB)
    peak = tl.load(peaks + span + k * 0)
    possible = peak > -float("inf")
    base = tl.where(possible, peak, 0.0)
    under = tl.load(free + (b * T + i) * T + j)
    few = tl.zeros((KB,), tl.int32)
    for start in range(i, j + 1, S):
        m = start + tl.arange(0, S)
        inside = (m <= j)[:, None] & (k < K)[None, :]
        place = m[:, None] * K + k[None, :]
        total = tl.load(totals + place, inside & possible[None, :], 0.0)
        suspect = inside & possible[None, :] & (total < floor)
        few = tl.maximum(few, tl.max(tl.where(suspect, 1, 0), 0))
        x = tl.where(total > 0, tl.log(tl.where(total > 0, total, 1.0)) + base[None, :], -float("inf"))
        y = (tl.load(root + m, m <= j, -float("inf")) + under)[:, None]
        high = tl.maximum(x, y)
        safe = tl.where(high == -float("inf"), 0.0, high)
        both = tl.exp(x - safe) + tl.exp(y - safe)
        found = tl.where(both > 0, tl.log(tl.where(both > 0, both, 1.0)) + safe, -float("inf"))
        found += tl.load(nodes + place, inside, -float("inf"))
        tl.store(above + (i * T + j) * T * K + place, found, inside)
    tl.atomic_max(low, tl.max(few, 0))
    tl.debug_barrier()
    none, zero = tl.full((KB,), -float("inf"), tl.float32), tl.zeros((KB,), tl.float32)
    # Within a larger half with one more child, and within a tree with the other half.
    a, c = of_right + i * T * K, sent + ((j + 1) * T * T + i) * K
    top, total = _add_rows(none, zero, a, c, j + 1, T, k, K, S, K, T * K)
    top, total = _add_rows(top, total, above + (j * T + i) * K, left + i * K, 0, i + 1, k, K, S, T * T * K, T * K)
    tl.store(of_right + (i * T + j) * K + k, _log(top, total), k < K)
    a, c = of_left + j * K, sent + ((i - 1) * T + j) * K
    top, total = _add_rows(none, zero, a, c, 0, i, k, K, S, T * K, T * T * K)
    top, total = _add_rows(top, total, above + (i * T * T + j) * K, right + j * T * K, j, T, k, K, S, T * K, K)
    tl.store(of_left + (i * T + j) * K + k, _log(top, total), k < K)


@triton.jit
def _grow(sent, found, W, N, BLOCK: tl.constexpr):
    """Halves of more and more words; the states of the head are independent."""
    b = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    sent += b * W * W * N
    found += b * (W + 1) * N
    tl.store(found + k, tl.zeros((BLOCK,), tl.float32), k < N)
    tl.debug_barrier()
    for e in range(W):
        top, total = tl.full((BLOCK,), -float("inf"), tl.float32), tl.zeros((BLOCK,), tl.float32)
        for s in range(e + 1):
            x = tl.load(found + s * N + k, k < N, -float("inf"))
            x += tl.load(sent + (s * W + e) * N + k, k < N, -float("inf"))
            higher = tl.maximum(top, x)
            base = tl.where(higher == -float("inf"), 0.0, higher)
            total = total * tl.exp(top - base) + tl.exp(x - base)
            top = higher
        tl.store(found + (e + 1) * N + k, _log(top, total), k < N)
        tl.debug_barrier()


def grown_halves(sent: Tensor) -> Tensor:
    """Half subtrees `[B, W + 1, N]` of no words, one, and so on, from messages `[B, W, W, N]` of those from s to e."""
    batch, words, _, size = sent.shape
    found = sent.new_empty(batch, words + 1, size)
    _grow[(batch, triton.cdiv(size, 128))](sent.contiguous(), found, words, size, BLOCK=128)
    return found


@dataclass
class Squares:
    """The items of all spans, minus infinity where there is none, from scores `nodes [B, T, K]` and `[G, T K, T K]`."""

    nodes: Tensor
    scores: Tensor  # of a child and its state with a head and its state

    def __post_init__(self) -> None:
        self.nodes = self.nodes.contiguous()
        self.batch, self.length, self.size = self.nodes.shape
        full = lambda *more: self.nodes.new_full((self.batch, self.length, self.length, *more, self.size), -torch.inf)  # noqa: E731
        self.left, self.right, self.of_left, self.of_right = (full() for _ in range(4))
        self.trees, self.sent, self.outside, self.above = (full(self.length) for _ in range(4))
        for half in (self.left, self.right):
            half.diagonal(dim1=1, dim2=2).zero_()
        top = self.scores.amax(-2)
        self.tops = torch.where(top > -torch.inf, top, 0.0).contiguous()
        self.table = (self.scores - self.tops[:, None]).exp_()
        self.low = torch.zeros(1, dtype=torch.int32, device=self.nodes.device)
        self.zeros = torch.zeros_like(self.tops[0])

    def _product(self, rows: Tensor, table: Tensor) -> Tensor:
        return product(rows.view(len(table), -1, rows.shape[-1]), table).view(rows.shape)

    def _work(self, width: int) -> tuple[int, Tensor, Tensor, dict[str, Any]]:
        spans = self.batch * (self.length - width + 1)
        rows, peaks = self.nodes.new_empty(spans, self.length * self.size), self.nodes.new_empty(spans)
        return spans, rows, peaks, {"S": 16, "KB": triton.next_power_of_2(self.size)}

    def fill(self) -> None:
        """Inside sums, from the smallest spans on."""
        for width in range(1, self.length + 1):
            spans, rows, peaks, tile = self._work(width)
            items = (self.nodes, self.left, self.right, self.trees, self.sent)
            sizes = (self.length, self.size, width)
            _fill[(spans,)](*items, self.zeros, rows, peaks, *sizes, **tile)
            if width < self.length:
                totals = self._product(rows, self.table)
                more = (*sizes, spans // len(self.table), FLOOR)
                _send[(spans, self.length)](totals, peaks, self.tops, self.sent, self.low, *more, KB=tile["KB"])

    def pass_down(self, root: Tensor, free: Tensor) -> None:
        """Outside sums, from the whole on; `root [B, T]` and `free [B, T, T]` are those of subtrees under a root."""
        root, free = root.contiguous(), free.contiguous()
        for width in range(self.length, 0, -1):
            spans, rows, peaks, tile = self._work(width)
            sizes = (self.length, self.size, width)
            halves = (self.left, self.right, self.of_left, self.of_right)
            given = (*halves, self.outside, self.tops, rows, peaks, *sizes, spans // len(self.table))
            _from_heads[(spans,)](*given, **tile)
            totals = self._product(rows, self.table.mT) if width < self.length else rows
            given = (totals, peaks, self.nodes, root, free, self.left, self.right, self.sent, self.above)
            _to_halves[(spans,)](*given, self.of_left, self.of_right, self.low, *sizes, FLOOR, **tile)
