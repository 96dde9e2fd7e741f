"""Kernels for gradients through the messages of `fused.messages`: iterations back through all stages, and gradients in tables."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportOperatorIssue=false

import triton
import triton.language as tl

from tailsum.numerics.fused.exponential import exp, finite
from tailsum.numerics.fused.meeting import meet


@triton.jit
def _arriving_slopes(
    slopes, back, into, stage_of, first, last, without, stage, i, n, LATE: tl.constexpr, K: tl.constexpr
):
    """The sum [N] of the slopes of those that read a message to a node, in LATE stages or the others."""
    total = tl.where(i < n, 0.0, 0.0)
    for start in range(first, last, K):
        k = start + tl.arange(0, K)
        message = tl.load(into + k, k < last, 0)
        reader = tl.load(back + message)
        late = tl.load(stage_of + reader) > stage
        there = (k < last) & (message != without) & (late == LATE)
        place = reader.to(tl.int64)[:, None] * n + i[None, :]
        total += tl.sum(tl.load(slopes + place, there[:, None] & (i < n)[None, :], 0.0, cache_modifier=".cg"), 0)
    return total


@triton.jit(do_not_specialize=["limit", "batch"])
def pull_kernel(
    weight, given, flow, slopes, messages, cavities, raw, tables, table_of, source, back, into, begin, order, starts, stage_of,
    change, count, moved, largest, counter, limit, batch, size, n, pitch, stages, table_step, tolerance, damping, programs,
    N: tl.constexpr, J: tl.constexpr, K: tl.constexpr, MEET: tl.constexpr,
):  # fmt: skip
    """Iterate `weight = given + J' weight`, J the derivative of one iteration of the messages, until it hardly changes.

    `flow` is the gradient in each message as it was sent, before damping, and `slopes` the gradient in its cavity.
    """
    member = tl.program_id(0) % programs
    group, groups = tl.program_id(0) // programs, tl.num_programs(0) // programs
    counter += group
    i = tl.arange(0, N)
    met = 0
    for b in range(group, batch, groups):
        row = tl.cast(b, tl.int64)
        own = slopes + row * size * n
        last = tl.load(change + b)
        done = 0
        while (done < limit) & (last > tolerance):
            for turn in range(stages):
                stage = stages - 1 - turn
                stop = tl.load(starts + stage + 1)
                for place in range(tl.load(starts + stage) + member, stop, programs):
                    message = tl.load(order + place)
                    here = (row * size + message) * n
                    node = tl.load(source + tl.load(back + message))
                    first, end = tl.load(begin + node), tl.load(begin + node + 1)
                    g = tl.load(weight + here + i, i < n, 0.0, cache_modifier=".cg")
                    g += _arriving_slopes(own, back, into, stage_of, first, end, message, stage, i, n, True, K)
                    free = tl.load(messages + here + i, i < n, 0.0) == -float("inf")
                    g = tl.where(free, g, (1.0 - damping) * g)
                    sent = tl.load(raw + here + i, i < n, -float("inf"))
                    possible = sent > -float("inf")
                    g = tl.where(possible, g, 0.0)
                    tl.store(flow + here + i, g, i < n)
                    best = possible & (sent == tl.max(sent, 0))
                    g -= tl.where(best, tl.sum(g, 0) / tl.maximum(tl.sum(best.to(tl.float32), 0), 1.0), 0.0)
                    table = tables + row * table_step + tl.load(table_of + message).to(tl.int64) * n * pitch
                    sent = finite(sent)
                    for start in range(0, n, J):
                        j = start + tl.arange(0, J)
                        cavity = tl.load(cavities + here + j, j < n, -float("inf"))
                        within = (j < n)[:, None] & (i < pitch)[None, :]
                        joint = cavity[:, None] + tl.load(
                            table + j[:, None] * pitch + i[None, :], within, -float("inf")
                        )
                        tl.store(
                            own + message.to(tl.int64) * n + j,
                            tl.sum(exp(joint - sent[None, :]) * g[None, :], 1),
                            j < n,
                        )
                met += programs
                meet(counter, met, MEET)
            most, high = 0.0, 0.0
            for message in range(member, size, programs):
                here = (row * size + message) * n
                node = tl.load(source + tl.load(back + message))
                first, end = tl.load(begin + node), tl.load(begin + node + 1)
                before = tl.load(weight + here + i, i < n, 0.0, cache_modifier=".cg")
                after = tl.load(given + here + i, i < n, 0.0)
                stage = tl.load(stage_of + message)
                after += _arriving_slopes(own, back, into, stage_of, first, end, message, stage, i, n, False, K)
                if damping > 0.0:
                    passed = tl.load(flow + here + i, i < n, 0.0, cache_modifier=".cg") * (damping / (1.0 - damping))
                    free = tl.load(messages + here + i, i < n, 0.0) == -float("inf")
                    after += tl.where(free, 0.0, passed)
                tl.store(weight + here + i, after, i < n)
                most = tl.maximum(most, tl.max(tl.abs(after - before), 0))
                high = tl.maximum(high, tl.max(tl.abs(after), 0))
            tl.atomic_max(moved + done * batch + b, most, sem="relaxed")
            tl.atomic_max(largest + done * batch + b, high, sem="relaxed")
            met += programs
            meet(counter, met, MEET)
            most = tl.load(moved + done * batch + b, cache_modifier=".cg")
            high = tl.load(largest + done * batch + b, cache_modifier=".cg")
            last = most / tl.maximum(high, 1.1754943508222875e-38) / (1.0 - damping)
            done += 1
        if member == 0:
            tl.store(change + b, last)
            tl.store(count + b, tl.load(count + b) + done)


@triton.jit
def table_kernel(
    found, cavities, raw, flow, tables, by_table, ranges, batch, shared, size, n, pitch, count, table_step, splits,
    I: tl.constexpr, J: tl.constexpr,
):  # fmt: skip
    """The gradient in each table, `found [splits, b, T, n, n]`, from the gradient `flow` in the sums of messages.

    `shared` is how many instances share a table; a split goes over some of the pairs of a message and an instance.
    """
    table, split, own = (
        tl.program_id(0) % count,
        tl.program_id(0) // count % splits,
        tl.program_id(0) // count // splits,
    )
    i, j = tl.program_id(1) * I + tl.arange(0, I), tl.program_id(2) * J + tl.arange(0, J)
    within = (i < n)[:, None] & (j < n)[None, :]
    scores = tables + tl.cast(own, tl.int64) * table_step + tl.cast(table, tl.int64) * n * pitch
    scores = tl.load(scores + i[:, None] * pitch + j[None, :], within, -float("inf"))
    total = tl.zeros([I, J], tl.float32)
    first = tl.load(ranges + table)
    for turn in range(split, (tl.load(ranges + table + 1) - first) * shared, splits):
        message = tl.load(by_table + first + turn // shared)
        here = ((own * shared + turn % shared).to(tl.int64) * size + message) * n
        cavity = tl.load(cavities + here + i, i < n, -float("inf"))
        sent = finite(tl.load(raw + here + j, j < n, -float("inf")))
        g = tl.load(flow + here + j, j < n, 0.0)
        total += exp(cavity[:, None] + scores - sent[None, :]) * g[None, :]
    place = ((split * (batch // shared) + own).to(tl.int64) * count + table) * n
    tl.store(found + (place + i[:, None]) * n + j[None, :], total, within)
