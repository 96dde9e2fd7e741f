"""The best projective dependency trees without states, and samples: read from charts, one program for each tree.

Half subtrees wait in a queue. Each names its outermost child, and leaves up to three others: as each has at least one child, no
more than T ever wait.
"""

# pyright: reportArgumentType=false, reportCallIssue=false

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
def _put(queue, count, right, i, j, S):
    """The half of the words i .. j with its head at i (`right` is 1) or j (0), if it has more words; how many were put."""
    tl.store(queue + count, (i * S + j) * 2 + right, j > i)
    return count + (j > i).to(tl.int32)


@triton.jit(do_not_specialize=["seed"])
def _read(
    chart, lengths, heads, queue, seed, batch, T,
    SAMPLE: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Fill `heads [count, B, T]` from charts of maxima or, with SAMPLE, of sums; `queue` is as large."""
    tree = tl.program_id(0).to(tl.int64)
    b = tree % batch
    n, S = tl.load(lengths + b).to(tl.int32), T + 1
    chart += b * SQUARES * S * S
    heads += tree * T
    queue += tree * T
    for start in range(0, T, K):
        word = start + tl.arange(0, K)
        tl.store(heads + word, tl.full((K,), -1, tl.int64), word < T)
    tl.debug_barrier()
    # All words are the right half of the root, word 0.
    count = (tl.load(row_of(chart, RIGHT, n * 0, S) + n) > -float("inf")).to(tl.int32)
    tl.store(queue + tl.arange(0, 1), n * 2 + 1)
    place = tree * 4 * S * S  # of the next random numbers
    tl.debug_barrier()
    taken = count * 0
    while taken < count:
        item = tl.load(queue + taken)
        taken += 1
        right, i, j = item % 2, item // 2 // S, item // 2 % S
        if right == 1:
            a, others = row_of(chart, TO_RIGHT, i, S), column_of(chart, RIGHT, j, S)
        else:
            a, others = row_of(chart, LEFT, i, S), column_of(chart, TO_LEFT, j, S)
        child = choice_of_rows(a, others, i + right, j + right, seed, place, SAMPLE, K)
        low, high, head = tl.where(right == 1, i, child), tl.where(right == 1, child, j), tl.where(right == 1, i, j)
        tl.store(heads + child - 1, tl.where(head == 0, child, head).to(tl.int64) - 1)
        a, others = row_of(chart, RIGHT, low, S), column_of(chart, LEFT, high, S) + 1
        split = choice_of_rows(a, others, low, high, seed, place + S, SAMPLE, K)
        place += 2 * S
        count = _put(queue, count, 1, low, split, S)
        count = _put(queue, count, 0, split + 1, high, S)
        count = _put(queue, count, right, tl.where(right == 1, child, i), tl.where(right == 1, j, child), S)
        tl.debug_barrier()


def forward(arcs: Tensor, *, lengths: Tensor, multiroot: bool) -> tuple[Tensor, Kept]:
    """The heads `[B, T]` of the best tree of each sentence."""
    chart, *_ = projective_inside(arcs, lengths, multiroot, maxima=True)
    return read(chart, lengths, 1)[0], ()


def read(chart: Tensor, lengths: Tensor, count: int, seed: int | None = None) -> Tensor:
    """Heads `[count, B, T]` of trees from charts: of the best ones, or of samples; -1 in the padding and where there is no tree."""
    batch, _, size, _ = chart.shape
    heads = torch.empty(count, batch, size - 1, dtype=torch.long, device=chart.device)
    if heads.numel():
        block = min(256, max(32, triton.next_power_of_2(size)))
        arguments = chart, lengths, heads, torch.empty_like(heads, dtype=torch.int32), seed or 0, batch, size - 1
        _read[(batch * count,)](*arguments, SAMPLE=seed is not None, K=block, num_warps=max(1, block // 128))
    return heads
