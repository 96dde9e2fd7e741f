"""The kernel that sends the messages of `fused.messages`, stage after stage and iteration after iteration."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportOperatorIssue=false
# pyright: reportPossiblyUnboundVariable=false

import triton
import triton.language as tl

from tailsum.numerics.fused.exponential import exp, finite, log_of
from tailsum.numerics.fused.meeting import meet


@triton.jit
def _cavities(own, unary, into, first, last, back, there, i, n, degree, K: tl.constexpr):
    """The cavities [M, N] of messages: scores of their variables, from `unary [M]`, and all messages to these but one."""
    inside = there[:, None] & (i < n)[None, :]
    total = tl.load(unary[:, None] + i[None, :], inside, -float("inf"))
    for start in range(0, degree, K):
        for k in tl.static_range(K):
            place = first + start + k
            message = tl.load(into + place, there & (place < last), 0)
            other = there & (place < last) & (message != back)
            from_it = own + message.to(tl.int64)[:, None] * n + i[None, :]
            total += tl.load(from_it, inside & other[:, None], 0.0, cache_modifier=".cg")
    return total


@triton.jit
def _products(weight, mass, M: tl.constexpr, N: tl.constexpr, J: tl.constexpr):
    """The product [M, J] of weights [M, N] with a table [N, J], which stays in the registers that it was loaded into."""
    if N <= 32:  # a table of few entries is copied faster than rows are summed one by one
        total = tl.sum(weight[:, :, None] * mass[None, :, :], 1)
    else:
        row = tl.arange(0, M)
        total = tl.zeros([M, J], tl.float32)
        for m in tl.static_range(M):
            one = tl.sum(tl.where((row == m)[:, None], weight, 0.0), 0)
            total = tl.where((row == m)[:, None], tl.sum(one[:, None] * mass, 0)[None, :], total)
    return total


@triton.jit
def _careful(raw, cavity, table, begin, end, pitch, i, n, C: tl.constexpr, HIGHEST: tl.constexpr):
    """Store `log sum_i exp(cavity_i + score(i, j))`, or the maximum, in `raw`: each sum relative to its own maximum."""
    for start in range(begin, end, C):
        j = start + tl.arange(0, C)
        within = (i < n)[:, None] & (j < pitch)[None, :]
        joint = cavity[:, None] + tl.load(table + i[:, None] * pitch + j[None, :], within, -float("inf"))
        top = tl.max(joint, 0)
        if HIGHEST:
            total = top
        else:
            total = log_of(top, tl.sum(exp(joint - finite(top)[None, :]), 0))
        tl.store(raw + j, total, (j < n) & (j < end))


@triton.jit
def _settled(sent, before, damping):
    """Messages [M, J] with their largest entry at zero, damped, and how far they have moved, relative to their size."""
    after = sent - finite(tl.max(sent, 1))[:, None]
    either = (after == -float("inf")) | (before == -float("inf"))
    after = tl.where(either, after, after + damping * (finite(before) - finite(after)))
    same = after == before
    scale = tl.where(after == -float("inf"), 1.0, tl.maximum(tl.abs(after), 1.0))
    step = tl.abs(tl.where(same, 0.0, after) - tl.where(same, 0.0, before))
    return after, tl.max(tl.max(step / scale, 1), 0)


@triton.jit(do_not_specialize=["limit", "batch"])
def pass_kernel(
    messages, cavities, raw, unary, tables, masses, tops, table_of, source, back, into, begin, slots, starts,
    change, count, moved, counter, limit, batch, nodes, size, n, pitch, stages, degree, table_step, top_step, tolerance,
    damping, programs, parts,
    M: tl.constexpr, N: tl.constexpr, J: tl.constexpr, C: tl.constexpr, K: tl.constexpr,
    HIGHEST: tl.constexpr, KEEP: tl.constexpr, AT_ONCE: tl.constexpr, SPLIT: tl.constexpr, MEET: tl.constexpr,
):  # fmt: skip
    """Iterate the messages of each instance until they change by at most the tolerance; KEEP the cavities of the last one.

    A program sends M messages by one table, `slots`, to J states; SPLIT if there are more, in so many parts. AT_ONCE: all messages are
    sent from those of the iteration before, which are in the other half of `messages`.
    """
    member = tl.program_id(0) % programs
    group, groups = tl.program_id(0) // programs, tl.num_programs(0) // programs
    counter += group
    i, row_of = tl.arange(0, N), tl.arange(0, M)
    met = 0
    for b in range(group, batch, groups):
        row = tl.cast(b, tl.int64)
        last = tl.load(change + b)
        made = tl.load(count + b)
        done = 0
        while (done < limit) & (last > tolerance):
            most = 0.0
            old, new = messages + row * size * n, messages + row * size * n
            if AT_ONCE:
                half = (made + done) % 2
                old += half * batch * size * n
                new += (1 - half) * batch * size * n
            for stage in range(stages):
                start = tl.load(starts + stage)
                tiles = tl.load(starts + stage + 1) - start
                for unit in range(member, tiles * parts, programs):
                    slot, part = slots + (start + unit // parts) * M, unit % parts
                    message = tl.load(slot + row_of)
                    there = message >= 0
                    message = tl.where(there, message, 0)
                    node = tl.load(source + message)
                    first, end = tl.load(begin + node), tl.load(begin + node + 1)
                    table = tl.load(table_of + tl.load(slot)).to(tl.int64)
                    place = message.to(tl.int64) * n
                    j = part * J + tl.arange(0, J)
                    inside = there[:, None] & (j < n)[None, :]
                    if not SPLIT:
                        before = tl.load(old + place[:, None] + j[None, :], inside, -float("inf"), cache_modifier=".cg")
                    scores = unary + (row * nodes + node) * n
                    cavity = _cavities(old, scores, into, first, end, tl.load(back + message), there, i, n, degree, K)
                    if KEEP:  # once: from the first part
                        kept = cavities + row * size * n + place[:, None] + i[None, :]
                        tl.store(kept, cavity, there[:, None] & (i < n - part * n)[None, :])
                    sums = raw + row * size * n
                    low = 0.0
                    sent = tl.where(inside, 0.0, -float("inf"))
                    if not HIGHEST:
                        mass = masses + row * table_step + table * n * pitch + i[:, None] * pitch + j[None, :]
                        mass = tl.load(mass, (i < n)[:, None] & (j < pitch)[None, :], 0.0)
                        height = tl.load(tops + row * top_step + table * pitch + j, j < n, -float("inf"))
                        top = tl.max(cavity, 1)
                        weight = exp(cavity - finite(top)[:, None])
                        total = _products(weight, mass, M, N, J)
                        possible = (top > -float("inf"))[:, None] & (height > -float("inf"))[None, :]
                        # What exponentials below 2^-126 lose counts only where the sum is small, too.
                        low = tl.min(tl.min(tl.where(possible, total, 1.0), 1), 0)
                        sent = tl.log(tl.where(total > 0, total, 1.0)) + (finite(top)[:, None] + height[None, :])
                        sent = tl.where(possible & inside, sent, -float("inf"))
                    if low < 3.2311742677852644e-27:  # 2^-88
                        for m in range(M):
                            own = tl.load(slot + m)
                            if own >= 0:
                                one = tl.max(tl.where((row_of == m)[:, None], cavity, -float("inf")), 0)
                                scored = tables + row * table_step + table * n * pitch
                                to = sums + own.to(tl.int64) * n
                                _careful(
                                    to, one, scored, part * J, tl.minimum(n, part * J + J), pitch, i, n, C, HIGHEST
                                )
                        tl.debug_barrier()  # what other threads of this program have stored
                        sent = tl.load(sums + place[:, None] + j[None, :], inside, -float("inf"), cache_modifier=".cg")
                    if KEEP or SPLIT:
                        tl.store(sums + place[:, None] + j[None, :], sent, inside)
                    if not SPLIT:
                        after, step = _settled(sent, before, damping)
                        tl.store(new + place[:, None] + j[None, :], after, inside)
                        most = tl.maximum(most, step)
                if SPLIT:
                    met += programs
                    meet(counter, met, MEET)
                    for place in range(start * M + member, (start + tiles) * M, programs):
                        message = tl.load(slots + place)
                        if message >= 0:
                            state = message.to(tl.int64) * n + i
                            inside = i < n
                            sent = tl.load(raw + row * size * n + state, inside, -float("inf"), cache_modifier=".cg")
                            before = tl.load(old + state, inside, -float("inf"), cache_modifier=".cg")
                            after, step = _settled(sent[None, :], before[None, :], damping)
                            tl.store(new + state[None, :], after, inside[None, :])
                            most = tl.maximum(most, step)
                if stage == stages - 1:
                    tl.atomic_max(moved + done * batch + b, most / (1.0 - damping), sem="relaxed")
                met += programs
                meet(counter, met, MEET)
            last = tl.load(moved + done * batch + b, cache_modifier=".cg")
            done += 1
        if member == 0:
            tl.store(change + b, last)
            tl.store(count + b, made + done)
