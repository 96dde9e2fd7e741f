"""Tables of pair scores within kernels that run the steps of many blocks of time: `[L, P, N, N]`, or the same for all steps.

A program runs one sequence of one block. A table that all steps share stays in its registers.
"""

# pyright: reportArgumentType=false

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def table_of(tables, p, t, n, step, group, row, column, J: tl.constexpr):
    """The table `[J, J]` of step t, zero beyond N."""
    i = tl.arange(0, J)
    inside = (i < n)[:, None] & (i < n)[None, :]
    place = tables + t * step + p * group + i[:, None] * row + i[None, :] * column
    return tl.load(place, inside, 0.0)


def sizes(x: Tensor, tables: Tensor) -> tuple[int, ...]:
    """The shape of `x [L, P, N, Q]`, and the strides of the tables."""
    steps = 0 if len(tables) == 1 else tables.stride(0)
    return (*x.shape, steps, *tables.stride()[1:])


def options(n: int, tables: Tensor) -> dict[str, int | bool]:
    """How kernels are compiled for so many states."""
    width = max(16, triton.next_power_of_2(n))
    shared = len(tables) == 1 or tables.stride(0) == 0
    return {"J": width, "SHARED": shared, "num_warps": 1 if width <= 32 else 4 if width <= 64 else 8}
