"""The recursion of `chains.ways.scan.Flow` for few states in many blocks of time, all steps in one launch.

The reference is in `chains/ways/small_steps.py`.
"""

# pyright: reportArgumentType=false, reportPossiblyUnboundVariable=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from tailsum.numerics.fused.block_tables import options, sizes, table_of
from tailsum.numerics.fused.kernel import Kept


@triton.jit
def _flow(
    first, source, after, before, inlet, tables, x, h, length, p_count, n, q_count, step, group, row, column,
    J: tl.constexpr, SHARED: tl.constexpr, REVERSE: tl.constexpr, INLET: tl.constexpr,
):  # fmt: skip
    """`h_t = E (before_t x_s + inlet_t)`, `x_t = source_t + after_t h_t`, where s is the step run before t."""
    p, q, j = tl.program_id(1).to(tl.int64), tl.program_id(0).to(tl.int64), tl.arange(0, J)
    size, here = tl.cast(p_count, tl.int64) * n * q_count, p * n * q_count + j * q_count + q
    value = tl.load(first + here, j < n, 0.0)
    if SHARED:
        table = table_of(tables, p, 0, n, step, group, row, column, J)
    for move in range(length):
        t = tl.cast(move, tl.int64)
        if REVERSE:
            t = length - 1 - t
        if not SHARED:
            table = table_of(tables, p, t, n, step, group, row, column, J)
        place = here + t * size
        sent = tl.load(before + place, j < n, 0.0) * value
        if INLET:
            sent += tl.load(inlet + place, j < n, 0.0)
        entered = tl.sum(table * sent[:, None], 0)
        value = tl.load(source + place, j < n, 0.0) + tl.load(after + place, j < n, 0.0) * entered
        tl.store(h + place, entered, j < n)
        tl.store(x + place, value, j < n)


def forward(
    first: Tensor, source: Tensor, after: Tensor, before: Tensor, tables: Tensor, *, inlet: Tensor | None, reverse: bool
) -> tuple[tuple[Tensor, Tensor], Kept]:
    """What scan.Flow calls x and h, `[L, P, N, Q]`; tables are (to, from)."""
    source, after, before = (x.contiguous() for x in (source, after, before))
    x, h = torch.empty_like(source), torch.empty_like(source)
    given = first.contiguous(), source, after, before, source if inlet is None else inlet.contiguous()
    _flow[source.shape[3], source.shape[1]](
        *given, tables.mT, x, h, *sizes(source, tables.mT),
        REVERSE=reverse, INLET=inlet is not None, **options(source.shape[2], tables),
    )  # fmt: skip
    return (x, h), ()
