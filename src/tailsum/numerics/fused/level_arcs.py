"""Sums over paths through listed arcs: all levels in one launch, one program for each column of scores.

The reference is `numerics.levels` with `Listed`. Nodes are in float64, and so is all arithmetic, as in `level_steps.py`.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportOperatorIssue=false

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from tailsum.numerics.fused.exponential import finite
from tailsum.numerics.fused.kernel import Kept
from tailsum.numerics.fused.random import gumbel
from tailsum.numerics.moves import Listed
from tailsum.numerics.reduce import Draw, Reduce, highest

ENTRIES = 1024  # of a tile: nodes of a level times arcs into each
ARCS = 16  # the most arcs into a node that are in one tile


@triton.jit
def _level(row):
    """The first slot of a level, the arcs into each node, and the nodes."""
    return tl.load(row), tl.load(row + 1).to(tl.int32), tl.load(row + 2).to(tl.int32)


@triton.jit
def _entering(scores, source, nodes, first, i, start, arcs, size, columns, column, of_slot, of_column, K: tl.constexpr):
    """Scores `[K, N]` of paths by the arcs from `start` on into the nodes i of a level, the slots of the arcs and their sources."""
    k = start + tl.arange(0, K)
    slot = first + k.to(tl.int64)[:, None] * size + i[None, :]
    inside = (k < arcs)[:, None] & (i < size)[None, :]
    tail = tl.load(source + slot, inside, 0)
    x = tl.load(nodes + tail * columns + column, inside, -float("inf"))
    return x + tl.load(scores + slot * of_slot + column * of_column, inside, 0.0), slot, tail, inside


@triton.jit
def _sum(
    scores, source, levels, nodes, count, node, columns, of_slot, of_column,
    BEST: tl.constexpr, K: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Fill the table of nodes: with sums, or with maxima. `levels [count, 3]`, as in `Listed`."""
    column = tl.program_id(0).to(tl.int64)
    node = tl.cast(node, tl.int64)
    for level in range(count):
        first, arcs, size = (
            tl.load(levels + level * 3),
            tl.load(levels + level * 3 + 1),
            tl.load(levels + level * 3 + 2),
        )
        for block in range(0, size, N):
            i = block + tl.arange(0, N)
            top, total = tl.full([N], -float("inf"), tl.float64), tl.zeros([N], tl.float64)
            for start in range(0, arcs, K):
                x, _, _, _ = _entering(
                    scores, source, nodes, first, i, start, arcs, size, columns, column, of_slot, of_column, K
                )
                higher = tl.maximum(top, tl.max(x, 0))
                if not BEST:
                    base = finite(higher)
                    total = total * tl.exp(top - base) + tl.sum(tl.exp(x - base[None, :]), 0)
                top = higher
            value = top
            if not BEST:
                value = tl.where(total > 0, finite(top) + tl.log(tl.where(total > 0, total, 1.0)), -float("inf"))
            tl.store(nodes + (node + i) * columns + column, value, i < size)
        node += size
        tl.debug_barrier()


@triton.jit
def _spread(
    scores, source, levels, nodes, grad, slopes, seed, count, node, columns, of_slot, of_column, to_slot, to_column,
    BEST: tl.constexpr, SAMPLE: tl.constexpr, K: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """The slopes of scores from the gradient in the nodes, which is spread to those before. `node` is the end of the table."""
    column = tl.program_id(0).to(tl.int64)
    node = tl.cast(node, tl.int64)
    for back in range(count):
        first, arcs, size = _level(levels + (count - 1 - back) * 3)
        node -= size
        for block in range(0, size, N):
            i = block + tl.arange(0, N)
            # What other threads have added is not in the nearest cache.
            given = tl.load(grad + (node + i) * columns + column, i < size, 0.0, cache_modifier=".cg")
            whole = finite(tl.load(nodes + (node + i) * columns + column, i < size, -float("inf")))
            chosen = tl.full([N], -1, tl.int32)
            if BEST or SAMPLE:
                top = tl.full([N], -float("inf"), tl.float64)
                for start in range(0, arcs, K):
                    x, slot, _, _ = _entering(
                        scores, source, nodes, first, i, start, arcs, size, columns, column, of_slot, of_column, K
                    )
                    if SAMPLE:
                        x += gumbel(tl.load(seed), slot * columns + column)
                    best = tl.max(x, 0)
                    chosen = tl.where(best > top, start + tl.argmax(x, 0).to(tl.int32), chosen)
                    top = tl.maximum(top, best)
            for start in range(0, arcs, K):
                x, slot, tail, inside = _entering(
                    scores, source, nodes, first, i, start, arcs, size, columns, column, of_slot, of_column, K
                )
                if BEST or SAMPLE:
                    here = (start + tl.arange(0, K))[:, None] == chosen[None, :]
                    slope = tl.where(here, given[None, :], 0.0)
                else:
                    slope = given[None, :] * tl.exp(x - whole[None, :])
                tl.store(slopes + slot * to_slot + column * to_column, slope, inside)
                tl.atomic_add(grad + tail * columns + column, slope, inside & (slope != 0), sem="relaxed")
        tl.debug_barrier()


def forward(scores: Tensor, *, moves: Listed, ends: Tensor, reduce: Reduce) -> tuple[Tensor, Kept]:
    """The sums at `ends`, or the maxima."""
    nodes = moves.start(scores)
    if scores.numel():
        _sum[(scores.shape[1],)](
            scores, moves.source, moves.levels, nodes, len(moves.sizes), moves.starts, scores.shape[1], *scores.stride(),
            BEST=reduce is highest, **_options(moves),
        )  # fmt: skip
    return nodes.flatten()[ends], (scores, nodes)


def backward(
    kept: Kept, grad: Tensor, _wanted: Sequence[bool], *, moves: Listed, ends: Tensor, reduce: Reduce
) -> Sequence[Tensor | None]:
    """The gradient in the scores: the chances of arcs, or a path of highest score, or one that is drawn."""
    scores, nodes = kept
    slopes = torch.empty_like(scores)
    if scores.numel():
        given = torch.zeros_like(nodes)
        given.view(-1).index_add_(0, ends.flatten(), grad.flatten())
        _spread[(scores.shape[1],)](
            scores, moves.source, moves.levels, nodes, given, slopes,
            reduce.seed(scores.device) if isinstance(reduce, Draw) else None,
            len(moves.sizes), len(nodes), scores.shape[1], *scores.stride(), *slopes.stride(),
            BEST=reduce is highest, SAMPLE=isinstance(reduce, Draw), **_options(moves),
        )  # fmt: skip
    return (slopes,)


def _options(moves: Listed) -> dict[str, int]:
    """Tiles with room for all arcs into all nodes of the widest level, if they are few."""
    arcs = min(ARCS, triton.next_power_of_2(max(k for k, _ in moves.sizes)))
    nodes = min(ENTRIES // arcs, max(32, triton.next_power_of_2(max(n for _, n in moves.sizes))))
    return {"K": arcs, "N": nodes, "num_warps": min(8, max(1, arcs * nodes // 128))}
