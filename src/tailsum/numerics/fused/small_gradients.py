"""Gradients of chains of few states, from the messages of `small_chains.py`, which has the shapes."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportOperatorIssue=false, reportPossiblyUnboundVariable=false

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from tailsum.numerics.fused.exponential import exp
from tailsum.numerics.fused.kernel import Kept
from tailsum.numerics.fused.scores import unmasked
from tailsum.numerics.fused.small_tables import (
    HELD,
    HELD_WITH_MEANS,
    LOST,
    has_digits,
    highest_score,
    last_position,
    tile,
    turned_scores,
    worth_of,
)

MOST_TABLES = 256  # gradients of one table that are added up at the end
ROWS, SIDE = 16, 64  # what a program of `_table_kernel` takes at least, and the states of its tile


@triton.jit
def _shares(sent, entering, added, flow, carried, scores, worth, MEAN: tl.constexpr):
    """Of states i and the states j after them `[J, I]`: the chance of the pair, and that times the mean of what comes after i."""
    entering = tl.where(entering == -float("inf"), float("inf"), entering)
    share = exp(sent[None, :] + scores - entering[:, None])
    pair = share * flow[:, None]
    led = pair
    if MEAN:
        led = pair * (added[:, None] + worth) + share * carried[:, None]
    return pair, led


@triton.jit
def _of_pair(i, j, before, after):
    """One `[J, I]` at a pair of states, else zero."""
    return ((j == after)[:, None] & (i == before)[None, :]).to(tl.float32)


@triton.jit
def _flow_kernel(
    value, grad, table, values, last, path, sent, entering, before, added, chance, after, of_node, of_value, of_table, of_values,
    batch, length, n, per_group, grad_step, N: tl.constexpr, J: tl.constexpr,
    MEAN: tl.constexpr, OWN: tl.constexpr, RAGGED: tl.constexpr, PATH: tl.constexpr, TABLE: tl.constexpr,
):  # fmt: skip
    """The gradients in the scores of states, and of each sequence in a table that stays in registers (TABLE).

    The pass back carries the chance of each state, and that times the mean of what comes after it, less what is usual (`after`).
    """
    b = tl.program_id(0).to(tl.int64)
    end = last_position(last, b, length, RAGGED)
    i = tl.arange(0, N)
    inside = i < n
    table += b // per_group * n * n
    values += b // per_group * n * n
    of_log_z = tl.load(grad + b * grad_step).to(tl.float32)
    of_mean = -of_log_z
    if PATH:
        of_log_z = tl.where(tl.load(value + b) == -float("inf"), 0.0, of_mean)
    if MEAN and not OWN:
        of_mean = tl.load(grad + batch + b).to(tl.float32)
    base = highest_score(table, n, N, J)
    value_base = base
    if MEAN and not OWN:
        value_base = highest_score(values, n, N, J)
    scores = tl.zeros([J, N], tl.float32)
    worth, slope, bend = (
        scores,
        scores,
        scores,
    )  # sums of chances, and of chances times how unusual the mean of the pair is
    if J == N:
        scores = turned_scores(table, i, i, n) - base
        if MEAN:
            worth = worth_of(values, i, i, n, value_base)
    flow, carried = tl.zeros([N], tl.float32), tl.zeros([N], tl.float32)
    for t in range(end + 1, length):
        tl.store(of_node + (b * length + t) * n + i, flow, inside)
        if MEAN and not OWN:
            tl.store(of_value + (b * length + t) * n + i, flow, inside)
    coming = tl.load(sent + (b * length + end) * n + i, inside, -float("inf"))
    entered_next = coming
    for back in range(end + 1):
        row = (b * length + end - back) * n
        message, entered = coming, entered_next
        earlier = (b * length + tl.maximum(end - back - 1, 0)) * n
        coming = tl.load(sent + earlier + i, inside, -float("inf"))  # so that the next step need not wait for it
        if J == N:
            entered_next = tl.load(entering + row + i, inside, float("inf"))
        state = 0
        if PATH:
            state = tl.load(path + b * length + end - back).to(tl.int32)
        level = tl.zeros([N], tl.float32)
        if MEAN:
            level = tl.load(before + row + i, inside, 0.0)
        pair, led, x, y = scores, scores, exp(message), tl.zeros([N], tl.float32)
        if back > 0:
            if J == N:
                extra = level
                if MEAN:
                    extra = tl.load(added + row + n + i, inside, 0.0)
                pair, led = _shares(message, entered, extra, flow, carried, scores, worth, MEAN)
                x, y = tl.sum(pair, 0), tl.sum(led, 0)
            else:
                x = tl.zeros([N], tl.float32)
                for start in range(0, n, J):
                    j = start + tl.arange(0, J)
                    later_row = row + n + j
                    some = turned_scores(table, i, j, n) - base
                    own, extra, later = some, tl.zeros([J], tl.float32), tl.zeros([J], tl.float32)
                    if MEAN:
                        own = worth_of(values, i, j, n, value_base)
                        extra, later = tl.load(added + later_row, j < n, 0.0), tl.load(after + later_row, j < n, 0.0)
                    before_own = tl.load(entering + later_row, j < n, float("inf"))
                    here = tl.load(chance + later_row, j < n, 0.0)
                    part, part_led = _shares(message, before_own, extra, here, later, some, own, MEAN)
                    x += tl.sum(part, 0)
                    y += tl.sum(part_led, 0)
        total = tl.sum(x, 0)
        scale = tl.where(total > 0, 1 / tl.where(total > 0, total, 1.0), 0.0)  # beside one, rounding alone
        now, led_now = x * scale, y * scale
        if J != N:  # here and not below: Triton 3.6 would move its layout there, behind its use
            tl.store(chance + row + i, now, inside)
        if MEAN:
            excess = tl.sum(now * level + led_now, 0)  # zero but for rounding, and for the end
            turned = led_now - now * excess
            level -= excess
            gradient = of_mean * (now * level + led_now)
            if not OWN:
                gradient += of_log_z * now
                masked = unmasked(tl.load(value + row + i, inside, 0.0)) == -float("inf")
                tl.store(of_value + row + i, tl.where(masked, 0.0, of_mean * now), inside)
            tl.store(of_node + row + i, gradient, inside)
        else:
            tl.store(of_node + row + i, of_log_z * (now - (i == state).to(tl.float32) if PATH else now), inside)
        if J == N:  # else the next step reads them
            flow = now
            if MEAN:
                carried = turned
            if TABLE and back > 0:
                slope += pair
                if PATH:
                    following = tl.load(path + b * length + end - back + 1).to(tl.int32)
                    slope -= _of_pair(i, i, state, following)
                if MEAN:
                    bend += led + pair * level[None, :]
        else:
            if MEAN:
                tl.store(after + row + i, turned, inside)
            tl.debug_barrier()
    if TABLE and J == N:
        place = b * n * n + i[:, None] + i[None, :] * n
        square = inside[:, None] & inside[None, :]
        if OWN:
            tl.store(of_table + place, of_mean * bend, square)
        elif MEAN:
            tl.store(of_table + place, of_log_z * slope + of_mean * bend, square)
            masked = turned_scores(values, i, i, n) == -float("inf")
            tl.store(of_values + place, tl.where(masked, 0.0, of_mean * slope), square)
        else:
            tl.store(of_table + place, of_log_z * slope, square)


@triton.jit
def _table_kernel(
    value, grad, table, values, last, path, sent, entering, before, added, chance, after, of_table, of_values,
    batch, length, n, per_group, grad_step, rows, N: tl.constexpr, SIDE: tl.constexpr,
    MEAN: tl.constexpr, OWN: tl.constexpr, RAGGED: tl.constexpr, PATH: tl.constexpr,
):  # fmt: skip
    """A part of the gradient in tables that do not stay in registers, `[G, part, N, N]`, from what `_flow_kernel` kept.

    Each program takes a tile of one table, and `rows` of the positions of the sequences that share the table.
    """
    blocks = tl.cdiv(n, SIDE)
    i = tl.program_id(0) // blocks * SIDE + tl.arange(0, SIDE)
    j = tl.program_id(0) % blocks * SIDE + tl.arange(0, SIDE)
    group, split = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    table += group * n * n
    values += group * n * n
    base = highest_score(table, n, N, SIDE // 2)
    scores = turned_scores(table, i, j, n) - base
    worth = scores
    if MEAN:
        value_base = base
        if not OWN:
            value_base = highest_score(values, n, N, SIDE // 2)
        worth = worth_of(values, i, j, n, value_base)
    of_scores, of_worth = tl.zeros([SIDE, SIDE], tl.float32), tl.zeros([SIDE, SIDE], tl.float32)
    for one in range(split * rows, tl.minimum(per_group * (length - 1), (split + 1) * rows)):
        b = group * per_group + one // (length - 1)
        t = one % (length - 1)
        if t < last_position(last, b, length, RAGGED):
            of_log_z = tl.load(grad + b * grad_step).to(tl.float32)
            of_mean = -of_log_z
            if PATH:
                of_log_z = tl.where(tl.load(value + b) == -float("inf"), 0.0, of_mean)
            here = (b * length + t) * n
            there = here + n + j
            message = tl.load(sent + here + i, i < n, -float("inf"))
            entered, flow = tl.load(entering + there, j < n, float("inf")), tl.load(chance + there, j < n, 0.0)
            extra, carried = flow, flow
            if MEAN:
                extra, carried = tl.load(added + there, j < n, 0.0), tl.load(after + there, j < n, 0.0)
            pair, led = _shares(message, entered, extra, flow, carried, scores, worth, MEAN)
            if MEAN:
                if not OWN:
                    of_mean = tl.load(grad + batch + b).to(tl.float32)
                    of_worth += of_mean * pair
                    of_scores += of_log_z * pair
                level = tl.load(before + here + i, i < n, 0.0)
                of_scores += of_mean * (led + pair * level[None, :])
            else:
                if PATH:
                    first, second = tl.load(path + b * length + t), tl.load(path + b * length + t + 1)
                    pair -= _of_pair(i, j, first.to(tl.int32), second.to(tl.int32))
                of_scores += of_log_z * pair
    place = (group * tl.num_programs(2) + split) * n * n + j[:, None] + i[None, :] * n
    square = (j < n)[:, None] & (i < n)[None, :]
    tl.store(of_table + place, of_scores, square)
    if MEAN and not OWN:
        masked = turned_scores(values, i, j, n) == -float("inf")
        tl.store(of_values + place, tl.where(masked, 0.0, of_worth), square)


def backward(
    kept: Kept,
    grad: Tensor,
    wanted: Sequence[bool],
    *,
    path: Tensor | None = None,
    last: Tensor | None = None,
    entropy: bool = False,
    **_: torch.dtype | bool,
) -> Sequence[Tensor | None] | None:
    """The gradients in all inputs; None where they have too few digits."""
    table, value, worth, room, fallen = kept
    kinds, mean, pairs = len(wanted) // 2, entropy or len(wanted) > 2, any(wanted[1::2])
    if not mean and not has_digits(fallen, LOST):
        return None
    (batch, length, n), groups = room.shape[1:], len(table)
    together, grad = batch // groups, grad if grad.dim() == 1 else grad.contiguous()
    held = n <= (HELD_WITH_MEANS if mean else HELD) and together <= MOST_TABLES
    rows = 1 if held else max(ROWS, triton.cdiv(together * (length - 1), MOST_TABLES))
    parts = together if held else triton.cdiv(together * (length - 1), rows)
    of_states = [room.new_empty(batch, length, n) for _ in range(kinds)]
    of_tables = [room.new_empty(groups, parts, n, n) for _ in range(kinds)] if pairs else [room]
    flow = (room, room) if held else room.new_empty(2, batch, length, n).unbind()
    ends = table if last is None else last, table if path is None else path.contiguous()
    shared = (value, grad, table, worth, *ends, *(room.unbind() if mean else (*room.unbind(), room, room)), *flow)
    settings = {"MEAN": mean, "OWN": entropy, "RAGGED": last is not None, "PATH": path is not None}
    _flow_kernel[batch,](
        *shared, of_states[0], of_states[-1], of_tables[0], of_tables[-1], batch, length, n, together, grad.stride(-1),
        TABLE=pairs, **settings, **tile(n, held, many=16),
    )  # fmt: skip
    if pairs and not held:
        _table_kernel[triton.cdiv(n, SIDE) ** 2, groups, parts](
            *shared, of_tables[0], of_tables[-1], batch, length, n, together, grad.stride(-1), rows,
            N=tile(n, held)["N"], SIDE=SIDE, **settings, num_warps=8,
        )  # fmt: skip
    summed = [x[:, 0] if parts == 1 else x.sum(1) for x in of_tables] if pairs else [None] * kinds
    return [x for both in zip(of_states, summed, strict=True) for x in both]
