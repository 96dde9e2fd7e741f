"""Chains of few states: all steps in one launch, one program for each sequence, in log space.

Log Z, and the mean over paths of another score, whose gradient is of the second order. For a state at t, `sent` is the log of the
sum over the paths to it, less the highest of them; `entering` is the same before the state's own score is added. `before` is
the mean of the values up to t, less a number for each position that `added`, what the position itself adds, leaves out too.

Scores and messages are `[B, T, N]`, tables `[G, N, N]` (from, to) serve all steps; all are contiguous. Tables of few states stay in
registers; of others, a step reads the scores of J states after at a time. The references are in `chains/forward.py` and `chains/mean_score.py`.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportOperatorIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from tailsum.numerics.fused.exponential import exp, finite
from tailsum.numerics.fused.kernel import Kept
from tailsum.numerics.fused.scores import unmasked
from tailsum.numerics.fused.small_gradients import backward
from tailsum.numerics.fused.small_tables import (
    HELD,
    HELD_WITH_MEANS,
    LOST_OF_MEANS,
    has_digits,
    highest_score,
    last_position,
    tile,
    turned_scores,
    worth_of,
)

__all__ = ["backward", "forward"]


@triton.jit
def _entered(sent, before, scores, worth, MEAN: tl.constexpr):
    """The log of the sum over the states before `[J]`, and the mean of the values so far."""
    reach = sent[None, :] + scores
    top = finite(tl.max(reach, 1))
    share = exp(reach - top[:, None])
    total = tl.sum(share, 1)
    led = total
    if MEAN:
        led = tl.sum(share * (before[None, :] + worth), 1) / tl.where(total > 0, total, 1.0)
    return tl.where(total > 0, top + tl.log(tl.where(total > 0, total, 1.0)), -float("inf")), led


@triton.jit
def _path_score(node, table, path, first, end, n):
    """The sum of the scores along a path, in float64; the rows of its positions begin at `first`."""
    score = tl.zeros([64], tl.float64)
    for start in range(0, end + 1, 64):
        t = start + tl.arange(0, 64)
        state, before = tl.load(path + t, t <= end, 0), tl.load(path + t - 1, (t > 0) & (t <= end), 0)
        score += unmasked(tl.load(node + (first + t) * n + state, t <= end, 0.0)).to(tl.float64)
        score += unmasked(tl.load(table + before * n + state, (t > 0) & (t <= end), 0.0)).to(tl.float64)
    return tl.sum(score, 0)


@triton.jit
def _sum_kernel(
    node, table, value, values, last, path, sent, entering, before, added, result, fallen, batch, length, n, per_group,
    N: tl.constexpr, J: tl.constexpr, MEAN: tl.constexpr, OWN: tl.constexpr, RAGGED: tl.constexpr, PATH: tl.constexpr,
):  # fmt: skip
    """Messages, and log Z; with MEAN also the mean of the values, or if they are the scores (OWN), the entropy alone.

    With PATH, the log-probability of a path in place of log Z.
    """
    b = tl.program_id(0).to(tl.int64)
    end = last_position(last, b, length, RAGGED)
    i = tl.arange(0, N)
    inside = i < n
    table += b // per_group * n * n
    values += b // per_group * n * n
    base = highest_score(table, n, N, J)
    value_base = base
    if MEAN and not OWN:
        value_base = highest_score(values, n, N, J)
    scores = tl.zeros([J, N], tl.float32)
    worth = scores
    if J == N:
        scores = turned_scores(table, i, i, n) - base
        if MEAN:
            worth = worth_of(values, i, i, n, value_base)
    message, mean = tl.zeros([N], tl.float32), tl.zeros([N], tl.float32)
    offset, mean_offset, fall = tl.zeros([1], tl.float64), tl.zeros([1], tl.float64), tl.zeros([1], tl.float32)
    coming = tl.load(node + b * length * n + i, inside, -float("inf"))
    for t in range(end + 1):
        row = (b * length + t) * n
        here = unmasked(coming)
        following = (b * length + tl.minimum(t + 1, end)) * n
        coming = tl.load(node + following + i, inside, -float("inf"))  # so that the next step need not wait for it
        total, led = tl.zeros([N], tl.float32), tl.zeros([N], tl.float32)
        if t > 0:
            if J == N:
                total, led = _entered(message, mean, scores, worth, MEAN)
                tl.store(entering + row + i, total, inside)
            else:
                for start in range(0, n, J):
                    j = start + tl.arange(0, J)
                    some = turned_scores(table, i, j, n) - base
                    own = some
                    if MEAN:
                        own = worth_of(values, i, j, n, value_base)
                    part, part_led = _entered(message, mean, some, own, MEAN)
                    tl.store(entering + row + j, part, j < n)
                    if MEAN:
                        tl.store(before + row + j, part_led, j < n)
                tl.debug_barrier()
                total = tl.load(entering + row + i, inside, -float("inf"))
                if MEAN:
                    led = tl.load(before + row + i, inside, 0.0)
                    tl.debug_barrier()
            if not OWN:
                offset += base.to(tl.float64)
                mean_offset += value_base.to(tl.float64)
        peak = finite(tl.max(here, 0))
        message = here - peak + total
        top = tl.max(message, 0)
        fall = tl.maximum(fall, tl.where(top < -1e30, 0.0, -top))
        message -= finite(top)
        tl.store(sent + row + i, message, inside)
        offset += finite(top).to(tl.float64)
        if not OWN:
            offset += peak.to(tl.float64)
        if MEAN:
            extra = here - peak
            if not OWN:
                extra = finite(unmasked(tl.load(value + row + i, inside, 0.0)))
            possible = message > -float("inf")
            if not OWN:
                value_peak = finite(tl.max(tl.where(possible, extra, -float("inf")), 0))
                extra -= value_peak
                mean_offset += value_peak.to(tl.float64)
            extra = tl.where(possible, extra, 0.0)
            mean = led + extra
            common = finite(tl.max(tl.where(possible, mean, -float("inf")), 0))
            mean = tl.where(possible, mean - common, 0.0)
            mean_offset += common.to(tl.float64)
            tl.store(before + row + i, mean, inside)
            tl.store(added + row + i, extra - common, inside)
    mass = exp(message)
    total = tl.sum(mass, 0)
    offset += tl.log(total).to(tl.float64)
    mean_offset += (tl.sum(mass * mean, 0) / tl.where(total > 0, total, 1.0)).to(tl.float64)
    one = tl.arange(0, 1)
    if OWN:
        offset -= mean_offset
    elif MEAN:
        tl.store(result + batch + b + one, mean_offset)
    if PATH:
        score = _path_score(node, table, path + b * length, b * length, end, n)
        offset = tl.where(score == -float("inf"), score, score - offset)
    tl.store(result + b + one, offset)
    tl.store(fallen + b + one, fall)


def forward(
    node: Tensor,
    table: Tensor,
    *values: Tensor,
    path: Tensor | None = None,
    last: Tensor | None = None,
    entropy: bool = False,
    exact: bool = False,
    dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, Kept] | None:
    """Log Z, the entropy, or the log-probability of `path [B, T]`, each `[B]`; or with `values`, log Z and their mean `[2, B]`.

    They are in float64, or rounded to `dtype`. Scores of states are `[B, T, N]`, of pairs `[G, N, N]`; sequences end at `last [B]`. None where
    a mean has too few digits, or log Z if it has to be `exact` to nats, as for a difference, however far it is from zero.
    """
    node, table = node.contiguous(), table.contiguous()
    value, worth = (x.contiguous() for x in values) if values else (node, table)
    batch, length, n = node.shape
    mean = entropy or bool(values)
    room = node.new_empty(4 if mean else 2, batch, length, n)
    messages = room.unbind() if mean else (*room.unbind(), node, node)
    results = node.new_empty(3 if values else 2, batch, dtype=dtype)
    result, fallen = results[:2] if values else results[0], results[-1]
    path = path if path is None else path.contiguous()
    _sum_kernel[batch,](
        node, table, value, worth, table if last is None else last, table if path is None else path, *messages, results, fallen,
        batch, length, n, batch // len(table), MEAN=mean, OWN=entropy, RAGGED=last is not None, PATH=path is not None,
        **tile(n, n <= (HELD_WITH_MEANS if mean else HELD)),
    )  # fmt: skip
    if (mean or exact) and not has_digits(fallen, LOST_OF_MEANS):
        return None
    return result, (table, value if path is None else result, worth, room, fallen)
