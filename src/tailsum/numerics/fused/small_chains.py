"""Chains of few states: all steps in one launch, one program for each sequence, in log space.

Log Z, and the mean over paths of another score, whose gradient is of the second order. For a state at t, `sent` is the log of the
sum over the paths to it, less the highest of them; `entering` is the same before the state's own score is added. `before` is
the mean of the values up to t, less a number for each position that `added`, what the position itself adds, leaves out too.

Scores and messages are `[B, T, N]`, tables `[G, N, N]` (from, to) serve all steps; all are contiguous. Tables of few states stay in
registers; of others, a step reads the scores of J states after at a time. The references are in `chains/small_chains.py`.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportOperatorIssue=false

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tailsum.numerics.fused.exponential import exp, finite
from tailsum.numerics.fused.kernel import Kept
from tailsum.numerics.fused.scores import unmasked

HELD = 128  # up to this many states, a table stays in registers
MOST_TABLES = 256  # gradients of one table that are added up at the end
ROWS, SIDE = 16, 64  # what a program of `_table_kernel` takes at least, and the states of its tile
LOST, LOST_OF_MEANS = 2e-3, 1e-4  # nats that rounding may take of what decides between paths; means add them up


@triton.jit
def last_position(last, b, length, RAGGED: tl.constexpr):
    """The last position of a sequence."""
    end = length - 1
    if RAGGED:
        end = tl.load(last + b).to(tl.int32)
    return end


@triton.jit
def turned_scores(table, i, j, n):
    """Scores `[J, I]` of the states i with the states j after them, minus infinity for masks and beyond n."""
    return unmasked(tl.load(table + j[:, None] + i[None, :] * n, (j < n)[:, None] & (i < n)[None, :], -float("inf")))


@triton.jit
def highest_score(table, n, N: tl.constexpr, J: tl.constexpr):
    """The highest score of a table, zero if there is none: it is subtracted, so that a common offset costs no digits."""
    top = tl.full([J], -float("inf"), tl.float32)
    for start in range(0, N, J):
        top = tl.maximum(top, tl.max(turned_scores(table, tl.arange(0, N), start + tl.arange(0, J), n), 1))
    return finite(tl.max(top, 0))


@triton.jit
def _worth(table, i, j, n, base):
    """Values `[J, I]`, with zero in place of masks, less a number for all."""
    return finite(turned_scores(table, i, j, n)) - base


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
def _sum_kernel(
    node, table, value, values, last, sent, entering, before, added, result, fallen, batch, length, n, per_group,
    N: tl.constexpr, J: tl.constexpr, MEAN: tl.constexpr, OWN: tl.constexpr, RAGGED: tl.constexpr,
):  # fmt: skip
    """Messages, and log Z; with MEAN also the mean of the values, or if they are the scores (OWN), the entropy alone."""
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
            worth = _worth(values, i, i, n, value_base)
    message, mean = tl.zeros([N], tl.float32), tl.zeros([N], tl.float32)
    offset, mean_offset, fall = tl.zeros([1], tl.float64), tl.zeros([1], tl.float64), tl.zeros([1], tl.float32)
    for t in range(0, end + 1):
        row = (b * length + t) * n
        here = unmasked(tl.load(node + row + i, inside, -float("inf")))
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
                        own = _worth(values, i, j, n, value_base)
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
    tl.store(result + b + one, offset)
    tl.store(fallen + b + one, fall)


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
def _flow_kernel(
    grad, table, value, values, last, sent, entering, before, added, chance, after, of_node, of_value, of_table, of_values,
    batch, length, n, per_group,
    N: tl.constexpr, J: tl.constexpr, MEAN: tl.constexpr, OWN: tl.constexpr, RAGGED: tl.constexpr, TABLE: tl.constexpr,
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
    of_log_z = tl.load(grad + b).to(tl.float32)
    of_mean = -of_log_z
    if MEAN and not OWN:
        of_mean = tl.load(grad + batch + b).to(tl.float32)
    base = highest_score(table, n, N, J)
    value_base = base
    if MEAN and not OWN:
        value_base = highest_score(values, n, N, J)
    scores = tl.zeros([J, N], tl.float32)
    worth, slope, bend = scores, scores, scores  # sums of chances, and of chances times how unusual the mean of the pair is
    if J == N:
        scores = turned_scores(table, i, i, n) - base
        if MEAN:
            worth = _worth(values, i, i, n, value_base)
    flow, carried = tl.zeros([N], tl.float32), tl.zeros([N], tl.float32)
    for t in range(end + 1, length):
        tl.store(of_node + (b * length + t) * n + i, flow, inside)
        if MEAN and not OWN:
            tl.store(of_value + (b * length + t) * n + i, flow, inside)
    for back in range(0, end + 1):
        row = (b * length + end - back) * n
        message = tl.load(sent + row + i, inside, -float("inf"))
        level = tl.zeros([N], tl.float32)
        if MEAN:
            level = tl.load(before + row + i, inside, 0.0)
        pair, led, x, y = scores, scores, exp(message), tl.zeros([N], tl.float32)
        if back > 0:
            if J == N:
                entered, extra = tl.load(entering + row + n + i, inside, float("inf")), level
                if MEAN:
                    extra = tl.load(added + row + n + i, inside, 0.0)
                pair, led = _shares(message, entered, extra, flow, carried, scores, worth, MEAN)
                x, y = tl.sum(pair, 0), tl.sum(led, 0)
            else:
                x = tl.zeros([N], tl.float32)
                for start in range(0, n, J):
                    j = start + tl.arange(0, J)
                    next = row + n + j
                    some = turned_scores(table, i, j, n) - base
                    own, extra, later = some, tl.zeros([J], tl.float32), tl.zeros([J], tl.float32)
                    if MEAN:
                        own = _worth(values, i, j, n, value_base)
                        extra, later = tl.load(added + next, j < n, 0.0), tl.load(after + next, j < n, 0.0)
                    entered, here = tl.load(entering + next, j < n, float("inf")), tl.load(chance + next, j < n, 0.0)
                    part, part_led = _shares(message, entered, extra, here, later, some, own, MEAN)
                    x += tl.sum(part, 0)
                    y += tl.sum(part_led, 0)
        total = tl.sum(x, 0)
        scale = tl.where(total > 0, 1 / tl.where(total > 0, total, 1.0), 0.0)  # beside one, rounding alone
        flow = x * scale
        if MEAN:
            y *= scale
            excess = tl.sum(flow * level + y, 0)  # zero but for rounding, and for the end
            carried = y - flow * excess
            level -= excess
            gradient = of_mean * (flow * level + y)
            if not OWN:
                gradient += of_log_z * flow
                masked = unmasked(tl.load(value + row + i, inside, 0.0)) == -float("inf")
                tl.store(of_value + row + i, tl.where(masked, 0.0, of_mean * flow), inside)
            tl.store(of_node + row + i, gradient, inside)
        else:
            tl.store(of_node + row + i, of_log_z * flow, inside)
        if J == N:
            if TABLE and back > 0:
                slope += pair
                if MEAN:
                    bend += led + pair * level[None, :]
        else:
            tl.store(chance + row + i, flow, inside)
            if MEAN:
                tl.store(after + row + i, carried, inside)
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
    grad, table, value, values, last, sent, entering, before, added, chance, after, of_table, of_values,
    batch, length, n, per_group, rows, N: tl.constexpr, SIDE: tl.constexpr,
    MEAN: tl.constexpr, OWN: tl.constexpr, RAGGED: tl.constexpr,
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
        worth = _worth(values, i, j, n, value_base)
    of_scores, of_worth = tl.zeros([SIDE, SIDE], tl.float32), tl.zeros([SIDE, SIDE], tl.float32)
    for one in range(split * rows, tl.minimum(per_group * (length - 1), (split + 1) * rows)):
        b = group * per_group + one // (length - 1)
        t = one % (length - 1)
        if t < last_position(last, b, length, RAGGED):
            of_log_z = tl.load(grad + b).to(tl.float32)
            of_mean = -of_log_z
            here = (b * length + t) * n
            next = here + n + j
            message = tl.load(sent + here + i, i < n, -float("inf"))
            entered, flow = tl.load(entering + next, j < n, float("inf")), tl.load(chance + next, j < n, 0.0)
            extra, carried = flow, flow
            if MEAN:
                extra, carried = tl.load(added + next, j < n, 0.0), tl.load(after + next, j < n, 0.0)
            pair, led = _shares(message, entered, extra, flow, carried, scores, worth, MEAN)
            if MEAN:
                if not OWN:
                    of_mean = tl.load(grad + batch + b).to(tl.float32)
                    of_worth += of_mean * pair
                    of_scores += of_log_z * pair
                level = tl.load(before + here + i, i < n, 0.0)
                of_scores += of_mean * (led + pair * level[None, :])
            else:
                of_scores += of_log_z * pair
    place = (group * tl.num_programs(2) + split) * n * n + j[:, None] + i[None, :] * n
    square = (j < n)[:, None] & (i < n)[None, :]
    tl.store(of_table + place, of_scores, square)
    if MEAN and not OWN:
        masked = turned_scores(values, i, j, n) == -float("inf")
        tl.store(of_values + place, tl.where(masked, 0.0, of_worth), square)


def forward(
    node: Tensor, table: Tensor, *values: Tensor, last: Tensor | None = None, entropy: bool = False
) -> tuple[Tensor, Kept] | None:
    """Log Z `[B]`; the entropy `[B]`; or with `values` of states and pairs, log Z and the mean of the values `[2, B]`: in float64.

    Scores of states are `[B, T, N]`, of pairs `[G, N, N]`; sequences end at `last [B]`. None where a mean has too few digits.
    """
    node, table = node.contiguous(), table.contiguous()
    value, worth = (x.contiguous() for x in values) if values else (node, table)
    batch, length, n = node.shape
    mean = entropy or bool(values)
    room = node.new_empty(4 if mean else 2, batch, length, n)
    messages = room.unbind() if mean else (*room.unbind(), node, node)
    results = node.new_empty(3 if values else 2, batch, dtype=torch.float64)
    fallen = results[-1]
    _sum_kernel[batch,](
        node, table, value, worth, table if last is None else last, *messages, results, fallen, batch, length, n, batch // len(table),
        MEAN=mean, OWN=entropy, RAGGED=last is not None, **tile(n, n <= HELD),
    )  # fmt: skip
    if mean and not has_digits(fallen, LOST_OF_MEANS):
        return None
    return results[:2] if values else results[0], (table, value, worth, room, fallen)


def backward(
    kept: Kept, grad: Tensor, wanted: Sequence[bool], *, last: Tensor | None = None, entropy: bool = False
) -> Sequence[Tensor | None] | None:
    """The gradients in all inputs; None where they have too few digits."""
    table, value, worth, room, fallen = kept
    kinds, mean, pairs = len(wanted) // 2, entropy or len(wanted) > 2, any(wanted[1::2])
    if not mean and not has_digits(fallen, LOST):
        return None
    (batch, length, n), groups = room.shape[1:], len(table)
    together, grad = batch // groups, grad.contiguous()
    held = n <= HELD and together <= MOST_TABLES
    rows = 1 if held else max(ROWS, triton.cdiv(together * (length - 1), MOST_TABLES))
    parts = together if held else triton.cdiv(together * (length - 1), rows)
    of_states = room.new_empty(kinds, batch, length, n)
    of_tables = room.new_empty(kinds, groups, parts, n, n) if pairs else room
    flow = (room, room) if held else room.new_empty(2, batch, length, n).unbind()
    end = table if last is None else last
    shared = (grad, table, value, worth, end, *(room.unbind() if mean else (*room.unbind(), room, room)), *flow)
    settings = {"MEAN": mean, "OWN": entropy, "RAGGED": last is not None}
    _flow_kernel[batch,](
        *shared, of_states[0], of_states[-1], of_tables[0], of_tables[-1], batch, length, n, together,
        TABLE=pairs, **settings, **tile(n, held),
    )  # fmt: skip
    if pairs and not held:
        _table_kernel[triton.cdiv(n, SIDE) ** 2, groups, parts](
            *shared, of_tables[0], of_tables[-1], batch, length, n, together, rows,
            N=tile(n, held)["N"], SIDE=SIDE, **settings, num_warps=8,
        )  # fmt: skip
    of_tables = (of_tables[:, :, 0] if parts == 1 else of_tables.sum(2)) if pairs else (None, None)
    return [x for both in zip(of_states, of_tables, strict=False) for x in both]


def has_digits(fallen: Tensor, lost: float) -> bool:
    """Whether the highest messages never fell so far in one step that rounding takes more than `lost` nats.

    They fall far where all paths break a mask such as -1e9: beside that number, other scores are rounded away.
    """
    return fallen.amax().item() * torch.finfo(torch.float32).eps < lost


def tile(n: int, held: bool) -> dict[str, Any]:
    """The size of a tile, N states before and J after, and how many warps work on it."""
    states = max(16, triton.next_power_of_2(n))
    warps = {16: 1, 32: 4, 128: 16 if held else 8}.get(states, 8)
    return {"N": states, "J": states if held else max(16, min(states // 2, 8192 // states)), "num_warps": warps}
