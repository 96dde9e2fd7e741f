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
PROGRAMS = 264  # two for each of its multiprocessors: with fewer tiles, the rows are split
FEWEST = 512  # rows of a part


@triton.jit
def _weight_kernel(
    out, early, late, left, right, scale, rows, part, n, m, blocks_j, steps,
    group_l, step_l, row_l, column_l, group_r, step_r, row_r, width,
    SIZE: tl.constexpr, PRECISION: tl.constexpr, I: tl.constexpr, J: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """`exp(score(i, j) - scale(j)) sum_r early(i, r) late(j, r)` over a part of the rows: the gradient in the scores of tables."""
    i = (tl.program_id(0) // blocks_j) * I + tl.arange(0, I)
    j = (tl.program_id(0) % blocks_j) * J + tl.arange(0, J)
    table, split = tl.program_id(1).to(tl.int64), tl.program_id(2)
    left += table // steps * group_l + table % steps * step_l
    right += table // steps * group_r + table % steps * step_r
    x_place = (table * n + i[:, None]) * rows
    y_place = (table * m + j[None, :]) * rows
    sums = tl.zeros([I, J], tl.float32)
    stop = tl.minimum(rows, (split + 1) * part)
    for start in range(split * part, stop, R):
        r = start + tl.arange(0, R)
        x = tl.load(early + x_place + r[None, :], (r < stop)[None, :] & (i < n)[:, None], 0.0)
        y = tl.load(late + y_place + r[:, None], (r < stop)[:, None] & (j < m)[None, :], 0.0)
        sums = add_product(sums, x, y, PRECISION)
    scores = score_tile(left, right, i, j, n, m, row_l, column_l, row_r, width, SIZE)
    entries = exp(scores - tl.load(scale + table * m + j, j < m, 0.0)[None, :])
    place = ((split * tl.num_programs(1).to(tl.int64) + table) * n + i[:, None]) * m + j[None, :]
    tl.store(out + place, sums * entries, (i < n)[:, None] & (j < m)[None, :])


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
    groups, steps, n, _ = x.shape
    m, pairs = y.shape[-1], Pairs(params)
    left, right = pairs.left, pairs.right
    # Tensor cores want the dimension of the sum last, and its size a multiple of what is read together.
    x, y = (pad(z, (0, -z.shape[-1] % ALIGNED)).contiguous() for z in (x, y.mT))
    largest = 128 if n % ALIGNED == m % ALIGNED == 0 else 64  # of odd sizes, larger tiles spill
    rows, side = x.shape[-1], min(largest, max(16, triton.next_power_of_2(max(n, m))))
    tile = WEIGHT_TILE if side == 128 else {**WEIGHT_TILE, "I": side, "J": side, "R": 64, "num_warps": 4}
    blocks, tables = triton.cdiv(m, side), groups * steps
    splits = max(1, min(rows // FEWEST, PROGRAMS // max(1, triton.cdiv(n, side) * blocks * tables)))
    part = triton.cdiv(triton.cdiv(rows, splits), tile["R"]) * tile["R"]
    out = x.new_empty(splits, groups, steps, n, m)
    _weight_kernel[triton.cdiv(n, side) * blocks, tables, splits](
        out, x, y, left, right, scale.contiguous(), rows, part, n, m, blocks, steps,
        *left.stride(), *right.stride()[:3], left.shape[-1],
        SIZE=pairs.size, PRECISION=precision, **tile,
    )  # fmt: skip
    return out[0] if splits == 1 else out.sum(0)


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
