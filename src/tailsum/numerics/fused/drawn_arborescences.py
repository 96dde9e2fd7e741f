"""Samples of non-projective dependency trees: eliminated words restored one by one, one program for each tree.

The reference is `sample` in `dependencies/arborescence.py`, which says why these are fair draws.
"""

# pyright: reportArgumentType=false, reportOperatorIssue=false, reportCallIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from tailsum.numerics.fused.elimination import before, eliminated, entering_scores
from tailsum.numerics.fused.exponential import finite
from tailsum.numerics.fused.rows import gumbel


@triton.jit(do_not_specialize=["seed"])
def _draw(matrices, lengths, order, total, heads, seed, batch, T, MULTIROOT: tl.constexpr, C: tl.constexpr):
    """Fill `heads [count, B, T]`. In order of elimination `above[h]` is the head of word h - 1, h at least 1, where 0 is the root."""
    tree = tl.program_id(0).to(tl.int64)
    b = tree % batch
    size = before(T)
    matrices += b * size
    order += b * T
    heads += tree * T
    h = tl.arange(0, C)
    possible = tl.load(total + b) > -float("inf")
    words = tl.where(possible, tl.load(lengths + b).to(tl.int32), 0)
    above = h * 0
    for n in range(2, words + 1):
        matrix, smaller = matrices + size - before(n), matrices + size - before(n - 1)
        choices, enter = entering_scores(matrix, n, MULTIROOT, C)
        word = (h > 0) & (h < n)
        direct = tl.load(matrix + above * n + h - 1, word, -float("inf"))
        through = tl.load(matrix + above * n + n - 1, word, -float("inf")) - finite(enter)
        through += tl.load(matrix + n * n + h - 1, word, -float("inf"))
        rest = tl.load(smaller + above * (n - 1) + h - 1, word, -float("inf"))
        place = (tree * (T + 1) + n) * 2 * C + h
        chance = tl.exp(through - finite(rest))
        moved = word & (through > -float("inf"))
        moved = (moved & ((tl.rand(seed, place) < chance) | (direct == -float("inf")))).to(tl.int32)
        # Which words reach the root only through the new one, by ancestors 1, 2, 4, ... steps above.
        ancestor, below, steps = above, moved, n * 0 + 1
        while steps < n - 2:
            below = below | tl.gather(below, ancestor, 0)
            ancestor = tl.gather(ancestor, ancestor, 0)
            steps *= 2
        fair = (moved > 0) & (tl.gather(below, above, 0) == 0)
        first = tl.min(tl.where(fair, h, C), 0)
        leaf = tl.argmax(choices + gumbel(seed, place + C), 0)
        head = tl.where(tl.max(moved, 0) > 0, tl.sum(tl.where(h == first, above, 0), 0), leaf)
        above = tl.where(moved > 0, n, tl.where(h == n, head, above))
    tl.store(heads + h, tl.full((C,), -1, tl.int64), h < T)
    tl.debug_barrier()
    word = tl.load(order + h - 1, (h > 0) & (h <= words), 0)
    head = tl.load(order + above - 1, (h > 0) & (h <= words) & (above > 0), 0)
    tl.store(heads + word, tl.where(above > 0, head, word).to(tl.int64), (h > 0) & (h <= words))


def drawn(arcs: Tensor, lengths: Tensor, multiroot: bool, count: int, seed: int) -> Tensor:
    """Heads `[count, B, T]` of trees drawn from scores `arcs [B, T, T]`; -1 in the padding and where there is no tree."""
    batch, length, _ = arcs.shape
    total, matrices, order = eliminated(arcs, lengths, multiroot)
    heads = torch.empty(count, batch, length, dtype=torch.long, device=arcs.device)
    if heads.numel():
        columns = max(32, triton.next_power_of_2(length + 1))
        arguments = matrices, lengths, order, total, heads, seed, batch, length
        _draw[(batch * count,)](*arguments, MULTIROOT=multiroot, C=columns, num_warps=max(1, columns // 128))
    return heads
