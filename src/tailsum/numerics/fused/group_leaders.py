"""The highest score of each state with the states of each group, by factors. The reference is in `sketch/neighbours.py`.

Groups are interleaved: state `p groups + g` is at place p of group g. So a tile has one state of each group, and the highest scores of
groups are a maximum of tiles, number by number. Scores are made in tf32: they rank candidates, nothing more.
"""

# pyright: reportArgumentType=false, reportCallIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from tailsum.numerics.fused.kernel import Kept
from tailsum.numerics.fused.products import product
from tailsum.numerics.fused.scores import factor_columns, factor_rows, padded


@triton.jit
def _lead(left, right, out, n, m, groups, places, width, SIZE: tl.constexpr, I: tl.constexpr, G: tl.constexpr):
    """`out(i, g) = max_p score(i, p groups + g)`, with p in the last bits of its mantissa."""
    i, g = tl.program_id(0) * I + tl.arange(0, I), tl.program_id(1) * G + tl.arange(0, G)
    rows = factor_rows(left, i, n, width, width, SIZE)
    best = tl.full([I, G], -float("inf"), tl.float32)
    for place in range(tl.cdiv(m, groups)):
        j = place * groups + g
        there = tl.where(g < groups, m, 0)
        scores = product(rows, factor_columns(right, j, there, width, width, SIZE), "tf32")
        bits = (scores.to(tl.int32, bitcast=True) & ~places) | place
        marked = tl.where((j < there)[None, :], bits.to(tl.float32, bitcast=True), -float("inf"))
        best = tl.maximum(best, marked)
    tl.store(out + i[:, None].to(tl.int64) * groups + g[None, :], best, (i < n)[:, None] & (g < groups)[None, :])


def forward(left: Tensor, right: Tensor, *, groups: int, places: int) -> tuple[Tensor, Kept]:
    """Leaders `[N, groups]` for factors `[N, d]` and `[M, d]`; `places` are the bits that places have room in, all ones."""
    left, right = left.contiguous(), right.contiguous()
    n, width = left.shape
    out = torch.empty(n, groups, dtype=left.dtype, device=left.device)
    tile = min(128, max(16, triton.next_power_of_2(groups)))
    _lead[triton.cdiv(n, 64), triton.cdiv(groups, tile)](
        left,
        right,
        out,
        n,
        len(right),
        groups,
        places,
        width,
        SIZE=padded(left),
        I=64,
        G=tile,
        num_warps=4,
        num_stages=3,
    )
    return out, ()
