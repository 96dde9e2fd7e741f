"""Trees whose spans have independent scores: all widths in one launch, one program for each sentence.

The reference is `numerics.charts.fill_chart` with `log_sum_exp`, as in `trees/span_chart.py`. Every sum has a running
maximum, so results are right for scores of any range.
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
    shares_of_rows,
    tiles,
)


@triton.jit
def _inside(nodes, lengths, inside, tops, totals, T, MAX: tl.constexpr, I: tl.constexpr, K: tl.constexpr):
    """Fill `inside [B, 2, T, T]`, a square and its transpose, and of sums over splits the largest term, `tops`, laid out like it.

    `totals [B, T, T]` are these sums over their largest term: shares by both add up to one where logs of sums are rounded.
    """
    b = tl.program_id(0).to(tl.int64)
    n = tl.load(lengths + b).to(tl.int32)
    nodes += b * T * T
    inside += b * 2 * T * T
    tops += b * 2 * T * T
    totals += b * T * T
    turned = inside + T * T
    for start in range(0, n, I):
        i = start + tl.arange(0, I)
        score = tl.load(nodes + i * (T + 1), i < n, 0.0)
        tl.store(inside + i * (T + 1), score, i < n)
        tl.store(turned + i * (T + 1), score, i < n)
    tl.debug_barrier()
    for width in range(2, n + 1):
        count = n - width + 1
        for start in range(0, count, I):
            i = start + tl.arange(0, I)
            j = i + width - 1
            valid = i < count
            top, total = log_sum_of_rows(inside + i * (T + 1), turned + j * T + i + 1, valid, width - 1, K, MAX)
            split = reduced(top, total, MAX)
            whole = tl.load(nodes + i * T + j, valid, 0.0) + split
            tl.store(inside + i * T + j, whole, valid)
            tl.store(turned + j * T + i, whole, valid)
            if not MAX:
                tl.store(tops + i * T + j, top, valid)
                tl.store(tops + T * T + j * T + i, top, valid)
                tl.store(totals + i * T + j, tl.maximum(total, 1.0), valid)  # zero where nothing is possible
        tl.debug_barrier()


@triton.jit
def _outside(inside, tops, totals, lengths, seeds, grads, of_nodes, T, I: tl.constexpr, K: tl.constexpr):
    """The gradients `of_nodes [B, T, T]` in all spans, from the gradient of each whole sentence, `seeds [B]`.

    `grads`, laid out like `inside`, are these over `totals`.
    """
    b = tl.program_id(0).to(tl.int64)
    n = tl.load(lengths + b).to(tl.int32)
    inside += b * 2 * T * T
    tops += b * 2 * T * T
    grads += b * 2 * T * T
    totals += b * T * T
    of_nodes += b * T * T
    turned, tops_turned, grads_turned = inside + T * T, tops + T * T, grads + T * T
    for step in range(n):
        width = n - step
        for start in range(0, step + 1, I):
            i = start + tl.arange(0, I)
            j = i + width - 1
            valid = i <= step
            whole = tl.load(inside + i * T + j, valid, -float("inf"))
            # As the left child of spans that end later, and as the right child of spans that start earlier.
            last, first = tl.where(valid, n, j + 1), tl.where(valid, i, 0)
            as_left = shares_of_rows(grads + i * T, tops + i * T, inside + (j + 1) * T, whole, j + 1, last, K)
            row, before = j * T, turned + (i - 1) * T
            as_right = shares_of_rows(grads_turned + row, tops_turned + row, before, whole, i * 0, first, K)
            grad = as_left + as_right + tl.where(width == n, tl.load(seeds + b), 0.0)
            tl.store(of_nodes + i * T + j, grad, valid)
            grad /= tl.load(totals + i * T + j, valid, 1.0)
            tl.store(grads + i * T + j, grad, valid)
            tl.store(grads_turned + row + i, grad, valid)
        tl.debug_barrier()


@triton.jit
def _inside_along(nodes, lengths, inside, tops, totals, along, split, T, I: tl.constexpr, K: tl.constexpr):
    """The derivatives `along` of `inside`, and `split` of the log sums over splits, as scores change by `nodes`; laid out like it."""
    b = tl.program_id(0).to(tl.int64)
    n = tl.load(lengths + b).to(tl.int32)
    nodes += b * T * T
    place = b * 2 * T * T
    inside, tops, along, split = inside + place, tops + place, along + place, split + place
    totals += b * T * T
    turned, along_turned, split_turned = inside + T * T, along + T * T, split + T * T
    for start in range(0, n, I):
        i = start + tl.arange(0, I)
        change = tl.load(nodes + i * (T + 1), i < n, 0.0)
        tl.store(along + i * (T + 1), change, i < n)
        tl.store(along_turned + i * (T + 1), change, i < n)
    tl.debug_barrier()
    for width in range(2, n + 1):
        count = n - width + 1
        for start in range(0, count, I):
            i = start + tl.arange(0, I)
            j = i + width - 1
            valid = i < count
            left, right = i * (T + 1), j * T + i + 1
            top = tl.load(tops + i * T + j, valid, -float("inf"))
            change = change_of_rows(
                inside + left, turned + right, along + left, along_turned + right, top, valid, width - 1, K
            )
            change /= tl.load(totals + i * T + j, valid, 1.0)
            tl.store(split + i * T + j, change, valid)
            tl.store(split_turned + j * T + i, change, valid)
            change += tl.load(nodes + i * T + j, valid, 0.0)
            tl.store(along + i * T + j, change, valid)
            tl.store(along_turned + j * T + i, change, valid)
        tl.debug_barrier()


@triton.jit
def _outside_along(
    inside, tops, totals, along, split, lengths, grads, changes, of_nodes, T, I: tl.constexpr, K: tl.constexpr
):
    """The derivatives `of_nodes [B, T, T]` of what `_outside` finds (zeros before); `changes` are these over `totals`."""
    b = tl.program_id(0).to(tl.int64)
    n = tl.load(lengths + b).to(tl.int32)
    place = b * 2 * T * T
    inside, tops, grads, changes = inside + place, tops + place, grads + place, changes + place
    along, split, totals, of_nodes = along + place, split + place, totals + b * T * T, of_nodes + b * T * T
    for step in range(1, n):
        width = n - step
        for start in range(0, step + 1, I):
            i = start + tl.arange(0, I)
            j = i + width - 1
            valid = i <= step
            whole, change = tl.load(inside + i * T + j, valid, -float("inf")), tl.load(along + i * T + j, valid, 0.0)
            last, first = tl.where(valid, n, j + 1), tl.where(valid, i, 0)
            row, other = i * T, (j + 1) * T
            given, above = grads + row, changes + row
            a, da = inside + other, along + other
            change_left = change_of_shares(given, above, tops + row, split + row, a, da, whole, change, j + 1, last, K)
            row, other = T * T + j * T, T * T + (i - 1) * T
            given, above = grads + row, changes + row
            a, da = inside + other, along + other
            change_right = change_of_shares(
                given, above, tops + row, split + row, a, da, whole, change, i * 0, first, K
            )
            found = change_left + change_right
            tl.store(of_nodes + i * T + j, found, valid)
            found /= tl.load(totals + i * T + j, valid, 1.0)
            tl.store(changes + i * T + j, found, valid)
            tl.store(changes + row + i, found, valid)
        tl.debug_barrier()


def span_inside(nodes: Tensor, lengths: Tensor, maxima: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Inside sums or maxima `[B, 2, T, T]`, also transposed, and what the gradients of sums need: see `_inside`.

    Minus infinity below the diagonal and beyond each length.
    """
    batch, length, _ = nodes.shape
    inside = nodes.new_full((batch, 2, length, length), -torch.inf)
    tops = inside if maxima else torch.full_like(inside, -torch.inf)
    totals = inside if maxima else torch.ones_like(nodes, memory_format=torch.contiguous_format)
    if batch:
        _inside[(batch,)](nodes.contiguous(), lengths, inside, tops, totals, length, MAX=maxima, **tiles(length))
    return inside, tops, totals


def forward(nodes: Tensor, *, lengths: Tensor) -> tuple[Tensor, Kept]:
    """Log of the sum over all binary trees of the first `lengths [B]` positions, from scores of spans `[B, T, T]`."""
    kept = span_inside(nodes, lengths)
    return kept[0][torch.arange(len(nodes), device=nodes.device), 0, 0, lengths - 1], kept


def backward(kept: Kept, grad: Tensor, _wanted: Sequence[bool], *, lengths: Tensor) -> Sequence[Tensor | None]:
    """The gradient in the scores of spans."""
    return (_gradient(kept, grad, lengths)[1],)


def curve(
    kept: Kept, grad: Tensor, directions: Sequence[Tensor | None], *, lengths: Tensor
) -> tuple[list[Tensor], Tensor]:
    """The derivatives of the gradient as scores change by the direction, and of the log sum."""
    inside, tops, totals = kept
    (direction,) = directions
    assert direction is not None
    grads, of_nodes = _gradient(kept, grad, lengths)
    along, split, changes, found = (torch.zeros_like(x) for x in (inside, inside, inside, of_nodes))
    batch, length, _ = found.shape
    if batch:
        _inside_along[(batch,)](direction.contiguous(), lengths, *kept, along, split, length, **tiles(length))
        arguments = inside, tops, totals, along, split, lengths, grads, changes, found, length
        _outside_along[(batch,)](*arguments, **tiles(length))
    whole = torch.arange(batch, device=inside.device), 0, 0, lengths - 1
    return [found], along[whole].masked_fill(inside[whole] == -torch.inf, 0.0)


def _gradient(kept: Kept, grad: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients over `totals`, laid out like the chart, and as they are."""
    inside, tops, totals = kept
    batch, _, length, _ = inside.shape
    grads, of_nodes = torch.zeros_like(inside), torch.zeros_like(totals)
    if batch:
        arguments = inside, tops, totals, lengths, grad.contiguous(), grads, of_nodes, length
        _outside[(batch,)](*arguments, **tiles(length))
    return grads, of_nodes
