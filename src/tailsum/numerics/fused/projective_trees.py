"""The best projective dependency trees without states, and samples: read from charts, one program for each tree.

Half subtrees wait in a queue. Each names its outermost child, and leaves up to three others: as each has at least one child, no
more than T ever wait.
"""

# pyright: reportArgumentType=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from tailsum.numerics.fused.kernel import Kept
from tailsum.numerics.fused.projective import (
    LEFT,
    RIGHT,
    SQUARES,
    TO_LEFT,
    TO_RIGHT,
    column_of,
    projective_inside,
    row_of,
)
from tailsum.numerics.fused.rows import choice_of_rows


@triton.jit
def _put(queue, count, right, i, j, T):
    """The half of the words i .. j with its head at i (`right` is 1) or j (0), if it has more words; how many were put."""
    tl.store(queue + count, (i * T + j) * 2 + right, j > i)
    return count + (j > i).to(tl.int32)


@triton.jit(do_not_specialize=["seed"])
def _read(
    chart, ends, lengths, heads, queue, seed, batch, T,
    MULTIROOT: tl.constexpr, SAMPLE: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Fill `heads [count, B, T]` from charts of maxima or, with SAMPLE, of sums; `queue` is as large."""
    tree = tl.program_id(0).to(tl.int64)
    b = tree % batch
    n = tl.load(lengths + b).to(tl.int32)
    chart += b * SQUARES * T * T
    ends += b * 4 * (T + 1)
    heads += tree * T
    queue += tree * T
    for start in range(0, T, K):
        word = start + tl.arange(0, K)
        tl.store(heads + word, tl.full((K,), -1, tl.int64), word < T)
    tl.debug_barrier()
    place = tree * 4 * T * T  # of the next random numbers
    count = n * 0
    last = tl.where(tl.load(ends + 2 * (T + 1) + n - 1) > -float("inf"), n - 1, -1)
    while last >= 0:
        root = choice_of_rows(ends + T + 1, column_of(chart, RIGHT, last, T), 0, last + 1, seed, place, SAMPLE, K)
        tl.store(heads + root, root.to(tl.int64))
        first = root * 0
        if MULTIROOT:
            others = column_of(chart, LEFT, root, T)
            first = choice_of_rows(ends, others, 0, root + 1, seed, place + T, SAMPLE, K)
        count = _put(queue, count, 1, root, last, T)
        count = _put(queue, count, 0, first, root, T)
        place += 2 * T
        last = first - 1
        if not MULTIROOT:
            last = last * 0 - 1
    tl.debug_barrier()
    taken = count * 0
    while taken < count:
        item = tl.load(queue + taken)
        taken += 1
        right, i, j = item % 2, item // 2 // T, item // 2 % T
        if right == 1:
            a, others = row_of(chart, TO_RIGHT, i, T), column_of(chart, RIGHT, j, T)
        else:
            a, others = row_of(chart, LEFT, i, T), column_of(chart, TO_LEFT, j, T)
        child = choice_of_rows(a, others, i + right, j + right, seed, place, SAMPLE, K)
        low, high, head = tl.where(right == 1, i, child), tl.where(right == 1, child, j), tl.where(right == 1, i, j)
        tl.store(heads + child, head.to(tl.int64))
        a, others = row_of(chart, RIGHT, low, T), column_of(chart, LEFT, high, T) + 1
        split = choice_of_rows(a, others, low, high, seed, place + T, SAMPLE, K)
        place += 2 * T
        count = _put(queue, count, 1, low, split, T)
        count = _put(queue, count, 0, split + 1, high, T)
        count = _put(queue, count, right, tl.where(right == 1, child, i), tl.where(right == 1, j, child), T)
        tl.debug_barrier()


def forward(arcs: Tensor, *, lengths: Tensor, multiroot: bool) -> tuple[Tensor, Kept]:
    """The heads `[B, T]` of the best tree of each sentence."""
    charts = projective_inside(arcs, lengths, multiroot, maxima=True)
    return read(*charts, lengths, multiroot, 1)[0], ()


def read(chart: Tensor, ends: Tensor, lengths: Tensor, multiroot: bool, count: int, seed: int | None = None) -> Tensor:
    """Heads `[count, B, T]` of trees from charts: of the best ones, or of samples; -1 in the padding and where there is no tree."""
    batch, _, length, _ = chart.shape
    heads = torch.empty(count, batch, length, dtype=torch.long, device=chart.device)
    if heads.numel():
        block = min(256, max(32, triton.next_power_of_2(length)))
        arguments = chart, ends, lengths, heads, torch.empty_like(heads, dtype=torch.int32), seed or 0, batch, length
        how = {"MULTIROOT": multiroot, "SAMPLE": seed is not None, "K": block, "num_warps": max(1, block // 128)}
        _read[(batch * count,)](*arguments, **how)
    return heads
