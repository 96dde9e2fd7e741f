"""Sums over paths where the same steps enter each place of every level: all levels in one launch, one program for each sequence.

The reference is `numerics.levels` with `Steps`. Nodes are in float64, and so is all arithmetic: a level waits for the one before
it, and not for the arithmetic, which is as accurate as in the reference.
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
from tailsum.numerics.moves import Steps
from tailsum.numerics.reduce import Draw, Reduce, highest

WIDEST = 1024  # the most places of a level that are computed at once


@triton.jit
def _entering(
    scores, closed, nodes, level, b, p, inside, batch, places, width, of_level, of_step, of_place,
    STEPS: tl.constexpr, BEFORE: tl.constexpr, MARGIN: tl.constexpr, CLOSED: tl.constexpr,
):  # fmt: skip
    """For each step the score with which it enters the places p of a level, and the highest of them."""
    found, top = (), tl.full([p.shape[0]], -float("inf"), tl.float64)
    for k in tl.static_range(len(STEPS)):
        before = ((level + BEFORE - STEPS[k][0]) * batch + b) * width + MARGIN - STEPS[k][1]
        x = tl.load(nodes + before + p, inside, -float("inf"))
        x += tl.load(scores + level * of_level + k * of_step + p.to(tl.int64) * of_place, inside, 0.0)
        if CLOSED:
            x += tl.load(closed + (k * batch + b) * places + p, inside, 0.0)
        found = found + (x,)  # noqa: RUF005  (Triton cannot unpack)
        top = tl.maximum(top, x)
    return found, top


@triton.jit
def _sum(
    scores, closed, nodes, levels, batch, places, of_level, of_step, of_batch, of_place,
    STEPS: tl.constexpr, BEFORE: tl.constexpr, MARGIN: tl.constexpr, CLOSED: tl.constexpr, BEST: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Fill the table of nodes, level by level: with sums, or with maxima."""
    b, width = tl.program_id(0).to(tl.int64), places + MARGIN
    scores += b * of_batch
    for at in range(levels):
        level = tl.cast(at, tl.int64)
        for start in range(0, places, P):
            p = start + tl.arange(0, P)
            inside = p < places
            entering, top = _entering(
                scores, closed, nodes, level, b, p, inside, batch, places, width, of_level, of_step, of_place,
                STEPS, BEFORE, MARGIN, CLOSED,
            )  # fmt: skip
            value = top
            if not BEST:
                total, base = tl.zeros([P], tl.float64), finite(top)
                for k in tl.static_range(len(STEPS)):
                    total += tl.exp(entering[k] - base)
                value = tl.where(total > 0, base + tl.log(tl.where(total > 0, total, 1.0)), -float("inf"))
            tl.store(nodes + ((level + BEFORE) * batch + b) * width + MARGIN + p, value, inside)
        tl.debug_barrier()


@triton.jit
def _spread(
    scores, closed, nodes, grad, arcs, slopes, seed, levels, batch, places,
    of_level, of_step, of_batch, of_place, to_level, to_step, to_batch, to_place,
    STEPS: tl.constexpr, BEFORE: tl.constexpr, MARGIN: tl.constexpr, CLOSED: tl.constexpr, SHARED: tl.constexpr,
    BEST: tl.constexpr, SAMPLE: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """The slopes of scores from the gradient in the nodes. `arcs [BEFORE + 1, K, B, places]` has those of the latest levels."""
    b, width = tl.program_id(0).to(tl.int64), places + MARGIN
    scores += b * of_batch
    slopes += b * to_batch
    for back in range(levels):
        level = tl.cast(levels - 1 - back, tl.int64)
        row = ((level + BEFORE) * batch + b) * width + MARGIN
        for start in range(0, places, P):
            p = start + tl.arange(0, P)
            inside = p < places
            given = tl.load(grad + row + p, inside, 0.0)
            for k in tl.static_range(len(STEPS)):
                head, q = level + STEPS[k][0], p + STEPS[k][1]
                kept = ((head % (BEFORE + 1) * len(STEPS) + k) * batch + b) * places
                given += tl.load(arcs + kept + q, q < tl.where(head < levels, places, 0), 0.0)
            entering, top = _entering(
                scores, closed, nodes, level, b, p, inside, batch, places, width, of_level, of_step, of_place,
                STEPS, BEFORE, MARGIN, CLOSED,
            )  # fmt: skip
            chosen = tl.full([P], -1, tl.int32)
            if BEST or SAMPLE:
                top = tl.full([P], -float("inf"), tl.float64)
                for k in tl.static_range(len(STEPS)):
                    x = entering[k]
                    if SAMPLE:
                        x += gumbel(tl.load(seed), ((level * len(STEPS) + k) * batch + b) * places + p)
                    chosen = tl.where(x > top, k, chosen)
                    top = tl.maximum(x, top)
                node = top
            else:
                node = finite(tl.load(nodes + row + p, inside, -float("inf")))
            whole = tl.zeros([P], tl.float64)
            for k in tl.static_range(len(STEPS)):
                if BEST or SAMPLE:
                    slope = tl.where(chosen == k, given, 0.0)
                else:
                    slope = given * tl.exp(entering[k] - node)
                tl.store(arcs + ((level % (BEFORE + 1) * len(STEPS) + k) * batch + b) * places + p, slope, inside)
                whole += slope
                if not SHARED:
                    tl.store(slopes + level * to_level + k * to_step + p.to(tl.int64) * to_place, slope, inside)
            if SHARED:
                tl.store(slopes + level * to_level + p.to(tl.int64) * to_place, whole, inside)
        tl.debug_barrier()


def forward(scores: Tensor, *, moves: Steps, ends: Tensor, reduce: Reduce) -> tuple[Tensor, Kept]:
    """The sums at `ends`, or the maxima."""
    nodes = moves.start(scores)
    if scores.numel():
        _sum[(scores.shape[2],)](
            scores, moves.closed, nodes, *_sizes(scores, moves), *_strides(scores, moves), BEST=reduce is highest, **_options(moves)
        )  # fmt: skip
    return nodes.flatten()[ends], (scores, nodes)


def backward(
    kept: Kept, grad: Tensor, _wanted: Sequence[bool], *, moves: Steps, ends: Tensor, reduce: Reduce
) -> Sequence[Tensor | None]:
    """The gradient in the scores: the chances of arcs, or a path of highest score, or one that is drawn."""
    scores, nodes = kept
    slopes = torch.empty_like(scores)
    if scores.numel():
        batch, sample = scores.shape[2], isinstance(reduce, Draw)
        given = torch.zeros_like(nodes)
        given.view(-1).index_add_(0, ends.flatten(), grad.flatten())
        arcs = nodes.new_empty(moves.before + 1, len(moves.steps), batch, moves.places)
        seed = reduce.seed(scores.device) if isinstance(reduce, Draw) else None
        _spread[(batch,)](
            scores, moves.closed, nodes, given, arcs, slopes, seed, *_sizes(scores, moves),
            *_strides(scores, moves), *_strides(slopes, moves),
            SHARED=scores.shape[1] == 1, BEST=reduce is highest, SAMPLE=sample, **_options(moves),
        )  # fmt: skip
    return (slopes,)


def _sizes(scores: Tensor, moves: Steps) -> tuple[int, int, int]:
    return moves.levels, scores.shape[2], moves.places


def _strides(scores: Tensor, moves: Steps) -> tuple[int, int, int, int]:
    """By level, step, sequence and place; one row of scores serves all steps."""
    of_level, of_step, of_batch, of_place = scores.stride()
    return of_level, of_step if scores.shape[1] == len(moves.steps) else 0, of_batch, of_place


def _options(moves: Steps) -> dict[str, object]:
    block = min(WIDEST, max(32, triton.next_power_of_2(moves.places)))
    return {
        "STEPS": tuple(moves.steps), "BEFORE": moves.before, "MARGIN": moves.margin, "CLOSED": moves.closed is not None,
        "P": block, "num_warps": min(8, block // 32),
    }  # fmt: skip
