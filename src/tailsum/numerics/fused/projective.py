"""Projective dependency trees without states: Eisner's algorithm in one launch, one program for each sentence.

The reference is `dependencies/projective.py`, with the same items of the words 1 .. n and the root 0 before them: half subtrees
`right[i, j]` (head i) and `left[i, j]` (head j), and joined halves `join[i, j]`, to which an arc from i to j or from j to i is added.
Charts are squares `[S, S]`, S = T + 1, by first and last word, each also transposed; every sum has a running maximum.
"""

# pyright: reportArgumentType=false, reportCallIssue=false

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from tailsum.numerics.fused.kernel import Kept
from tailsum.numerics.fused.rows import (
    change_of_rows,
    change_of_shares,
    log_sum_of_rows,
    reduced,
    share,
    shares_of_rows,
    tiles,
    with_more,
)

# The squares of a sentence in this order, each followed by its transpose; the first three are sums.
RIGHT, LEFT, JOIN, TO_RIGHT, TO_LEFT, SQUARES = (tl.constexpr(2 * x) for x in range(6))


@triton.jit
def row_of(chart, square, i, S):
    """Pointers to rows of a square."""
    return chart + square * S * S + i * S


@triton.jit
def column_of(chart, square, j, S):
    """Pointers to columns of a square, which are rows of its transpose."""
    return chart + (square + 1) * S * S + j * S


@triton.jit
def _store(chart, square, i, j, S, value, valid):
    """An entry of a square and of its transpose."""
    tl.store(row_of(chart, square, i, S) + j, value, valid)
    tl.store(column_of(chart, square, j, S) + i, value, valid)


@triton.jit
def _arc(i, j, T):
    """The places of the scores of arcs from i to j > i, and from j to i where i is a word."""
    return tl.where(i == 0, (j - 1) * (T + 1), (i - 1) * T + j - 1), (j - 1) * T + i - 1


@triton.jit
def _store_sum(chart, tops, totals, square, i, j, S, top, total, valid, value, MAX: tl.constexpr):
    _store(chart, square, i, j, S, value, valid)
    if not MAX:
        _store(tops, square, i, j, S, top, valid)
        tl.store(totals + square // 2 * S * S + i * S + j, tl.maximum(total, 1.0), valid)  # 0 where nothing is possible


@triton.jit
def _inside(
    arcs, lengths, chart, tops, totals, T, MULTIROOT: tl.constexpr, MAX: tl.constexpr, I: tl.constexpr, K: tl.constexpr
):
    """Fill the charts with sums or, if MAX, maxima; of sums also their largest terms `tops`, and `totals`, the sums over these.

    With one root, its child has all other words below it: of its right halves the longest alone is possible.
    """
    b = tl.program_id(0).to(tl.int64)
    n, S = tl.load(lengths + b).to(tl.int32), T + 1
    arcs += b * T * T
    chart, tops, totals = chart + b * SQUARES * S * S, tops + b * 6 * S * S, totals + b * 3 * S * S
    for start in range(0, n + 1, I):
        i = start + tl.arange(0, I)
        _store(chart, RIGHT, i, i, S, i * 0.0, i <= n)
        _store(chart, LEFT, i, i, S, i * 0.0, i <= n)
    tl.debug_barrier()
    for width in range(2, n + 2):
        count = n + 2 - width
        for start in range(0, count, I):
            i = start + tl.arange(0, I)
            j = i + width - 1
            valid = i < count
            a, c = row_of(chart, RIGHT, i, S) + i, column_of(chart, LEFT, j, S) + i + 1
            top, total = log_sum_of_rows(a, c, valid, width - 1, K, MAX)
            join = reduced(top, total, MAX)
            right, left = _arc(i, j, T)
            to_right = join + tl.load(arcs + right, valid, 0.0)
            to_left = join + tl.load(arcs + left, valid & (i > 0), -float("inf"))
            _store_sum(chart, tops, totals, JOIN, i, j, S, top, total, valid, join, MAX)
            _store(chart, TO_RIGHT, i, j, S, to_right, valid)
            _store(chart, TO_LEFT, i, j, S, to_left, valid)
            # The outermost child is nearer, or it is the last word: then its arc was just computed.
            a, c = row_of(chart, TO_RIGHT, i, S) + i + 1, column_of(chart, RIGHT, j, S) + i + 1
            top, total = log_sum_of_rows(a, c, valid, width - 2, K, MAX)
            top, total = with_more(top, total, to_right[:, None], MAX)
            half = reduced(top, total, MAX)
            if not MULTIROOT:
                half = tl.where((i == 0) & (j < n), -float("inf"), half)
            _store_sum(chart, tops, totals, RIGHT, i, j, S, top, total, valid, half, MAX)
            a, c = row_of(chart, LEFT, i, S) + i + 1, column_of(chart, TO_LEFT, j, S) + i + 1
            top, total = log_sum_of_rows(a, c, valid, width - 2, K, MAX)
            top, total = with_more(top, total, to_left[:, None], MAX)
            _store_sum(chart, tops, totals, LEFT, i, j, S, top, total, valid, reduced(top, total, MAX), MAX)
        tl.debug_barrier()


@triton.jit
def _outside(lengths, chart, tops, totals, seeds, grads, of_arcs, T, I: tl.constexpr, K: tl.constexpr):
    """The gradients `of_arcs [B, T, T]` (zeros before). `grads` are those of the sums over `totals`, laid out as `tops`."""
    b = tl.program_id(0).to(tl.int64)
    n, S = tl.load(lengths + b).to(tl.int32), T + 1
    of_arcs += b * T * T
    chart, totals = chart + b * SQUARES * S * S, totals + b * 3 * S * S
    grads, tops = grads + b * 6 * S * S, tops + b * 6 * S * S
    for step in range(n):
        width = n + 1 - step
        for start in range(0, step + 1, I):
            i = start + tl.arange(0, I)
            j = i + width - 1
            valid = i <= step
            here = i * S + j
            after, before = tl.where(valid, n + 1, j + 1), tl.where(valid, i, 0)
            # A right half is the rest of a larger one, whose head is before it, and the left part of a join.
            inside = tl.load(row_of(chart, RIGHT, i, S) + j, valid, -float("inf"))
            g, w = column_of(grads, RIGHT, j, S), column_of(tops, RIGHT, j, S)
            right = shares_of_rows(g, w, column_of(chart, TO_RIGHT, i, S), inside, i * 0, before, K)
            g, w = row_of(grads, JOIN, i, S), row_of(tops, JOIN, i, S)
            right += shares_of_rows(g, w, row_of(chart, LEFT, j + 1, S), inside, j + 1, after, K)
            right += tl.where(width == n + 1, tl.load(seeds + b), 0.0)
            right /= tl.load(totals + RIGHT // 2 * S * S + here, valid, 1.0)
            _store(grads, RIGHT, i, j, S, right, valid)
            # A left half is the rest of a larger one, whose head is after it, and the right part of a join.
            inside = tl.load(row_of(chart, LEFT, i, S) + j, valid, -float("inf"))
            g, w = row_of(grads, LEFT, i, S), row_of(tops, LEFT, i, S)
            left = shares_of_rows(g, w, row_of(chart, TO_LEFT, j, S), inside, j + 1, after, K)
            g, w = column_of(grads, JOIN, j, S), column_of(tops, JOIN, j, S)
            left += shares_of_rows(g, w, column_of(chart, RIGHT, i - 1, S), inside, i * 0, before, K)
            left /= tl.load(totals + LEFT // 2 * S * S + here, valid, 1.0)
            _store(grads, LEFT, i, j, S, left, valid)
            # An arc is the outermost of its half, or further words follow.
            inside = tl.load(row_of(chart, TO_RIGHT, i, S) + j, valid, -float("inf"))
            g, w = row_of(grads, RIGHT, i, S), row_of(tops, RIGHT, i, S)
            to_right = shares_of_rows(g, w, row_of(chart, RIGHT, j, S), inside, j + 1, after, K)
            to_right += share(right, inside, tl.load(w + j, valid, -float("inf")))
            inside = tl.load(row_of(chart, TO_LEFT, i, S) + j, valid, -float("inf"))
            g, w = column_of(grads, LEFT, j, S), column_of(tops, LEFT, j, S)
            to_left = shares_of_rows(g, w, column_of(chart, LEFT, i, S), inside, i * 0, before, K)
            to_left += share(left, inside, tl.load(w + i, valid, -float("inf")))
            join = (to_right + to_left) / tl.load(totals + JOIN // 2 * S * S + here, valid, 1.0)
            _store(grads, JOIN, i, j, S, join, valid)
            place, other = _arc(i, j, T)
            tl.store(of_arcs + place, to_right, valid)
            tl.store(of_arcs + other, to_left, valid & (i > 0))
        tl.debug_barrier()


@triton.jit
def _inside_along(directions, lengths, chart, tops, totals, along, T, I: tl.constexpr, K: tl.constexpr):
    """The derivatives `along` of all items as scores of arcs change by `directions`, laid out as the charts."""
    b = tl.program_id(0).to(tl.int64)
    n, S = tl.load(lengths + b).to(tl.int32), T + 1
    directions += b * T * T
    chart, along = chart + b * SQUARES * S * S, along + b * SQUARES * S * S
    tops, totals = tops + b * 6 * S * S, totals + b * 3 * S * S
    for start in range(0, n + 1, I):
        i = start + tl.arange(0, I)
        _store(along, RIGHT, i, i, S, i * 0.0, i <= n)
        _store(along, LEFT, i, i, S, i * 0.0, i <= n)
    tl.debug_barrier()
    for width in range(2, n + 2):
        count = n + 2 - width
        for start in range(0, count, I):
            i = start + tl.arange(0, I)
            j = i + width - 1
            valid = i < count
            here = i * S + j
            a, c = row_of(0, RIGHT, i, S) + i, column_of(0, LEFT, j, S) + i + 1
            top = tl.load(tops + JOIN * S * S + here, valid, -float("inf"))
            join = change_of_rows(chart + a, chart + c, along + a, along + c, top, valid, width - 1, K)
            join /= tl.load(totals + JOIN // 2 * S * S + here, valid, 1.0)
            right, left = _arc(i, j, T)
            to_right = join + tl.load(directions + right, valid, 0.0)
            to_left = join + tl.load(directions + left, valid & (i > 0), 0.0)
            _store(along, JOIN, i, j, S, join, valid)
            _store(along, TO_RIGHT, i, j, S, to_right, valid)
            _store(along, TO_LEFT, i, j, S, to_left, valid)
            a, c = row_of(0, TO_RIGHT, i, S) + i + 1, column_of(0, RIGHT, j, S) + i + 1
            top = tl.load(tops + RIGHT * S * S + here, valid, -float("inf"))
            half = change_of_rows(chart + a, chart + c, along + a, along + c, top, valid, width - 2, K)
            half += share(to_right, tl.load(chart + TO_RIGHT * S * S + here, valid, -float("inf")), top)
            half /= tl.load(totals + RIGHT // 2 * S * S + here, valid, 1.0)
            _store(along, RIGHT, i, j, S, half, valid)
            a, c = row_of(0, LEFT, i, S) + i + 1, column_of(0, TO_LEFT, j, S) + i + 1
            top = tl.load(tops + LEFT * S * S + here, valid, -float("inf"))
            half = change_of_rows(chart + a, chart + c, along + a, along + c, top, valid, width - 2, K)
            half += share(to_left, tl.load(chart + TO_LEFT * S * S + here, valid, -float("inf")), top)
            half /= tl.load(totals + LEFT // 2 * S * S + here, valid, 1.0)
            _store(along, LEFT, i, j, S, half, valid)
        tl.debug_barrier()


@triton.jit
def _change(grads, changes, tops, chart, along, sums, others, inside, change, low, high, K: tl.constexpr):
    """The derivative of what the `sums`, rows of them, pass to an item with score `inside`, which is joined with `others`."""
    given, above, top, dtop = grads + sums, changes + sums, tops + sums, along + sums
    b, db = chart + others, along + others
    return change_of_shares(given, above, top, dtop, b, db, inside, change, low, high, K)


@triton.jit
def _change_of_last(grads, changes, tops, along, half, inside, change, valid):
    """The derivative of what a half passes to the arc to its last word."""
    grad, above = tl.load(grads + half, valid, 0.0), tl.load(changes + half, valid, 0.0)
    above += grad * (change - tl.load(along + half, valid, 0.0))
    return share(above, inside, tl.load(tops + half, valid, -float("inf")))


@triton.jit
def _outside_along(lengths, chart, tops, totals, grads, along, changes, of_arcs, T, I: tl.constexpr, K: tl.constexpr):
    """The derivatives of what `_outside` finds, laid out alike."""
    b = tl.program_id(0).to(tl.int64)
    n, S = tl.load(lengths + b).to(tl.int32), T + 1
    of_arcs += b * T * T
    chart, along = chart + b * SQUARES * S * S, along + b * SQUARES * S * S
    grads, changes, tops = grads + b * 6 * S * S, changes + b * 6 * S * S, tops + b * 6 * S * S
    totals += b * 3 * S * S
    for step in range(n):
        width = n + 1 - step
        for start in range(0, step + 1, I):
            i = start + tl.arange(0, I)
            j = i + width - 1
            valid = i <= step
            here = i * S + j
            after, before = tl.where(valid, n + 1, j + 1), tl.where(valid, i, 0)
            half = RIGHT * S * S + here
            inside, dinside = tl.load(chart + half, valid, -float("inf")), tl.load(along + half, valid, 0.0)
            sums, others = column_of(0, RIGHT, j, S), column_of(0, TO_RIGHT, i, S)
            right = _change(grads, changes, tops, chart, along, sums, others, inside, dinside, i * 0, before, K)
            sums, others = row_of(0, JOIN, i, S), row_of(0, LEFT, j + 1, S)
            right += _change(grads, changes, tops, chart, along, sums, others, inside, dinside, j + 1, after, K)
            _store(changes, RIGHT, i, j, S, right / tl.load(totals + RIGHT // 2 * S * S + here, valid, 1.0), valid)
            half = LEFT * S * S + here
            inside, dinside = tl.load(chart + half, valid, -float("inf")), tl.load(along + half, valid, 0.0)
            sums, others = row_of(0, LEFT, i, S), row_of(0, TO_LEFT, j, S)
            left = _change(grads, changes, tops, chart, along, sums, others, inside, dinside, j + 1, after, K)
            sums, others = column_of(0, JOIN, j, S), column_of(0, RIGHT, i - 1, S)
            left += _change(grads, changes, tops, chart, along, sums, others, inside, dinside, i * 0, before, K)
            _store(changes, LEFT, i, j, S, left / tl.load(totals + LEFT // 2 * S * S + here, valid, 1.0), valid)
            tl.debug_barrier()  # what was stored is loaded again
            half = TO_RIGHT * S * S + here
            inside, dinside = tl.load(chart + half, valid, -float("inf")), tl.load(along + half, valid, 0.0)
            to_right = _change_of_last(grads, changes, tops, along, RIGHT * S * S + here, inside, dinside, valid)
            sums, others = row_of(0, RIGHT, i, S), row_of(0, RIGHT, j, S)
            to_right += _change(grads, changes, tops, chart, along, sums, others, inside, dinside, j + 1, after, K)
            half = TO_LEFT * S * S + here
            inside, dinside = tl.load(chart + half, valid, -float("inf")), tl.load(along + half, valid, 0.0)
            to_left = _change_of_last(grads, changes, tops, along, LEFT * S * S + here, inside, dinside, valid)
            sums, others = column_of(0, LEFT, j, S), column_of(0, LEFT, i, S)
            to_left += _change(grads, changes, tops, chart, along, sums, others, inside, dinside, i * 0, before, K)
            join = (to_right + to_left) / tl.load(totals + JOIN // 2 * S * S + here, valid, 1.0)
            _store(changes, JOIN, i, j, S, join, valid)
            place, other = _arc(i, j, T)
            tl.store(of_arcs + place, to_right, valid)
            tl.store(of_arcs + other, to_left, valid & (i > 0))
        tl.debug_barrier()


def projective_inside(arcs: Tensor, lengths: Tensor, multiroot: bool, maxima: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The charts `[B, SQUARES, S, S]`, and of sums what their gradients need, see `_inside`; arbitrary where there is nothing to sum."""
    batch, length, _ = arcs.shape
    charts = [arcs.new_empty(batch, squares, length + 1, length + 1) for squares in (SQUARES.value, 6, 3)]
    if batch:
        arguments = arcs.contiguous(), lengths, *charts, length
        _inside[(batch,)](*arguments, MULTIROOT=multiroot, MAX=maxima, **tiles(length + 1))
    chart, tops, totals = charts
    return chart, tops, totals


def forward(arcs: Tensor, *, lengths: Tensor, multiroot: bool) -> tuple[Tensor, Kept]:
    """Log of the sum over all projective trees `[B]` from `arcs [B, T, T]` (head, child; roots on the diagonal)."""
    kept = projective_inside(arcs, lengths, multiroot, maxima=False)
    return whole(kept[0], lengths), kept


def whole(chart: Tensor, lengths: Tensor) -> Tensor:
    """What a chart has for the right half of the root that covers all words, `[B]`."""
    return chart[torch.arange(len(chart), device=chart.device), RIGHT.value, 0, lengths]


def backward(
    kept: Kept, grad: Tensor, _wanted: Sequence[bool], *, lengths: Tensor, multiroot: bool
) -> Sequence[Tensor | None]:
    """The gradient in the scores of arcs."""
    del multiroot  # the chart has it
    return (_gradient(kept, grad, lengths)[1],)


def _gradient(kept: Kept, grad: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of sums over `totals`, and those of arcs."""
    chart, tops, _ = kept
    batch, _, size, _ = chart.shape
    grads, of_arcs = torch.empty_like(tops), chart.new_zeros(batch, size - 1, size - 1)
    if batch:
        _outside[(batch,)](lengths, *kept, grad.contiguous(), grads, of_arcs, size - 1, **tiles(size))
    return grads, of_arcs


def curve(
    kept: Kept, grad: Tensor, directions: Sequence[Tensor | None], *, lengths: Tensor, multiroot: bool
) -> tuple[list[Tensor], Tensor]:
    """The derivatives of the gradient as scores change by the direction, and of the log sum."""
    del multiroot
    chart, tops, _ = kept
    (direction,) = directions
    assert direction is not None
    grads, of_arcs = _gradient(kept, grad, lengths)
    along, changes, found = torch.empty_like(chart), torch.empty_like(tops), torch.zeros_like(of_arcs)
    batch, length, _ = found.shape
    if batch:
        _inside_along[(batch,)](direction.contiguous(), lengths, *kept, along, length, **tiles(length + 1))
        _outside_along[(batch,)](lengths, *kept, grads, along, changes, found, length, **tiles(length + 1))
    return [found], whole(along, lengths).masked_fill(whole(chart, lengths) == -torch.inf, 0.0)
