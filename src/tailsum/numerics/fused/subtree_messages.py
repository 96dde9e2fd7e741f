"""The kernels of `subtrees.py` for messages from subtrees to their heads and back: one launch each for all spans of a width.

Scores of pairs are shared by all arcs, `[K, K]` (state of the head, state of the child), or each arc has its own, `[G, T, T, K, K]`.
Messages up have them transposed. Every sum has a running maximum, and is right for scores of any range.
"""

# pyright: reportArgumentType=false

import triton
import triton.language as tl

from tailsum.numerics.fused.subtree_steps import add_pairs, add_up, halves_around, or_root, outcome, span_of


@triton.jit(do_not_specialize=["width"])
def send_shared(
    trees, arcs, pairs, sent, T, K, width, M: tl.constexpr, C: tl.constexpr, KB: tl.constexpr, SUM: tl.constexpr
):
    """Messages from the subtrees of a width to all words outside them, `sent`; at their own words, those before arcs are added."""
    b, i, j = span_of(width, T)
    arcs += b * T * T
    place = ((b * T + i) * T + j) * T * K
    trees += place
    sent += place
    k = tl.program_id(1) * KB + tl.arange(0, KB)
    there = k < K
    none, zero = tl.full((M, KB), -float("inf"), tl.float32), tl.zeros((M, KB), tl.float32)
    for start in range(i, j + 1, M):
        m = start + tl.arange(0, M)
        top, total = add_pairs(none, zero, trees + m * K, pairs + k, 1, K, 0, K, m <= j, there, C, SUM)
        tl.store(sent + m[:, None] * K + k[None, :], outcome(top, total, SUM), (m <= j)[:, None] & there[None, :])
    tl.debug_barrier()
    for start in range(0, T, M):
        h = start + tl.arange(0, M)
        heads = ((h < i) | (h > j)) & (h < T)
        top, total = add_pairs(none, zero, arcs + h * T, sent + k, 1, K, i, j + 1, heads, there, C, SUM)
        tl.store(sent + h[:, None] * K + k[None, :], outcome(top, total, SUM), heads[:, None] & there[None, :])


@triton.jit(do_not_specialize=["width"])
def send_own(trees, arcs, pairs, sent, T, K, width, group, C: tl.constexpr, KB: tl.constexpr, SUM: tl.constexpr):
    """The same with `pairs [G, T, T, K, K]` (head, child, state of the child, of the head); a program has one head.

    Sentence b has the table `b * group`.
    """
    b, i, j = span_of(width, T)
    h = tl.program_id(1)
    arcs += (b * T + h) * T
    pairs += (b * group * T + h) * T * K * K
    place = ((b * T + i) * T + j) * T * K
    trees += place
    k = tl.program_id(2) * KB + tl.arange(0, KB)
    there = k < K
    top, total = tl.full((KB,), -float("inf"), tl.float32), tl.zeros((KB,), tl.float32)
    outside = (h < i) | (h > j)
    for m in range(i, tl.where(outside, j + 1, i)):
        arc = tl.load(arcs + m)
        for start in range(0, K, C):
            c = start + tl.arange(0, C)
            x = tl.load(trees + m * K + c, c < K, -float("inf"))
            inside = (c < K)[:, None] & there[None, :]
            y = tl.load(pairs + (m * K + c[:, None]) * K + k[None, :], inside, -float("inf"))
            top, total = add_up(top, total, (x + arc)[:, None] + y, 0, SUM)
    tl.store(sent + place + h * K + k, outcome(top, total, SUM), k < tl.where(outside, K, 0))


@triton.jit
def _around(left, right, of_left, of_right, i, j, h, k, T, K, valid):
    """The outside sum of a span as the outermost child of head h: the rest of that half, and the half's outside sum."""
    h += k * 0
    before, after = valid & (h < i), valid & (h > j)
    x = tl.load(of_right + (h * T + j) * K + k, before, -float("inf"))
    x += tl.load(right + (h * T + i - 1) * K + k, before, -float("inf"))
    y = tl.load(of_left + (i * T + h) * K + k, after, -float("inf"))
    y += tl.load(left + ((j + 1) * T + h) * K + k, after, -float("inf"))
    return tl.maximum(x, y)


@triton.jit(do_not_specialize=["width"])
def receive_shared(
    arcs, left, right, of_left, of_right, outside, T, K, width, M: tl.constexpr, C: tl.constexpr, KB: tl.constexpr
):
    """Outside sums of the subtrees of a width by the head that they are attached to; at their own words, with the arcs to these."""
    b, i, j = span_of(width, T)
    square = b * T * T * K
    left += square
    right += square
    of_left += square
    of_right += square
    arcs += b * T * T
    outside += ((b * T + i) * T + j) * T * K
    k = tl.program_id(1) * KB + tl.arange(0, KB)
    there = k < K
    for start in range(0, T, M):
        h = start + tl.arange(0, M)[:, None]
        heads = ((h < i) | (h > j)) & (h < T) & there[None, :]
        x = _around(left, right, of_left, of_right, i, j, h, k[None, :], T, K, heads)
        tl.store(outside + h * K + k[None, :], x, heads)
    tl.debug_barrier()
    none, zero = tl.full((M, KB), -float("inf"), tl.float32), tl.zeros((M, KB), tl.float32)
    for start in range(i, j + 1, M):
        m = start + tl.arange(0, M)
        top, total = add_pairs(none, zero, arcs + m, outside + k, T, K, 0, i, m <= j, there, C, True)
        top, total = add_pairs(top, total, arcs + m, outside + k, T, K, j + 1, T, m <= j, there, C, True)
        tl.store(outside + m[:, None] * K + k[None, :], outcome(top, total, True), (m <= j)[:, None] & there[None, :])


@triton.jit(do_not_specialize=["width"])
def pass_shared(
    outside, arcs, pairs, free, nodes, left, right, sent, above, of_left, of_right, T, K, width,
    M: tl.constexpr, C: tl.constexpr, KB: tl.constexpr, S: tl.constexpr,
):  # fmt: skip
    """Outside sums of trees `above` (without the score of the head's state), and of halves, of all spans of a width."""
    b, i, j = span_of(width, T)
    place = ((b * T + i) * T + j) * T * K
    k = tl.program_id(1) * KB + tl.arange(0, KB)
    there = k < K
    under = tl.load(free + (b * T + i) * T + j)
    none, zero = tl.full((M, KB), -float("inf"), tl.float32), tl.zeros((M, KB), tl.float32)
    for start in range(i, j + 1, M):
        m = start + tl.arange(0, M)
        top, total = add_pairs(none, zero, outside + place + m * K, pairs + k, 1, K, 0, K, m <= j, there, C, True)
        x = or_root(top, total, arcs + b * T * T + m * (T + 1), under, m <= j)
        tl.store(above + place + m[:, None] * K + k[None, :], x, (m <= j)[:, None] & there[None, :])
    tl.debug_barrier()
    halves_around(nodes, left, right, sent, above, of_left, of_right, b, i, j, k, T, K, S, KB)


@triton.jit(do_not_specialize=["width"])
def receive_own(
    arcs, pairs, free, left, right, of_left, of_right, outside, above, T, K, width, group,
    C: tl.constexpr, KB: tl.constexpr,
):  # fmt: skip
    """Outside sums by the head, `outside`, and of trees, `above`, with `pairs [G, T, T, K, K]`: a program has one word."""
    b, i, j = span_of(width, T)
    w = tl.program_id(1)
    square = b * T * T * K
    left += square
    right += square
    of_left += square
    of_right += square
    arcs += b * T * T
    pairs += b * group * T * T * K * K
    place = ((b * T + i) * T + j) * T * K + w * K
    k = tl.program_id(2) * KB + tl.arange(0, KB)
    there = k < K
    within = (w >= i) & (w <= j)
    here, elsewhere = k < tl.where(within, K, 0), k < tl.where(within, 0, K)
    tl.store(outside + place + k, _around(left, right, of_left, of_right, i, j, w, k, T, K, elsewhere), elsewhere)
    top, total = tl.full((KB,), -float("inf"), tl.float32), tl.zeros((KB,), tl.float32)
    count = tl.where(within, T - (j - i + 1), 0)
    for number in range(count):
        h = tl.where(number < i, number, number + j - i + 1)
        arc = tl.load(arcs + h * T + w)
        table = pairs + (h * T + w).to(tl.int64) * K * K
        for start in range(0, K, C):
            c = start + tl.arange(0, C)
            x = _around(left, right, of_left, of_right, i, j, h, c, T, K, c < K)
            y = tl.load(table + c[:, None] * K + k[None, :], (c < K)[:, None] & there[None, :], -float("inf"))
            top, total = add_up(top, total, (x + arc)[:, None] + y, 0, True)
    root = tl.load(arcs + w * (T + 1)) + tl.load(free + (b * T + i) * T + j)
    top, total = add_up(top, total, tl.broadcast_to(root, (1, KB)), 0, True)
    tl.store(above + place + k, outcome(top, total, True), here)


@triton.jit(do_not_specialize=["width"])
def pass_own(nodes, left, right, sent, above, of_left, of_right, T, K, width, S: tl.constexpr, KB: tl.constexpr):
    """Outside sums of halves of all spans of a width."""
    b, i, j = span_of(width, T)
    k = tl.program_id(1) * KB + tl.arange(0, KB)
    halves_around(nodes, left, right, sent, above, of_left, of_right, b, i, j, k, T, K, S, KB)
