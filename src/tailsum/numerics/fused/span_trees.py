"""The best trees of spans with independent scores, and samples: read from a chart, one program for each tree.

Nodes are in the order of `trees/reader.py`, parents first and left before right. A left child of w positions has 2w - 1 nodes, so
a parent knows the places of both children, and writes their spans there: the result is its own stack.
"""

# pyright: reportArgumentType=false, reportCallIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from tailsum.numerics.fused.kernel import Kept
from tailsum.numerics.fused.rows import choice_of_rows
from tailsum.numerics.fused.spans import span_inside


@triton.jit(do_not_specialize=["seed"])
def _read(inside, lengths, spans, seed, batch, T, SAMPLE: tl.constexpr, K: tl.constexpr):
    """Fill `spans [count, B, 2T - 1, 2]` from a chart of maxima or, with SAMPLE, of sums, `inside [B, 2, T, T]`."""
    tree = tl.program_id(0).to(tl.int64)
    b = tree % batch
    n = tl.load(lengths + b).to(tl.int32)
    inside += b * 2 * T * T
    turned = inside + T * T
    spans += tree * (2 * T - 1) * 2
    count = tl.where(tl.load(inside + n - 1) > -float("inf"), 2 * n - 1, 0)
    for start in range(0, 4 * T - 2, K):
        place = start + tl.arange(0, K)
        first = tl.where(place == 0, 0, n - 1)  # of the whole sentence; the others are overwritten
        tl.store(spans + place, tl.where(place < 2 * count, first, -1).to(tl.int64), place < 4 * T - 2)
    tl.debug_barrier()
    for p in range(count):
        i, j = tl.load(spans + 2 * p).to(tl.int32), tl.load(spans + 2 * p + 1).to(tl.int32)
        if j > i:
            place = (tree * (2 * T - 1) + p) * T
            split = choice_of_rows(inside + i * T, turned + j * T + 1, i, j, seed, place, SAMPLE, K)
            left, right = spans + 2 * p + 2, spans + 2 * (p + 2 * (split - i + 1))
            tl.store(left, i.to(tl.int64))
            tl.store(left + 1, split.to(tl.int64))
            tl.store(right, (split + 1).to(tl.int64))
            tl.store(right + 1, j.to(tl.int64))
        tl.debug_barrier()


def forward(nodes: Tensor, *, lengths: Tensor) -> tuple[Tensor, Kept]:
    """The spans `[B, 2T - 1, 2]` of the best tree of each sentence."""
    return read(span_inside(nodes, lengths, maxima=True)[0], lengths, 1)[0], ()


def read(inside: Tensor, lengths: Tensor, count: int, seed: int | None = None) -> Tensor:
    """Spans `[count, B, 2T - 1, 2]` of trees from a chart: of the best ones, or of samples; -1 where there are no more."""
    batch, _, length, _ = inside.shape
    spans = torch.empty(count, batch, 2 * length - 1, 2, dtype=torch.long, device=inside.device)
    if spans.numel():
        block = min(256, max(32, triton.next_power_of_2(length)))
        arguments = inside, lengths, spans, seed or 0, batch, length
        _read[(batch * count,)](*arguments, SAMPLE=seed is not None, K=block, num_warps=max(1, block // 128))
    return spans
