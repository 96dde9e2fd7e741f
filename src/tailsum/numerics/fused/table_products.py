"""Whole tables of pair scores: their gradient over all steps of a chain, and the highest score of each column."""

# pyright: reportCallIssue=false

import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import pad

from tailsum.numerics.fused.exponential import exp
from tailsum.numerics.fused.products import add_product, score_product
from tailsum.numerics.fused.scores import Pairs, factor_columns, factor_rows, padded, score_tile
from tailsum.numerics.kernels import ALIGNED

WEIGHT_TILE = {"I": 128, "J": 128, "R": 32, "num_warps": 8, "num_stages": 3}  # measured on a Hopper GPU


@triton.jit
def _weight_kernel(
    out, early, late, left, right, scale, rows, n, m, blocks_j, row_l, column_l, row_r, width,
    SIZE: tl.constexpr, PRECISION: tl.constexpr, I: tl.constexpr, J: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """`exp(score(i, j) - scale(j)) sum_r early(i, r) late(j, r)`: the gradient in the scores of one table."""
    i = (tl.program_id(0) // blocks_j) * I + tl.arange(0, I)
    j = (tl.program_id(0) % blocks_j) * J + tl.arange(0, J)
    sums = tl.zeros([I, J], tl.float32)
    for start in range(0, rows, R):
        r = start + tl.arange(0, R)
        x = tl.load(early + i[:, None].to(tl.int64) * rows + r[None, :], (r < rows)[None, :] & (i < n)[:, None], 0.0)
        y = tl.load(late + j[None, :].to(tl.int64) * rows + r[:, None], (r < rows)[:, None] & (j < m)[None, :], 0.0)
        sums = add_product(sums, x, y, PRECISION)
    scores = score_tile(left, right, i, j, n, m, row_l, column_l, row_r, width, SIZE)
    entries = exp(scores - tl.load(scale + j, j < m, 0.0)[None, :])
    within = (i < n)[:, None] & (j < m)[None, :]
    tl.store(out + i[:, None].to(tl.int64) * m + j[None, :], sums * entries, within)


@triton.jit
def _column_max_kernel(
    out, left, right, n, m, group_l, row_l, group_r, row_r, width,
    SIZE: tl.constexpr, I: tl.constexpr, J: tl.constexpr,
):  # fmt: skip
    """The highest score of each column of tables that are products of factors."""
    table = tl.program_id(1).to(tl.int64)
    j = tl.program_id(0) * J + tl.arange(0, J)
    columns = factor_columns(right + table * group_r, j, m, row_r, width, SIZE)
    top = tl.full([J], -float("inf"), tl.float32)
    for start in range(0, n, I):
        i = start + tl.arange(0, I)
        rows = factor_rows(left + table * group_l, i, n, row_l, width, SIZE)
        scores = tl.where((i < n)[:, None], score_product(rows, columns), -float("inf"))
        top = tl.maximum(top, tl.max(scores, 0))
    tl.store(out + table * m + j, top, j < m)


def weights(x: Tensor, y: Tensor, params: tuple[Tensor, ...], scale: Tensor, precision: str) -> Tensor:
    """`exp(score - scale) * (x @ y)` for x `[G, S, N, R]` and y `[G, S, R, M]`: the gradient in the scores `[G, S, N, M]`."""
    groups, steps, n, rows = x.shape
    m, pairs = y.shape[-1], Pairs(params)
    left, right = pairs.left, pairs.right
    out = x.new_empty(groups, steps, n, m)
    # Tensor cores want the dimension of the sum last, and its size a multiple of what is read together.
    x, y = (pad(z, (0, -rows % ALIGNED)).contiguous() for z in (x, y.mT))
    rows = x.shape[-1]
    blocks = triton.cdiv(m, 128)
    for g in range(groups):
        for s in range(steps):
            _weight_kernel[triton.cdiv(n, 128) * blocks,](
                out[g, s], x[g, s], y[g, s], left[g, s], right[g, s], scale[g, s], rows, n, m, blocks,
                *left.stride()[2:], right.stride(2), left.shape[-1],
                SIZE=pairs.size, PRECISION=precision, **WEIGHT_TILE,
            )  # fmt: skip
    return out


def column_max(left: Tensor, right: Tensor) -> Tensor:
    """The highest score `[G, S, M]` of each column, for factors `[G, S, N, d]` and `[G, S, M, d]`."""
    left, right = left.contiguous(), right.contiguous()
    groups, steps, m, width = right.shape
    out = right.new_empty(groups, steps, m)
    _column_max_kernel[triton.cdiv(m, 64), groups * steps](
        out, left, right, left.shape[-2], m, left.stride(1), width, right.stride(1), width, width,
        SIZE=padded(left), I=64, J=64, num_warps=4,
    )  # fmt: skip
    return out
