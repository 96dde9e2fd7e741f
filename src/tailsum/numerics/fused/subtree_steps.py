"""The kernels of `subtrees.py` for half subtrees and roots, whatever the scores of pairs.

Those of a width are one launch, with a program for each span and block of states. Sums are logarithms with a running maximum, or
the maximum itself without SUM.
"""

# pyright: reportArgumentType=false

import triton
import triton.language as tl

from tailsum.numerics.fused.exponential import add_exp, log_of


@triton.jit
def add_up(top, total, scores, AXIS: tl.constexpr, SUM: tl.constexpr):
    """A running maximum and the sum of exponentials relative to it, with the `scores` along AXIS added."""
    if SUM:
        top, total = add_exp(top, total, scores, AXIS)
    else:
        top = tl.maximum(top, tl.max(scores, AXIS))
    return top, total


@triton.jit
def outcome(top, total, SUM: tl.constexpr):
    """What was added up."""
    return log_of(top, total) if SUM else top


@triton.jit
def add_pairs(top, total, a, b, a_step, b_step, low, high, rows, states, C: tl.constexpr, SUM: tl.constexpr):
    """Add `a[r] + b[k]` at every place c with low <= c < high: pointers `a [R]` and `b [KB]`, with steps from place to place."""
    for start in range(low, high, C):
        c = (start + tl.arange(0, C))[:, None]
        x = tl.load(a[None, :] + c * a_step, (c < high) & rows[None, :], -float("inf"))
        y = tl.load(b[None, :] + c * b_step, (c < high) & states[None, :], -float("inf"))
        top, total = add_up(top, total, x[:, :, None] + y[:, None, :], 0, SUM)
    return top, total


@triton.jit
def _add_rows(top, total, a, b, extra, low, high, k, K, a_step, b_step, S: tl.constexpr, SUM: tl.constexpr):
    """Add `a[p] + b[p] + extra` for low <= p < high, rows of K numbers that are `a_step` and `b_step` apart."""
    for start in range(low, high, S):
        p = start + tl.arange(0, S)
        inside = (p < high)[:, None] & (k < K)[None, :]
        x = tl.load(a + p[:, None] * a_step + k[None, :], inside, -float("inf"))
        y = tl.load(b + p[:, None] * b_step + k[None, :], inside, -float("inf"))
        top, total = add_up(top, total, x + y + extra[None, :], 0, SUM)
    return top, total


@triton.jit
def span_of(width, T):
    """The sentence of a program's span, and its first and last word."""
    span, count = tl.program_id(0), T - width + 1
    i = span % count
    return (span // count).to(tl.int64), i, i + width - 1


@triton.jit(do_not_specialize=["width"])
def grow(nodes, left, right, trees, sent, T, K, width, S: tl.constexpr, KB: tl.constexpr, SUM: tl.constexpr):
    """The halves and trees of all spans of a width."""
    b, i, j = span_of(width, T)
    square = b * T * T * K
    nodes += b * T * K
    left += square
    right += square
    trees += square * T + (i * T + j) * T * K
    sent += square * T
    k = tl.program_id(1) * KB + tl.arange(0, KB)
    none, zero = tl.full((KB,), -float("inf"), tl.float32), tl.zeros((KB,), tl.float32)
    there = k < K
    # The outermost child covers the words from p on to the last, or from the first up to p.
    a, c = right + (i * T - 1) * K, sent + (j * T + i) * K
    top, total = _add_rows(none, zero, a, c, zero, i + 1, j + 1, k, K, K, T * T * K, S, SUM)
    tl.store(right + (i * T + j) * K + k, tl.where(width > 1, outcome(top, total, SUM), 0.0), there)
    a, c = left + (T + j) * K, sent + (i * T * T + j) * K
    top, total = _add_rows(none, zero, a, c, zero, i, j, k, K, T * K, T * K, S, SUM)
    tl.store(left + (i * T + j) * K + k, tl.where(width > 1, outcome(top, total, SUM), 0.0), there)
    tl.debug_barrier()
    for start in range(i, j + 1, S):
        m = start + tl.arange(0, S)
        inside = (m <= j)[:, None] & there[None, :]
        x = tl.load(left + (i * T + m[:, None]) * K + k[None, :], inside, -float("inf"))
        y = tl.load(right + (m[:, None] * T + j) * K + k[None, :], inside, -float("inf"))
        node = tl.load(nodes + m[:, None] * K + k[None, :], inside, -float("inf"))
        tl.store(trees + m[:, None] * K + k[None, :], x + y + node, inside)


@triton.jit
def alone(trees, arcs, sums, T, K, S: tl.constexpr, KB: tl.constexpr, SUM: tl.constexpr, MULTIROOT: tl.constexpr):
    """The trees of each span with their head as a root, `sums [B, T, T]`; without MULTIROOT, of spans from the first word on."""
    b, i, j = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    trees += ((b * T + i) * T + j) * T * K
    arcs += b * T * T
    high = tl.where(MULTIROOT | (i == 0), j + 1, i)
    top, total = tl.full((KB,), -float("inf"), tl.float32), tl.zeros((KB,), tl.float32)
    one, none = tl.max(top, 0), tl.sum(total, 0)
    for block in range(0, K, KB):
        k = block + tl.arange(0, KB)
        for start in range(i, high, S):
            m = start + tl.arange(0, S)
            inside = (m < high)[:, None] & (k < K)[None, :]
            root = tl.load(arcs + m * (T + 1), m < high, -float("inf"))
            x = tl.load(trees + m[:, None] * K + k[None, :], inside, -float("inf"))
            top, total = add_up(top, total, x + root[:, None], 0, SUM)
    one, none = add_up(one, none, outcome(top, total, SUM), 0, SUM)
    tl.store(sums + (b * T + i) * T + j, outcome(one, none, SUM))


@triton.jit
def under_roots(alone, lengths, before, after, T, TB: tl.constexpr, SUM: tl.constexpr, MULTIROOT: tl.constexpr):
    """Sums over the words before each, and over those from each on, `[B, T + 1]`, from those of spans under one root."""
    b = tl.program_id(0).to(tl.int64)
    n = tl.load(lengths + b).to(tl.int32)
    alone += b * T * T
    before += b * (T + 1)
    after += b * (T + 1)
    p = tl.arange(0, TB)
    tl.store(after + p, tl.where(p == n, 0.0, -float("inf")), p <= T)
    tl.store(before, 0.0)
    if MULTIROOT:
        tl.debug_barrier()
        low, zero = tl.max(tl.full((TB,), -float("inf"), tl.float32), 0), tl.sum(tl.zeros((TB,), tl.float32), 0)
        for last in range(T):
            x = tl.load(before + p, p <= last, -float("inf")) + tl.load(alone + p * T + last, p <= last, -float("inf"))
            top, total = add_up(low, zero, x, 0, SUM)
            tl.store(before + last + 1, outcome(top, total, SUM))
            tl.debug_barrier()
        for step in range(n):
            first = n - 1 - step
            later = (p >= first) & (p < n)
            x = tl.load(after + p + 1, later, -float("inf")) + tl.load(alone + first * T + p, later, -float("inf"))
            top, total = add_up(low, zero, x, 0, SUM)
            tl.store(after + first, outcome(top, total, SUM))
            tl.debug_barrier()
    else:
        tl.store(before + p + 1, tl.load(alone + p, p < T, 0.0), p < T)


@triton.jit
def halves_around(
    nodes, left, right, sent, above, of_left, of_right, b, i, j, k, T, K, S: tl.constexpr, KB: tl.constexpr
):
    """The outside sums of the halves of a span, for some states `k` of the head: those of its trees, `above`, are there."""
    square = b * T * T * K
    nodes += b * T * K
    left += square
    right += square
    of_left += square
    of_right += square
    sent += square * T
    above += square * T
    none, zero = tl.full((KB,), -float("inf"), tl.float32), tl.zeros((KB,), tl.float32)
    # Within a larger half that has one more child, and within a tree together with its other half.
    node = tl.load(nodes + i * K + k, k < K, -float("inf"))
    a, c = of_right + i * T * K, sent + ((j + 1) * T * T + i) * K
    top, total = _add_rows(none, zero, a, c, zero, j + 1, T, k, K, K, T * K, S, True)
    a, c = above + (j * T + i) * K, left + i * K
    top, total = _add_rows(top, total, a, c, node, 0, i + 1, k, K, T * T * K, T * K, S, True)
    tl.store(of_right + (i * T + j) * K + k, log_of(top, total), k < K)
    node = tl.load(nodes + j * K + k, k < K, -float("inf"))
    a, c = of_left + j * K, sent + ((i - 1) * T + j) * K
    top, total = _add_rows(none, zero, a, c, zero, 0, i, k, K, T * K, T * T * K, S, True)
    a, c = above + (i * T * T + j) * K, right + j * T * K
    top, total = _add_rows(top, total, a, c, node, j, T, k, K, T * K, K, S, True)
    tl.store(of_left + (i * T + j) * K + k, log_of(top, total), k < K)


@triton.jit
def or_root(top, total, arcs, free, words):
    """The logarithm of a sum `[M, KB]` with the outside sum of a root added, its score at `arcs [M]`."""
    root = tl.load(arcs, words, -float("inf")) + free
    return log_of(*add_exp(top, total, tl.broadcast_to(root[:, None], top.shape)[None, :, :], 0))
