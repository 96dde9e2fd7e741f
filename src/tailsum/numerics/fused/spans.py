"""Trees whose spans have independent scores: all widths in one launch, one program for each sentence.

The reference is `numerics.charts.fill_chart` with `log_sum_exp`, as in `trees/span_chart.py`. Every sum has a running
maximum, so scores of any range are right without a check.
"""

# Kernels are called with plain numbers for Triton's own types.
# pyright: reportArgumentType=false, reportOperatorIssue=false

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tailsum.numerics.fused.reference import reference_gradients
from tailsum.numerics.fused.rows import log_of, log_sum_of_rows, shares_of_rows


@triton.jit
def _inside(nodes, lengths, inside, merged, T, I: tl.constexpr, K: tl.constexpr):
    """Fill `inside` and `merged`, its sums over splits, `[B, 2, T, T]` each: as they are, and transposed."""
    b = tl.program_id(0).to(tl.int64)
    n = tl.load(lengths + b).to(tl.int32)
    nodes += b * T * T
    inside += b * 2 * T * T
    merged += b * 2 * T * T
    turned = inside + T * T
    for start in range(0, n, I):
        i = start + tl.arange(0, I)
        own = tl.load(nodes + i * (T + 1), i < n, 0.0)
        tl.store(inside + i * (T + 1), own, i < n)
        tl.store(turned + i * (T + 1), own, i < n)
    tl.debug_barrier()
    for width in range(2, n + 1):
        count = n - width + 1
        for start in range(0, count, I):
            i = start + tl.arange(0, I)
            j = i + width - 1
            valid = i < count
            top, total = log_sum_of_rows(inside + i * (T + 1), turned + j * T + i + 1, valid, width - 1, K)
            found = log_of(top, total)
            own = tl.load(nodes + i * T + j, valid, 0.0) + found
            tl.store(inside + i * T + j, own, valid)
            tl.store(turned + j * T + i, own, valid)
            tl.store(merged + i * T + j, found, valid)
            tl.store(merged + T * T + j * T + i, found, valid)
        tl.debug_barrier()


@triton.jit
def _outside(inside, merged, lengths, seeds, grads, T, I: tl.constexpr, K: tl.constexpr):
    """The gradients of all spans `[B, 2, T, T]`, as they are and transposed, from that of each whole sentence, `seeds [B]`."""
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
            own = tl.load(inside + i * T + j, valid, -float("inf"))
            # As left child of spans that end later, and as right child of spans that start earlier.
            last, first = tl.where(valid, n, j + 1), tl.where(valid, i, 0)
            as_left = shares_of_rows(grads + i * T, merged + i * T, inside + (j + 1) * T, own, j + 1, last, K)
            row, before = j * T, turned + (i - 1) * T
            as_right = shares_of_rows(grads_turned + row, merged_turned + row, before, own, i * 0, first, K)
            seed = tl.where(width == n, tl.load(seeds + b), 0.0)
            found = as_left + as_right + seed
            tl.store(grads + i * T + j, found, valid)
            tl.store(grads_turned + row + i, found, valid)
        tl.debug_barrier()


def _tiles(length: int) -> dict[str, int]:
    return {"I": 16 if length <= 64 else 32, "K": 32 if length <= 32 else 64, "num_warps": 4}


def span_inside(nodes: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Inside sums, and the part of them that sums over splits, `[B, 2, T, T]`: both also transposed.

    Minus infinity below the diagonal and beyond each length.
    """
    batch, length, _ = nodes.shape
    inside = nodes.new_full((batch, 2, length, length), -torch.inf)
    merged = torch.full_like(inside, -torch.inf)
    if batch:
        _inside[(batch,)](nodes.contiguous(), lengths, inside, merged, length, **_tiles(length))
    return inside, merged


class _SpanSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, nodes: Tensor, lengths: Tensor, reference: Callable[[Tensor], Tensor]) -> Tensor:
        inside, merged = span_inside(nodes, lengths)
        ctx.save_for_backward(nodes, lengths, inside, merged)
        ctx.reference = reference
        return inside[torch.arange(len(nodes), device=nodes.device), 0, 0, lengths - 1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        nodes, lengths, inside, merged = ctx.saved_tensors
        if torch.is_grad_enabled():
            return *reference_gradients(ctx.reference, (nodes,), (True,), grads[0]), None, None
        batch, length, _ = nodes.shape
        found = torch.zeros_like(inside)
        if batch:
            given = (inside, merged, lengths, grads[0].contiguous(), found)
            _outside[(batch,)](*given, length, **_tiles(length))
        return found[:, 0], None, None


def span_sum(nodes: Tensor, lengths: Tensor, reference: Callable[[Tensor], Tensor]) -> Tensor:
    """Log of the sum over all binary trees of the first `lengths [B]` positions, from scores of spans `[B, T, T]`.

    `reference(nodes)` computes the same in plain torch, for derivatives of higher order.
    """
    return _SpanSum.apply(nodes, lengths, reference)
