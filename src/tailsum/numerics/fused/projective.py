"""Projective dependency trees without states: Eisner's algorithm in one launch, one program for each sentence.

The reference is `dependencies/projective.py`, with the same items: half subtrees `right[i, j]` (head i) and `left[i, j]`
(head j), and joined halves `join[i, j]`, to which an arc from i to j or from j to i is added. Charts are squares by first
and last word, each also transposed; every sum has a running maximum.
"""

# pyright: reportArgumentType=false

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from tailsum.numerics.fused.kernel import Kept
from tailsum.numerics.fused.rows import log_sum_of_rows, reduced, share, shares_of_rows, tiles, with_more

# The squares of a sentence in this order, each followed by its transpose.
RIGHT, LEFT, JOIN, TO_RIGHT, TO_LEFT, SQUARES = (tl.constexpr(2 * x) for x in range(6))


@triton.jit
def _store(chart, square, i, j, T, value, valid):
    """An entry of a square and of its transpose."""
    tl.store(chart + square * T * T + i * T + j, value, valid)
    tl.store(chart + (square + 1) * T * T + j * T + i, value, valid)


@triton.jit
def row_of(chart, square, i, T):
    """Pointers to rows of a square."""
    return chart + square * T * T + i * T


@triton.jit
def column_of(chart, square, j, T):
    """Pointers to columns of a square, which are rows of its transpose."""
    return chart + (square + 1) * T * T + j * T


@triton.jit
def _inside(
    arcs, lengths, chart, ends, T, MULTIROOT: tl.constexpr, MAX: tl.constexpr, I: tl.constexpr, K: tl.constexpr
):
    """Fill the charts, and `ends [B, 4, T + 1]`, with sums or, if MAX, maxima.

    The rows of `ends` are sums over the words before s under their roots; over the words up to m, their last root; over all
    words up to the last; and the second again without the score of the root. With one root, only the second and the end of the
    third are filled.
    """
    b = tl.program_id(0).to(tl.int64)
    n = tl.load(lengths + b).to(tl.int32)
    arcs += b * T * T
    chart += b * SQUARES * T * T
    ends += b * 4 * (T + 1)
    for start in range(0, n, I):
        i = start + tl.arange(0, I)
        _store(chart, RIGHT, i, i, T, i * 0.0, i < n)
        _store(chart, LEFT, i, i, T, i * 0.0, i < n)
    tl.debug_barrier()
    for width in range(2, n + 1):
        count = n - width + 1
        for start in range(0, count, I):
            i = start + tl.arange(0, I)
            j = i + width - 1
            valid = i < count
            a, c = row_of(chart, RIGHT, i, T) + i, column_of(chart, LEFT, j, T) + i + 1
            top, total = log_sum_of_rows(a, c, valid, width - 1, K, MAX)
            join = reduced(top, total, MAX)
            to_right = join + tl.load(arcs + i * T + j, valid, 0.0)
            to_left = join + tl.load(arcs + j * T + i, valid, 0.0)
            _store(chart, JOIN, i, j, T, join, valid)
            _store(chart, TO_RIGHT, i, j, T, to_right, valid)
            _store(chart, TO_LEFT, i, j, T, to_left, valid)
            # The outermost child is nearer, or it is the last word: then its arc was just computed.
            a, c = row_of(chart, TO_RIGHT, i, T) + i + 1, column_of(chart, RIGHT, j, T) + i + 1
            top, total = log_sum_of_rows(a, c, valid, width - 2, K, MAX)
            top, total = with_more(top, total, to_right[:, None], MAX)
            _store(chart, RIGHT, i, j, T, reduced(top, total, MAX), valid)
            a, c = row_of(chart, LEFT, i, T) + i + 1, column_of(chart, TO_LEFT, j, T) + i + 1
            top, total = log_sum_of_rows(a, c, valid, width - 2, K, MAX)
            top, total = with_more(top, total, to_left[:, None], MAX)
            _store(chart, LEFT, i, j, T, reduced(top, total, MAX), valid)
        tl.debug_barrier()
    if MULTIROOT:
        _sum_by_last(arcs, chart, ends, n, T, MAX, K)
    else:
        top, total = tl.full((1,), -float("inf"), tl.float32), tl.zeros((1,), tl.float32)
        for start in range(0, n, K):
            m = start + tl.arange(0, K)
            root = tl.load(row_of(chart, LEFT, 0, T) + m, m < n, -float("inf")) + tl.load(
                arcs + m * (T + 1), m < n, 0.0
            )
            tl.store(ends + (T + 1) + m, root, m < n)
            ways = root + tl.load(column_of(chart, RIGHT, n - 1, T) + m, m < n, -float("inf"))
            top, total = with_more(top, total, ways[None, :], MAX)
        tl.store(ends + 2 * (T + 1) + n - 1 + tl.arange(0, 1), reduced(top, total, MAX))


@triton.jit
def _sum_by_last(arcs, chart, ends, n, T, MAX: tl.constexpr, K: tl.constexpr):
    """Fill `ends` for any number of roots."""
    one = tl.arange(0, 1)
    tl.store(ends + one, one * 0.0)
    for last in range(n):
        tl.debug_barrier()
        m = last + one
        top, total = log_sum_of_rows(ends + one, column_of(chart, LEFT, m, T), one == 0, last + 1, K, MAX)
        side = reduced(top, total, MAX)
        tl.store(ends + (T + 1) + m, side + tl.load(arcs + m * (T + 1)))
        tl.store(ends + 3 * (T + 1) + m, side)
        tl.debug_barrier()
        top, total = log_sum_of_rows(ends + (T + 1) + one, column_of(chart, RIGHT, m, T), one == 0, last + 1, K, MAX)
        whole = reduced(top, total, MAX)
        tl.store(ends + 2 * (T + 1) + m, whole)
        tl.store(ends + m + 1, whole)


@triton.jit
def _seed(values, others, grads, whole, grad, out, stride, count, K: tl.constexpr):
    """Split `grad` over the terms `values + others` of the log sum `whole`: to `out` with a stride, and added to `grads`."""
    for start in range(0, count, K):
        k = start + tl.arange(0, K)
        x = tl.load(values + k, k < count, -float("inf")) + tl.load(others + k, k < count, -float("inf"))
        part = share(grad, x, whole)
        tl.store(out + k * stride, part, k < count)
        tl.store(grads + k, tl.load(grads + k, k < count, 0.0) + part, k < count)


@triton.jit
def _outside(
    lengths, chart, ends, seeds, grads, of_ends, of_arcs, T, MULTIROOT: tl.constexpr, I: tl.constexpr, K: tl.constexpr
):
    """The gradients of all items, laid out as the charts (`grads`, `of_ends`: zeros before), and of the arcs."""
    b = tl.program_id(0).to(tl.int64)
    n = tl.load(lengths + b).to(tl.int32)
    of_arcs += b * T * T
    chart += b * SQUARES * T * T
    grads += b * SQUARES * T * T
    ends += b * 4 * (T + 1)
    of_ends += b * 4 * (T + 1)
    if MULTIROOT:
        for step in range(n):
            last = n - 1 - step
            # All words up to `last`: gradients from the seed and from later roots.
            later = tl.load(of_ends + last + 1)
            grad = tl.where(step == 0, tl.load(seeds + b), 0.0) + later
            whole = tl.load(ends + 2 * (T + 1) + last)
            values, to_right = ends + (T + 1), chart + (RIGHT + 1) * T * T + last * T
            _seed(values, to_right, of_ends + (T + 1), whole, grad, grads + RIGHT * T * T + last, T, last + 1, K)
            tl.debug_barrier()
            grad = tl.load(of_ends + (T + 1) + last)
            tl.store(of_arcs + last * (T + 1), grad)
            side = tl.load(ends + 3 * (T + 1) + last)
            others = chart + (LEFT + 1) * T * T + last * T
            _seed(ends, others, of_ends, side, grad, grads + LEFT * T * T + last, T, last + 1, K)
            tl.debug_barrier()
    else:
        whole, grad = tl.load(ends + 2 * (T + 1) + n - 1), tl.load(seeds + b)
        for start in range(0, n, K):
            m = start + tl.arange(0, K)
            root = tl.load(ends + (T + 1) + m, m < n, -float("inf"))
            part = share(grad, root + tl.load(column_of(chart, RIGHT, n - 1, T) + m, m < n, -float("inf")), whole)
            tl.store(of_arcs + m * (T + 1), part, m < n)
            tl.store(row_of(grads, RIGHT, m, T) + n - 1, part, m < n)
            tl.store(row_of(grads, LEFT, 0, T) + m, part, m < n)
        tl.debug_barrier()
    for step in range(n - 1):
        width = n - step
        for start in range(0, step + 1, I):
            i = start + tl.arange(0, I)
            j = i + width - 1
            valid = i <= step
            after, before = tl.where(valid, n, j + 1), tl.where(valid, i, 0)
            # A right half is the rest of a larger one, whose head is before it, and the left part of a join.
            inside = tl.load(row_of(chart, RIGHT, i, T) + j, valid, -float("inf"))
            right = tl.load(row_of(grads, RIGHT, i, T) + j, valid, 0.0)
            g, w = column_of(grads, RIGHT, j, T), column_of(chart, RIGHT, j, T)
            right += shares_of_rows(g, w, column_of(chart, TO_RIGHT, i, T), inside, i * 0, before, K)
            g, w = row_of(grads, JOIN, i, T), row_of(chart, JOIN, i, T)
            right += shares_of_rows(g, w, row_of(chart, LEFT, j + 1, T), inside, j + 1, after, K)
            top_right = inside
            # A left half is the rest of a larger one, whose head is after it, and the right part of a join.
            inside = tl.load(row_of(chart, LEFT, i, T) + j, valid, -float("inf"))
            left = tl.load(row_of(grads, LEFT, i, T) + j, valid, 0.0)
            g, w = row_of(grads, LEFT, i, T), row_of(chart, LEFT, i, T)
            left += shares_of_rows(g, w, row_of(chart, TO_LEFT, j, T), inside, j + 1, after, K)
            g, w = column_of(grads, JOIN, j, T), column_of(chart, JOIN, j, T)
            left += shares_of_rows(g, w, column_of(chart, RIGHT, i - 1, T), inside, i * 0, before, K)
            top_left = inside
            _store(grads, RIGHT, i, j, T, right, valid)
            _store(grads, LEFT, i, j, T, left, valid)
            # An arc is the outermost of its half, or further words follow.
            inside = tl.load(row_of(chart, TO_RIGHT, i, T) + j, valid, -float("inf"))
            to_right = share(right, inside, top_right)
            g, w = row_of(grads, RIGHT, i, T), row_of(chart, RIGHT, i, T)
            to_right += shares_of_rows(g, w, row_of(chart, RIGHT, j, T), inside, j + 1, after, K)
            inside = tl.load(row_of(chart, TO_LEFT, i, T) + j, valid, -float("inf"))
            to_left = share(left, inside, top_left)
            g, w = column_of(grads, LEFT, j, T), column_of(chart, LEFT, j, T)
            to_left += shares_of_rows(g, w, column_of(chart, LEFT, i, T), inside, i * 0, before, K)
            _store(grads, JOIN, i, j, T, to_right + to_left, valid)
            tl.store(of_arcs + i * T + j, to_right, valid)
            tl.store(of_arcs + j * T + i, to_left, valid)
        tl.debug_barrier()


def projective_inside(arcs: Tensor, lengths: Tensor, multiroot: bool, maxima: bool) -> tuple[Tensor, Tensor]:
    """The charts `[B, SQUARES, T, T]`, and `ends [B, 4, T + 1]`; arbitrary where there is nothing to sum."""
    batch, length, _ = arcs.shape
    chart = arcs.new_empty(batch, SQUARES.value, length, length)
    ends = arcs.new_empty(batch, 4, length + 1)
    if batch:
        arguments = arcs.contiguous(), lengths, chart, ends, length
        _inside[(batch,)](*arguments, MULTIROOT=multiroot, MAX=maxima, **tiles(length))
    return chart, ends


def forward(arcs: Tensor, *, lengths: Tensor, multiroot: bool) -> tuple[Tensor, Kept]:
    """Log of the sum over all projective trees `[B]` from `arcs [B, T, T]` (head, child; roots on the diagonal)."""
    chart, ends = projective_inside(arcs, lengths, multiroot, maxima=False)
    return ends[torch.arange(len(arcs), device=arcs.device), 2, lengths - 1], (chart, ends)


def backward(
    kept: Kept, grad: Tensor, _wanted: Sequence[bool], *, lengths: Tensor, multiroot: bool
) -> Sequence[Tensor | None]:
    """The gradient in the scores of arcs."""
    chart, ends = kept
    batch, _, length, _ = chart.shape
    of_arcs = chart.new_zeros(batch, length, length)
    if batch:
        work = torch.zeros_like(chart), torch.zeros_like(ends), of_arcs
        arguments = (lengths, chart, ends, grad.contiguous(), *work, length)
        _outside[(batch,)](*arguments, MULTIROOT=multiroot, **tiles(length))
    return (of_arcs,)
