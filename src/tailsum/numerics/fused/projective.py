"""Projective dependency trees without states: Eisner's algorithm in one launch, one program for each sentence.

The reference is `dependencies/projective.py`, with the same items: half subtrees `right[i, j]` (head i) and `left[i, j]`
(head j), and joined halves `join[i, j]`, to which an arc from i to j or from j to i is added. Charts are squares by first
and last word, each also transposed; every sum has a running maximum.
"""

# pyright: reportArgumentType=false

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from tailsum.numerics.fused.exponential import add_exp, log_of
from tailsum.numerics.fused.reference import Saved, with_reference
from tailsum.numerics.fused.rows import log_sum_of_rows, share, shares_of_rows, tiles

# The squares of a sentence in this order, each followed by its transpose.
_RIGHT, _LEFT, _JOIN, _TO_RIGHT, _TO_LEFT, _SQUARES = (tl.constexpr(2 * x) for x in range(6))


@triton.jit
def _store(chart, square, i, j, T, value, valid):
    """An entry of a square and of its transpose."""
    tl.store(chart + square * T * T + i * T + j, value, valid)
    tl.store(chart + (square + 1) * T * T + j * T + i, value, valid)


@triton.jit
def _row(chart, square, i, T):
    """Pointers to rows of a square."""
    return chart + square * T * T + i * T


@triton.jit
def _column(chart, square, j, T):
    """Pointers to columns of a square, which are rows of its transpose."""
    return chart + (square + 1) * T * T + j * T


@triton.jit
def _inside(arcs, lengths, chart, ends, T, MULTIROOT: tl.constexpr, I: tl.constexpr, K: tl.constexpr):
    """Fill the charts, and `ends [B, 4, T + 1]`.

    The rows of `ends` are sums over the words before s under their roots; over the words up to m, their last root; over all
    words up to the last; and the second again without the score of the root.
    """
    b = tl.program_id(0).to(tl.int64)
    n = tl.load(lengths + b).to(tl.int32)
    arcs += b * T * T
    chart += b * _SQUARES * T * T
    ends += b * 4 * (T + 1)
    for start in range(0, n, I):
        i = start + tl.arange(0, I)
        _store(chart, _RIGHT, i, i, T, i * 0.0, i < n)
        _store(chart, _LEFT, i, i, T, i * 0.0, i < n)
    tl.debug_barrier()
    for width in range(2, n + 1):
        count = n - width + 1
        for start in range(0, count, I):
            i = start + tl.arange(0, I)
            j = i + width - 1
            valid = i < count
            a, c = _row(chart, _RIGHT, i, T) + i, _column(chart, _LEFT, j, T) + i + 1
            top, total = log_sum_of_rows(a, c, valid, width - 1, K)
            join = log_of(top, total)
            to_right = join + tl.load(arcs + i * T + j, valid, 0.0)
            to_left = join + tl.load(arcs + j * T + i, valid, 0.0)
            _store(chart, _JOIN, i, j, T, join, valid)
            _store(chart, _TO_RIGHT, i, j, T, to_right, valid)
            _store(chart, _TO_LEFT, i, j, T, to_left, valid)
            # The outermost child is nearer, or it is the last word: then its arc was just computed.
            a, c = _row(chart, _TO_RIGHT, i, T) + i + 1, _column(chart, _RIGHT, j, T) + i + 1
            top, total = log_sum_of_rows(a, c, valid, width - 2, K)
            top, total = add_exp(top, total, to_right[:, None], 1)
            _store(chart, _RIGHT, i, j, T, log_of(top, total), valid)
            a, c = _row(chart, _LEFT, i, T) + i + 1, _column(chart, _TO_LEFT, j, T) + i + 1
            top, total = log_sum_of_rows(a, c, valid, width - 2, K)
            top, total = add_exp(top, total, to_left[:, None], 1)
            _store(chart, _LEFT, i, j, T, log_of(top, total), valid)
        tl.debug_barrier()
    one = tl.arange(0, 1)
    tl.store(ends + one, one * 0.0)
    for last in range(n):
        tl.debug_barrier()
        m = last + one
        top, total = log_sum_of_rows(ends + one, _column(chart, _LEFT, m, T), one == 0, last + 1, K)
        side = log_of(top, total)
        tl.store(ends + (T + 1) + m, side + tl.load(arcs + m * (T + 1)))
        tl.store(ends + 3 * (T + 1) + m, side)
        tl.debug_barrier()
        top, total = log_sum_of_rows(ends + (T + 1) + one, _column(chart, _RIGHT, m, T), one == 0, last + 1, K)
        whole = log_of(top, total)
        tl.store(ends + 2 * (T + 1) + m, whole)
        tl.store(ends + m + 1, whole if MULTIROOT else tl.full((1,), -float("inf"), tl.float32))


@triton.jit
def _seed(values, others, grads, whole, grad, out, stride, add, count, K: tl.constexpr):
    """Split `grad` over the terms `values + others` of the log sum `whole`: to `out` with a stride, and added to `grads`."""
    for start in range(0, count, K):
        k = start + tl.arange(0, K)
        x = tl.load(values + k, k < count, -float("inf")) + tl.load(others + k, k < count, -float("inf"))
        part = share(grad, x, whole)
        tl.store(out + k * stride, part, k < count)
        tl.store(grads + k, tl.load(grads + k, k < count, 0.0) + part, (k < count) & add)


@triton.jit
def _outside(
    lengths, chart, ends, seeds, grads, of_ends, of_arcs, T, MULTIROOT: tl.constexpr, I: tl.constexpr, K: tl.constexpr
):
    """The gradients of all items, laid out as the charts (`grads`, `of_ends`: zeros before), and of the arcs."""
    b = tl.program_id(0).to(tl.int64)
    n = tl.load(lengths + b).to(tl.int32)
    of_arcs += b * T * T
    chart += b * _SQUARES * T * T
    grads += b * _SQUARES * T * T
    ends += b * 4 * (T + 1)
    of_ends += b * 4 * (T + 1)
    for step in range(n):
        last = n - 1 - step
        # All words up to `last`: gradients from the seed and from later roots.
        later = tl.load(of_ends + last + 1)
        grad = tl.where(step == 0, tl.load(seeds + b), 0.0) + later
        whole = tl.load(ends + 2 * (T + 1) + last)
        values, to_right = ends + (T + 1), chart + (_RIGHT + 1) * T * T + last * T
        _seed(values, to_right, of_ends + (T + 1), whole, grad, grads + _RIGHT * T * T + last, T, True, last + 1, K)
        tl.debug_barrier()
        grad = tl.load(of_ends + (T + 1) + last)
        tl.store(of_arcs + last * (T + 1), grad)
        side = tl.load(ends + 3 * (T + 1) + last)
        others = chart + (_LEFT + 1) * T * T + last * T
        _seed(ends, others, of_ends, side, grad, grads + _LEFT * T * T + last, T, MULTIROOT, last + 1, K)
        tl.debug_barrier()
    for step in range(n - 1):
        width = n - step
        for start in range(0, step + 1, I):
            i = start + tl.arange(0, I)
            j = i + width - 1
            valid = i <= step
            after, before = tl.where(valid, n, j + 1), tl.where(valid, i, 0)
            # A right half is the rest of a larger one, whose head is before it, and the left part of a join.
            inside = tl.load(_row(chart, _RIGHT, i, T) + j, valid, -float("inf"))
            right = tl.load(_row(grads, _RIGHT, i, T) + j, valid, 0.0)
            g, w = _column(grads, _RIGHT, j, T), _column(chart, _RIGHT, j, T)
            right += shares_of_rows(g, w, _column(chart, _TO_RIGHT, i, T), inside, i * 0, before, K)
            g, w = _row(grads, _JOIN, i, T), _row(chart, _JOIN, i, T)
            right += shares_of_rows(g, w, _row(chart, _LEFT, j + 1, T), inside, j + 1, after, K)
            top_right = inside
            # A left half is the rest of a larger one, whose head is after it, and the right part of a join.
            inside = tl.load(_row(chart, _LEFT, i, T) + j, valid, -float("inf"))
            left = tl.load(_row(grads, _LEFT, i, T) + j, valid, 0.0)
            g, w = _row(grads, _LEFT, i, T), _row(chart, _LEFT, i, T)
            left += shares_of_rows(g, w, _row(chart, _TO_LEFT, j, T), inside, j + 1, after, K)
            g, w = _column(grads, _JOIN, j, T), _column(chart, _JOIN, j, T)
            left += shares_of_rows(g, w, _column(chart, _RIGHT, i - 1, T), inside, i * 0, before, K)
            top_left = inside
            _store(grads, _RIGHT, i, j, T, right, valid)
            _store(grads, _LEFT, i, j, T, left, valid)
            # An arc is the outermost of its half, or further words follow.
            inside = tl.load(_row(chart, _TO_RIGHT, i, T) + j, valid, -float("inf"))
            to_right = share(right, inside, top_right)
            g, w = _row(grads, _RIGHT, i, T), _row(chart, _RIGHT, i, T)
            to_right += shares_of_rows(g, w, _row(chart, _RIGHT, j, T), inside, j + 1, after, K)
            inside = tl.load(_row(chart, _TO_LEFT, i, T) + j, valid, -float("inf"))
            to_left = share(left, inside, top_left)
            g, w = _column(grads, _LEFT, j, T), _column(chart, _LEFT, j, T)
            to_left += shares_of_rows(g, w, _column(chart, _LEFT, i, T), inside, i * 0, before, K)
            _store(grads, _JOIN, i, j, T, to_right + to_left, valid)
            tl.store(of_arcs + i * T + j, to_right, valid)
            tl.store(of_arcs + j * T + i, to_left, valid)
        tl.debug_barrier()


def projective_sum(arcs: Tensor, lengths: Tensor, multiroot: bool, reference: Callable[[Tensor], Tensor]) -> Tensor:
    """Log of the sum over all projective trees `[B]` from `arcs [B, T, T]` (head, child; roots on the diagonal).

    `reference(arcs)` computes the same in plain torch, for derivatives of higher order.
    """
    batch, length, _ = arcs.shape

    def forward(arcs: Tensor) -> tuple[Tensor, Saved]:
        chart = arcs.new_empty(batch, _SQUARES.value, length, length)
        ends = arcs.new_empty(batch, 4, length + 1)
        if batch:
            _inside[(batch,)](arcs.contiguous(), lengths, chart, ends, length, MULTIROOT=multiroot, **tiles(length))
        return ends[torch.arange(batch, device=arcs.device), 2, lengths - 1], (chart, ends)

    def backward(kept: Saved, grad: Tensor) -> Saved:
        chart, ends = kept
        of_arcs = chart.new_zeros(batch, length, length)
        if batch:
            work = torch.zeros_like(chart), torch.zeros_like(ends), of_arcs
            arguments = (lengths, chart, ends, grad.contiguous(), *work, length)
            _outside[(batch,)](*arguments, MULTIROOT=multiroot, **tiles(length))
        return (of_arcs,)

    return with_reference(forward, backward, reference, arcs)
