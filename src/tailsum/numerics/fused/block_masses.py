"""Forward steps of few states in many blocks of time, all in one launch. The reference is in `chains/ways/small_steps.py`."""

# pyright: reportArgumentType=false, reportPossiblyUnboundVariable=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from tailsum.numerics.fused.block_tables import options, sizes, table_of
from tailsum.numerics.fused.kernel import Kept


@triton.jit
def _masses(
    first, weight, tables, total, highest, length, p_count, n, q_count, step, group, row, column,
    J: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """`total_t = mass_{t-1} E`, `highest_t = max(weight_t total_t)`, `mass_t = weight_t total_t / highest_t`."""
    p, q, j = tl.program_id(1).to(tl.int64), tl.program_id(0).to(tl.int64), tl.arange(0, J)
    size, here = tl.cast(p_count, tl.int64) * n * q_count, p * n * q_count + j * q_count + q
    mass = tl.load(first + here, j < n, 0.0)
    if SHARED:
        table = table_of(tables, p, 0, n, step, group, row, column, J)
    coming = tl.load(weight + here, j < n, 0.0)
    for t in range(length):
        now = coming
        coming = tl.load(weight + here + (t + 1) * size, j < tl.where(t + 1 < length, n, 0), 0.0)
        if not SHARED:
            table = table_of(tables, p, tl.cast(t, tl.int64), n, step, group, row, column, J)
        entered = tl.sum(table * mass[:, None], 0)
        sent = entered * now
        top = tl.max(sent, 0)
        tl.store(total + here + t * size, entered, j < n)
        tl.store(highest + (t * p_count + p) * q_count + q, top)
        mass = sent / top


def forward(first: Tensor, weight: Tensor, tables: Tensor) -> tuple[tuple[Tensor, Tensor], Kept]:
    """Sums that entered each state `[L, P, N, Q]`, and the highest messages `[L, P, Q]`; tables are (from, to)."""
    weight = weight.contiguous()
    length, p, n, q = weight.shape
    total, highest = torch.empty_like(weight), weight.new_empty(length, p, q)
    _masses[q, p](first.contiguous(), weight, tables, total, highest, *sizes(weight, tables), **options(n, tables))
    return (total, highest), ()
