"""The kernels of `subtrees.py`: one launch each for all spans of a width, one program per span."""

# pyright: reportArgumentType=false

import triton
import triton.language as tl

from tailsum.numerics.fused.exponential import add_exp, exp, finite, log_of


@triton.jit
def _add_rows(top, total, a, b, low, high, k, K, S: tl.constexpr, a_step, b_step):
    """Add `a[p] + b[p]` for low <= p < high, rows of K numbers that are `a_step` and `b_step` apart."""
    for start in range(low, high, S):
        p = start + tl.arange(0, S)
        inside = (p < high)[:, None] & (k < K)[None, :]
        x = tl.load(a + p[:, None] * a_step + k[None, :], inside, -float("inf"))
        y = tl.load(b + p[:, None] * b_step + k[None, :], inside, -float("inf"))
        top, total = add_exp(top, total, x + y, 0)
    return top, total


@triton.jit
def _scale_rows(values, extra, rows, high, T, k, K, S: tl.constexpr):
    """Write `exp(values + extra - high)` of all words `[T, K]` to a row of a matrix."""
    base = tl.where(high > -float("inf"), high, 0.0)
    for start in range(0, T, S):
        p = start + tl.arange(0, S)
        inside = (p < T)[:, None] & (k < K)[None, :]
        place = p[:, None] * K + k[None, :]
        x = tl.load(values + place, inside, -float("inf")) + tl.load(extra + place, inside, 0.0)
        tl.store(rows + place, exp(x - base), inside)


@triton.jit(do_not_specialize=["width"])
def fill(nodes, left, right, trees, sent, zeros, rows, peaks, T, K, width, S: tl.constexpr, KB: tl.constexpr):
    """The halves and trees of all spans of a width, and the trees scaled: `rows [spans, T K]`."""
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
    tl.store(right + (i * T + j) * K + k, log_of(top, total), there)
    top, total = _add_rows(none, zero, left + (T + j) * K, sent + (i * T * T + j) * K, i, j, k, K, S, T * K, T * K)
    tl.store(left + (i * T + j) * K + k, log_of(top, total), there)
    tl.debug_barrier()
    high = none
    for start in range(i, j + 1, S):
        m = start + tl.arange(0, S)
        inside = (m <= j)[:, None] & (k < K)[None, :]
        x = tl.load(left + (i * T + m[:, None]) * K + k[None, :], inside, -float("inf"))
        y = tl.load(right + (m[:, None] * T + j) * K + k[None, :], inside, -float("inf"))
        node = tl.load(nodes + m[:, None] * K + k[None, :], inside, -float("inf"))
        tl.store(trees + m[:, None] * K + k[None, :], x + y + node, inside)
        high = tl.maximum(high, tl.max(x + y + node, 0))
    peak = tl.max(high, 0)
    tl.store(peaks + span, peak)
    tl.debug_barrier()
    _scale_rows(trees, zeros, rows + span.to(tl.int64) * T * K, peak, T, k, K, S)


@triton.jit(do_not_specialize=["width"])
def send(totals, peaks, tops, sent, low, T, K, width, per_group, floor, KB: tl.constexpr):
    """The messages from the subtrees of a width to each word outside them; `low` becomes one where a total is suspect."""
    span, h, count = tl.program_id(0), tl.program_id(1), T - width + 1
    b, i = (span // count).to(tl.int64), span % count
    j = i + width - 1
    k = tl.arange(0, KB)
    outside = k < tl.where((h < i) | (h > j), K, 0)
    peak = tl.load(peaks + span + k * 0)
    total = tl.load(totals + (span.to(tl.int64) * T + h) * K + k, outside, 1.0)
    message = log_of(tl.where(peak > -float("inf"), peak, 0.0), total)
    message += tl.load(tops + ((span // per_group).to(tl.int64) * T + h) * K + k, outside, 0.0)
    tl.store(sent + (((b * T + i) * T + j) * T + h) * K + k, message, outside)
    suspect = tl.max(tl.where(outside & (total < floor) & (peak > -float("inf")), 1, 0), 0)
    tl.atomic_max(low, suspect)


@triton.jit(do_not_specialize=["width"])
def from_heads(
    left, right, of_left, of_right, outside, tops, rows, peaks, T, K, width, per_group, S: tl.constexpr, KB: tl.constexpr
):  # fmt: skip
    """The outside sums of subtrees of a width by the head that they are attached to, also scaled, `rows [spans, T K]`."""
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
        # As the outermost child of a head before or after it: the rest of that half, and the half's outside sum.
        x = tl.load(of_right + (h[:, None] * T + j) * K + k[None, :], before, -float("inf"))
        x += tl.load(right + (h[:, None] * T + i - 1) * K + k[None, :], before, -float("inf"))
        y = tl.load(of_left + (i * T + h[:, None]) * K + k[None, :], after, -float("inf"))
        y += tl.load(left + ((j + 1) * T + h[:, None]) * K + k[None, :], after, -float("inf"))
        around = tl.maximum(x, y)
        place = h[:, None] * K + k[None, :]
        tl.store(outside + place, around, before | after)
        high = tl.maximum(high, tl.max(around + tl.load(tops + place, before | after, 0.0), 0))
    peak = tl.max(high, 0)
    tl.store(peaks + span, peak)
    tl.debug_barrier()
    _scale_rows(outside, tops, rows + span.to(tl.int64) * T * K, peak, T, k, K, S)


@triton.jit(do_not_specialize=["width"])
def to_halves(
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
        x = log_of(base[None, :], total)
        y = (tl.load(root + m, m <= j, -float("inf")) + under)[:, None]
        high = tl.maximum(x, y)
        safe = finite(high)
        both = exp(x - safe) + exp(y - safe)
        around = log_of(safe, both) + tl.load(nodes + place, inside, -float("inf"))
        tl.store(above + (i * T + j) * T * K + place, around, inside)
    tl.atomic_max(low, tl.max(few, 0))
    tl.debug_barrier()
    none, zero = tl.full((KB,), -float("inf"), tl.float32), tl.zeros((KB,), tl.float32)
    # Within a larger half that has one more child, and within a tree together with its other half.
    a, c = of_right + i * T * K, sent + ((j + 1) * T * T + i) * K
    top, total = _add_rows(none, zero, a, c, j + 1, T, k, K, S, K, T * K)
    top, total = _add_rows(top, total, above + (j * T + i) * K, left + i * K, 0, i + 1, k, K, S, T * T * K, T * K)
    tl.store(of_right + (i * T + j) * K + k, log_of(top, total), k < K)
    a, c = of_left + j * K, sent + ((i - 1) * T + j) * K
    top, total = _add_rows(none, zero, a, c, 0, i, k, K, S, T * K, T * T * K)
    top, total = _add_rows(top, total, above + (i * T * T + j) * K, right + j * T * K, j, T, k, K, S, T * K, K)
    tl.store(of_left + (i * T + j) * K + k, log_of(top, total), k < K)
