"""Trees whose spans have independent scores: all widths in one launch, one program for each sentence.

The reference is `numerics.charts.fill_chart` with `log_sum_exp`, as in `trees/span_chart.py`. Every sum has a running
maximum, so results are right for scores of any range.
"""

# pyright: reportArgumentType=false

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
def _inside(nodes, lengths, inside, merged, T, MAX: tl.constexpr, I: tl.constexpr, K: tl.constexpr):
    """Fill `inside` and, but for maxima, `merged` (the sums over splits alone), `[B, 2, T, T]`: each square and its transpose."""
    b = tl.program_id(0).to(tl.int64)
    n = tl.load(lengths + b).to(tl.int32)
    nodes += b * T * T
    inside += b * 2 * T * T
    merged += b * 2 * T * T
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
                tl.store(merged + i * T + j, split, valid)
                tl.store(merged + T * T + j * T + i, split, valid)
        tl.debug_barrier()


@triton.jit
def _outside(inside, merged, lengths, seeds, grads, T, I: tl.constexpr, K: tl.constexpr):
    """The gradients of all spans `[B, 2, T, T]`, also transposed, from the gradient of each whole sentence, `seeds [B]`."""
    b = tl.program_id(0).to(tl.int64)
    n = tl.load(lengths + b).to(tl.int32)
    inside += b * 2 * T * T
    merged += b * 2 * T * T
    grads += b * 2 * T * T
    turned, merged_turned, grads_turned = inside + T * T, merged + T * T, grads + T * T
    for step in range(n):
        width = n - step
        for start in range(0, step + 1, I):
            i = start + tl.arange(0, I)
            j = i + width - 1
            valid = i <= step
            whole = tl.load(inside + i * T + j, valid, -float("inf"))
            # As the left child of spans that end later, and as the right child of spans that start earlier.
            last, first = tl.where(valid, n, j + 1), tl.where(valid, i, 0)
            as_left = shares_of_rows(grads + i * T, merged + i * T, inside + (j + 1) * T, whole, j + 1, last, K)
            row, before = j * T, turned + (i - 1) * T
            as_right = shares_of_rows(grads_turned + row, merged_turned + row, before, whole, i * 0, first, K)
            seed = tl.where(width == n, tl.load(seeds + b), 0.0)
            grad = as_left + as_right + seed
            tl.store(grads + i * T + j, grad, valid)
            tl.store(grads_turned + row + i, grad, valid)
        tl.debug_barrier()


@triton.jit
def _inside_along(nodes, lengths, inside, along, split, T, I: tl.constexpr, K: tl.constexpr):
    """The derivatives `along` of `inside`, and `split` of `merged`, as scores change by `nodes`; laid out as these."""
    b = tl.program_id(0).to(tl.int64)
    n = tl.load(lengths + b).to(tl.int32)
    nodes += b * T * T
    inside += b * 2 * T * T
    along += b * 2 * T * T
    split += b * 2 * T * T
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
            change = change_of_rows(
                inside + left, turned + right, along + left, along_turned + right, valid, width - 1, K
            )
            tl.store(split + i * T + j, change, valid)
            tl.store(split_turned + j * T + i, change, valid)
            change += tl.load(nodes + i * T + j, valid, 0.0)
            tl.store(along + i * T + j, change, valid)
            tl.store(along_turned + j * T + i, change, valid)
        tl.debug_barrier()


@triton.jit
def _outside_along(inside, merged, along, split, lengths, grads, changes, T, I: tl.constexpr, K: tl.constexpr):
    """The derivatives `changes` of `grads` (zeros before), as `inside` changes by `along` and `merged` by `split`."""
    b = tl.program_id(0).to(tl.int64)
    n = tl.load(lengths + b).to(tl.int32)
    place = b * 2 * T * T
    inside, merged, along, split, grads, changes = (
        inside + place, merged + place, along + place, split + place, grads + place, changes + place
    )  # fmt: skip
    for step in range(1, n):
        width = n - step
        for start in range(0, step + 1, I):
            i = start + tl.arange(0, I)
            j = i + width - 1
            valid = i <= step
            whole, change = tl.load(inside + i * T + j, valid, -float("inf")), tl.load(along + i * T + j, valid, 0.0)
            last, first = tl.where(valid, n, j + 1), tl.where(valid, i, 0)
            row, other = i * T, (j + 1) * T
            of_left = change_of_shares(
                grads + row,
                changes + row,
                merged + row,
                split + row,
                inside + other,
                along + other,
                whole,
                change,
                j + 1,
                last,
                K,
            )
            row, other = T * T + j * T, T * T + (i - 1) * T
            of_right = change_of_shares(
                grads + row,
                changes + row,
                merged + row,
                split + row,
                inside + other,
                along + other,
                whole,
                change,
                i * 0,
                first,
                K,
            )
            tl.store(changes + i * T + j, of_left + of_right, valid)
            tl.store(changes + row + i, of_left + of_right, valid)
        tl.debug_barrier()


def span_inside(nodes: Tensor, lengths: Tensor, maxima: bool = False) -> tuple[Tensor, Tensor]:
    """Inside sums or maxima, and of sums their part over splits, `[B, 2, T, T]`: both also transposed.

    Minus infinity below the diagonal and beyond each length.
    """
    batch, length, _ = nodes.shape
    inside = nodes.new_full((batch, 2, length, length), -torch.inf)
    merged = inside if maxima else torch.full_like(inside, -torch.inf)
    if batch:
        _inside[(batch,)](nodes.contiguous(), lengths, inside, merged, length, MAX=maxima, **tiles(length))
    return inside, merged


def forward(nodes: Tensor, *, lengths: Tensor) -> tuple[Tensor, Kept]:
    """Log of the sum over all binary trees of the first `lengths [B]` positions, from scores of spans `[B, T, T]`."""
    inside, merged = span_inside(nodes, lengths)
    return inside[torch.arange(len(nodes), device=nodes.device), 0, 0, lengths - 1], (inside, merged)


def backward(kept: Kept, grad: Tensor, _wanted: Sequence[bool], *, lengths: Tensor) -> Sequence[Tensor | None]:
    """The gradient in the scores of spans."""
    return (_grads(kept, grad, lengths)[:, 0],)


def curve(
    kept: Kept, grad: Tensor, directions: Sequence[Tensor | None], *, lengths: Tensor
) -> tuple[list[Tensor], Tensor]:
    """The derivatives of the gradient as scores change by the direction, and of the log sum."""
    inside, merged = kept
    (direction,) = directions
    assert direction is not None
    grads, batch, length = _grads(kept, grad, lengths), len(inside), inside.shape[-1]
    along, split, changes = torch.zeros_like(inside), torch.zeros_like(inside), torch.zeros_like(inside)
    if batch:
        _inside_along[(batch,)](direction.contiguous(), lengths, inside, along, split, length, **tiles(length))
        arguments = inside, merged, along, split, lengths, grads, changes, length
        _outside_along[(batch,)](*arguments, **tiles(length))
    whole = torch.arange(batch, device=inside.device), 0, 0, lengths - 1
    return [changes[:, 0]], along[whole].masked_fill(inside[whole] == -torch.inf, 0.0)


def _grads(kept: Kept, grad: Tensor, lengths: Tensor) -> Tensor:
    inside, merged = kept
    batch, _, length, _ = inside.shape
    grads = torch.zeros_like(inside)
    if batch:
        _outside[(batch,)](inside, merged, lengths, grad.contiguous(), grads, length, **tiles(length))
    return grads
