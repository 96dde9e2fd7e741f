"""Steps of a chain in log space: sums, or maxima, over the states before.

For few states, or for a table per sequence: every score is exponentiated for every sequence, with a running maximum, so
scores may have any range. The loop over time is within the kernel.

Scores of states are `[B, T, N]`, messages `[T, B, N]`; pair scores are a table `[G, S, N, N]`, or factors `[G, S, N, d]`, as in
`scores.table`. The reference is `chains.forward.log_space_scan`.
"""

# pyright: reportArgumentType=false

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from tailsum.numerics.fused.exponential import add_exp, exp, finite
from tailsum.numerics.fused.scores import ALONE, Pairs, at_once, meet, score_tile, unmasked


class Messages(NamedTuple):
    """Messages up to each sequence's last position, zero after it: `[T, B, N]`, or `[T, B]`.

    `alpha` is `node - peak + entering`, with `entering` a sum over the states before of `exp(alpha - highest + score - centre)`.
    """

    alpha: Tensor
    entering: Tensor
    highest: Tensor
    peak: Tensor


@triton.jit(do_not_specialize=["first", "stop"])
def _enter_kernel(
    node, alpha, entering, highest, peak, counter, last, left, right, centre, first, stop,
    batch, n, per_group, table_steps, node_b, node_t, node_n,
    group_l, step_l, row_l, column_l, group_r, step_r, row_r, width,
    SIZE: tl.constexpr, I: tl.constexpr, J: tl.constexpr, MAXIMUM: tl.constexpr, MEET: tl.constexpr,
):  # fmt: skip
    b, program, programs = tl.program_id(1).to(tl.int64), tl.program_id(0), tl.num_programs(0)
    left += b // per_group * group_l
    right += b // per_group * group_r
    for t in range(first, tl.minimum(stop, tl.load(last + b) + 1)):
        states = node + b * node_b + t * node_t
        before = alpha + ((t - 1) * batch + b) * n
        here = (t * batch + b) * n
        top_node = tl.full([J], -float("inf"), tl.float32)
        for start in range(0, n, J):
            j = start + tl.arange(0, J)
            top_node = tl.maximum(top_node, unmasked(tl.load(states + j * node_n, j < n, -float("inf"))))
        common = finite(tl.max(top_node, 0))
        tl.store(peak + t * batch + b, common)
        top = -float("inf")
        for start in range(program * J, n, programs * J):
            j = start + tl.arange(0, J)
            entered = tl.zeros([J], tl.float32)
            if t > 0:
                step = tl.minimum(tl.cast(t - 1, tl.int64), table_steps - 1)
                base = tl.load(centre + b // per_group * table_steps + step)
                shift = finite(tl.load(highest + (t - 1) * batch + b, cache_modifier=".cg"))
                most = tl.full([J], -float("inf"), tl.float32)
                for i_start in range(0, n, I):
                    i = i_start + tl.arange(0, I)
                    sent = tl.load(before + i, i < n, -float("inf"), cache_modifier=".cg") - shift
                    rows, columns = left + step * step_l, right + step * step_r
                    scores = score_tile(rows, columns, i, j, n, n, row_l, column_l, row_r, width, SIZE)
                    reach = sent[:, None] + (scores - base)
                    if MAXIMUM:
                        most = tl.maximum(most, tl.max(reach, 0))
                    else:
                        most, entered = add_exp(most, entered, reach, 0)
                if MAXIMUM:
                    entered = most
                else:
                    entered = tl.where(most == -float("inf"), most, most + tl.log(entered))
                    tl.store(entering + here + j, entered, j < n)
            value = unmasked(tl.load(states + j * node_n, j < n, -float("inf"))) - common + entered
            tl.store(alpha + here + j, value, j < n)
            top = tl.maximum(top, tl.max(value, 0))
        tl.atomic_max(highest + t * batch + b, top)
        meet(counter + b, (t + 1) * programs, MEET)


@triton.jit
def _finish_kernel(
    alpha, highest, peak, last, centre, log_z, batch, n, per_group, table_steps, J: tl.constexpr, T: tl.constexpr
):
    """Log Z `[B]` in float64 from the messages at each last position, and all that was subtracted on the way."""
    b = tl.program_id(0).to(tl.int64)
    end = tl.load(last + b)
    offset = tl.zeros([T], tl.float64)
    for start in range(0, end + 1, T):
        t = start + tl.arange(0, T)
        step = tl.minimum(tl.maximum(t - 1, 0), table_steps - 1)
        base = tl.load(centre + b // per_group * table_steps + step, (t > 0) & (t <= end), 0.0)
        shift = tl.load(highest + t * batch + b, t < end, 0.0)
        offset += base.to(tl.float64) + tl.load(peak + t * batch + b, t <= end, 0.0).to(tl.float64)
        offset += finite(shift).to(tl.float64)
    shift = finite(tl.load(highest + end * batch + b))
    total = tl.zeros([J], tl.float32)
    for start in range(0, n, J):
        j = start + tl.arange(0, J)
        total += exp(tl.load(alpha + (end * batch + b) * n + j, j < n, -float("inf")) - shift)
    tl.store(log_z + b, tl.sum(offset, 0) + (shift + tl.log(tl.sum(total, 0))).to(tl.float64))


def enter(node: Tensor, pairs: Pairs, last: Tensor, maximum: bool = False) -> Messages:
    """Messages from scores `node [B, T, N]` up to the positions `last [B]`: sums over the states before, or maxima."""
    batch, length, n = node.shape
    alpha, entering = node.new_zeros(length, batch, n), node.new_zeros(1 if maximum else length, batch, n)
    highest, peak = node.new_full((length, batch), -torch.inf), node.new_zeros(length, batch)
    tile = pairs.tile(n)
    for first, stop, programs, counter in launches(node, length, tile["J"]):
        _enter_kernel[programs, batch](
            node, alpha, entering, highest, peak, counter, last, *pairs.pointers, first, stop, batch, n, pairs.per_group(batch),
            pairs.steps, *node.stride(), *pairs.strides, SIZE=pairs.size,
            MAXIMUM=maximum, MEET=programs > 1 and stop > first + 1, **tile,
        )  # fmt: skip
    return Messages(alpha, entering, highest, peak)


def log_partition(messages: Messages, pairs: Pairs, last: Tensor) -> Tensor:
    """Log Z `[B]`, in float64."""
    _, batch, n = messages.alpha.shape
    log_z = torch.empty(batch, dtype=torch.float64, device=last.device)
    _finish_kernel[batch,](
        messages.alpha, messages.highest, messages.peak, last, pairs.centre, log_z, batch, n, pairs.per_group(batch),
        pairs.steps, J=min(1024, triton.next_power_of_2(n)), T=128,
    )  # fmt: skip
    return log_z


def launches(like: Tensor, length: int, block: int) -> list[tuple[int, int, int, Tensor]]:
    """First step, last step, programs for each sequence and their counters, by launch: one launch if programs can meet."""
    batch, _, n = like.shape
    programs = 1 if n <= ALONE else triton.cdiv(n, block)
    counter = torch.zeros(batch if programs > 1 else 1, dtype=torch.int32, device=like.device)
    if programs == 1 or programs <= at_once(like.device):
        return [(0, length, programs, counter)]
    return [(t, t + 1, programs, counter) for t in range(length)]
