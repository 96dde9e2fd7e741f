"""Segmentations: all positions of a sequence in one launch, one program for each sequence.

Messages `[B, T, N]` are the scores of what comes before a segment that starts at t in state j, and endings `[B, T, N]` of the
first t+1 positions if their last segment has state i. The reference is `chains.segment_scan`. Both, and no sums over durations or pairs, are
kept for the gradient. They are float64; exponentials are float32, of differences from the largest score at a boundary.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from tailsum.numerics.fused.exponential import add_exp, exp, finite, log_of
from tailsum.numerics.fused.kernel import Kept
from tailsum.numerics.fused.segment_tiles import Inputs, pair_tile, part, scores_from, scores_until, sources

_PROGRAMS = 2048  # that sum up gradients in scores of pairs
PLAIN = ["length", "longest", "t_b", "l_b", "p_b", "p_s"]  # arguments that kernels are not compiled for


@triton.jit(do_not_specialize=PLAIN)
def _inside(
    table, pairs, lengths, length, n, t_b, t_s, t_d, t_n, p_b, p_s, p_d, p_i, p_j,
    lasting, l_b, longest, rows, messages, ends, tops, totals, D: tl.constexpr, K: tl.constexpr, I: tl.constexpr, J: tl.constexpr,
    DURATIONS: tl.constexpr, BY_DURATION: tl.constexpr, MAXIMUM: tl.constexpr,
):  # fmt: skip
    """Messages, endings, the highest ending of each position, and that of the whole sequence summed over its states."""
    b = tl.program_id(0).to(tl.int64)
    table, lasting, pairs = table + b * t_b, lasting + b * l_b, pairs + b * p_b
    messages, ends, tops = messages + b * length * n, ends + b * length * n, tops + b * length
    last = tl.load(lengths + b).to(tl.int32)
    for first in range(0, n, K):
        i = first + tl.arange(0, K)
        tl.store(messages + i, tl.zeros([K], tl.float64), i < n)
    tl.debug_barrier()
    for e in range(1, last + 1):
        highest = tl.full((), -float("inf"), tl.float64)
        for first in range(0, n, K):
            i = first + tl.arange(0, K)
            start, inside, score = scores_until(
                e, i, last, longest, n, table, lasting, t_s, t_d, t_n, D, DURATIONS
            )  # fmt: skip
            before = messages + start.to(tl.int64)[:, None] * n + i[None, :]
            score += tl.load(before, inside, -float("inf"))
            top = tl.max(score, 0)
            if not MAXIMUM:
                relative = score - finite(top)[None, :]
                top = log_of(top, tl.sum(exp(relative.to(tl.float32)), 0))
            tl.store(ends + tl.cast(e - 1, tl.int64) * n + i, top, i < n)
            highest = tl.maximum(highest, tl.max(top, 0))
        top = finite(highest)
        tl.store(tops + e - 1, top)
        tl.debug_barrier()
        if e < last:
            of_boundary = pairs + tl.cast(e - 1, tl.int64) * p_s
            for column in range(0, n, J):
                j = column + tl.arange(0, J)
                most, total = tl.full([J], -float("inf"), tl.float32), tl.zeros([J], tl.float32)
                for row in range(0, rows, I):
                    r = row + tl.arange(0, I)
                    sent = sources(e, r, rows, n, messages, ends, table, t_s, t_d, t_n, BY_DURATION) - top
                    reach = sent.to(tl.float32)[:, None] + pair_tile(of_boundary, r, j, rows, n, p_d, p_i, p_j)
                    if MAXIMUM:
                        most = tl.maximum(most, tl.max(reach, 0))
                    else:
                        most, total = add_exp(most, total, reach, 0)
                entering = most if MAXIMUM else log_of(most, total)
                tl.store(messages + tl.cast(e, tl.int64) * n + j, entering.to(tl.float64) + top, j < n)
            tl.debug_barrier()
    top = tl.load(tops + last - 1)
    most, total = tl.full((), -float("inf"), tl.float32), tl.full((), 0.0, tl.float32)
    for first in range(0, n, K):
        i = first + tl.arange(0, K)
        ending = tl.load(ends + tl.cast(last - 1, tl.int64) * n + i, i < n, -float("inf")) - top
        most, total = add_exp(most, total, ending.to(tl.float32), 0)
    whole = most if MAXIMUM else log_of(most, total)
    tl.store(totals + b, whole.to(tl.float64) + top)


@triton.jit(do_not_specialize=PLAIN)
def _outside(
    table, pairs, lengths, length, n, t_b, t_s, t_d, t_n, p_b, p_s, p_d, p_i, p_j,
    lasting, l_b, longest, rows, messages, ends, tops, totals, seeds, of_messages, of_ends, of_table, of_lasting,
    D: tl.constexpr, K: tl.constexpr, I: tl.constexpr, J: tl.constexpr, DURATIONS: tl.constexpr, BY_DURATION: tl.constexpr,
):  # fmt: skip
    """The gradients in messages, endings and scores of segments, from the last position to the first."""
    b = tl.program_id(0).to(tl.int64)
    table, lasting, pairs = table + b * t_b, lasting + b * l_b, pairs + b * p_b
    own = b * length * n
    messages, ends, of_messages, of_ends, tops = (
        messages + own,
        ends + own,
        of_messages + own,
        of_ends + own,
        tops + b * length,
    )
    of_table, of_lasting = of_table + own * (1 if DURATIONS else longest), of_lasting + b * 2 * longest * n
    last, seed, whole = tl.load(lengths + b).to(tl.int32), tl.load(seeds + b), finite(tl.load(totals + b))
    for row in range(0, rows, I):
        r = row + tl.arange(0, I)
        ending = sources(last, r, rows, n, messages, ends, table, t_s, t_d, t_n, BY_DURATION) - whole
        grad = part(seed, ending.to(tl.float32))
        if BY_DURATION:
            start = (last - 1 - r // n).to(tl.int64)
            tl.store(of_table + start * longest * n + r, grad, (r < rows) & (start >= 0))
        else:
            tl.store(of_ends + tl.cast(last - 1, tl.int64) * n + r, grad, r < n)
    tl.debug_barrier()
    for back in range(last):
        t = last - 1 - back
        here = tl.cast(t, tl.int64) * n
        for first in range(0, n, K):
            i = first + tl.arange(0, K)
            d = tl.arange(0, D)
            if BY_DURATION:
                inside = ((d < longest) & (t + d < last))[:, None] & (i < n)[None, :]
                grad = tl.load(of_table + here * longest + d[:, None] * n + i[None, :], inside, 0.0)
            else:
                end, inside, score = scores_from(
                    t, i, last, longest, n, table, lasting, t_s, t_d, t_n, D, DURATIONS
                )  # fmt: skip
                score += tl.load(messages + here + i, i < n, -float("inf"))[None, :]
                ending = (end - 1).to(tl.int64)[:, None] * n + i[None, :]
                score -= finite(tl.load(ends + ending, inside, 0.0))
                grad = part(tl.load(of_ends + ending, inside, 0.0), score.to(tl.float32))
                grad = tl.where(inside, grad, 0.0)
                if DURATIONS:  # each position has the gradients of all segments that cover it
                    place = of_table + here + d[:, None] * n + i[None, :]
                    covering = tl.cumsum(grad, 0, reverse=True)
                    tl.store(place, tl.load(place, inside & (d > 0)[:, None], 0.0) + covering, inside)
                    far = of_lasting + (tl.where(end == last, longest, 0) + d)[:, None] * n + i[None, :]
                    tl.store(far, tl.load(far, inside, 0.0) + grad.to(tl.float64), inside)
                else:
                    tl.store(of_table + here * longest + d[:, None] * n + i[None, :], grad, inside)
            tl.store(of_messages + here + i, tl.sum(grad, 0), i < n)
        tl.debug_barrier()
        if t > 0:
            top = tl.load(tops + t - 1)
            of_boundary = pairs + tl.cast(t - 1, tl.int64) * p_s
            for row in range(0, rows, I):
                r = row + tl.arange(0, I)
                sent = sources(t, r, rows, n, messages, ends, table, t_s, t_d, t_n, BY_DURATION) - top
                sent = sent.to(tl.float32)
                grad = tl.zeros([I], tl.float32)
                for column in range(0, n, J):
                    j = column + tl.arange(0, J)
                    entering = (tl.load(messages + here + j, j < n, 0.0) - top).to(tl.float32)
                    arriving = tl.load(of_messages + here + j, j < n, 0.0)
                    reach = sent[:, None] + pair_tile(of_boundary, r, j, rows, n, p_d, p_i, p_j)
                    grad += tl.sum(part(arriving[None, :], reach - finite(entering)[None, :]), 1)
                if BY_DURATION:
                    start = (t - 1 - r // n).to(tl.int64)
                    tl.store(of_table + start * longest * n + r, grad, (r < rows) & (start >= 0))
                else:
                    tl.store(of_ends + here - n + r, grad, r < n)
            tl.debug_barrier()


@triton.jit(do_not_specialize=[*PLAIN, "groups", "steps", "together", "count", "chunk", "chunks"])
def _of_pairs(
    table, pairs, lengths, length, n, t_b, t_s, t_d, t_n, p_b, p_s, p_d, p_i, p_j,
    rows, messages, ends, tops, of_messages, slopes, groups, steps, together, count, chunk, chunks,
    I: tl.constexpr, J: tl.constexpr, BY_DURATION: tl.constexpr,
):  # fmt: skip
    """The gradients in scores of pairs, `slopes [chunks, groups, rows, N]`: each sums up some boundaries that share them.

    Groups are by sequence and by `steps`; the `count` boundaries of one go over `together` successive ones of each sequence.
    """
    which, across = tl.program_id(0), tl.cdiv(n, J)
    j = which % across * J + tl.arange(0, J)
    which = which // across
    r = which % tl.cdiv(rows, I) * I + tl.arange(0, I)
    which = (which // tl.cdiv(rows, I)).to(tl.int64)
    part_of, group = which % chunks, which // chunks
    sequence, boundary = group // steps, group % steps
    scores = pair_tile(pairs + sequence * p_b + boundary * p_s, r, j, rows, n, p_d, p_i, p_j)
    slope = tl.zeros([I, J], tl.float32)
    for one in range(part_of * chunk, tl.minimum(count, (part_of + 1) * chunk)):
        b, e = sequence + one // together, (boundary + one % together + 1).to(tl.int32)
        if e < tl.load(lengths + b):
            own, here = b * length * n, b * length * n + tl.cast(e, tl.int64) * n
            top = tl.load(tops + b * length + e - 1)
            sent = sources(
                e, r, rows, n, messages + own, ends + own, table + b * t_b, t_s, t_d, t_n, BY_DURATION
            ) - top  # fmt: skip
            entering = (tl.load(messages + here + j, j < n, 0.0) - top).to(tl.float32)
            arriving = tl.load(of_messages + here + j, j < n, 0.0)
            slope += part(arriving[None, :], (sent.to(tl.float32)[:, None] + scores) - finite(entering)[None, :])
    place = (part_of * groups + group) * rows + r
    tl.store(slopes + place[:, None] * n + j[None, :], slope, (r < rows)[:, None] & (j < n)[None, :])


def messages_of(inputs: Inputs, maximum: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Messages and endings `[B, T, N]`, the highest endings `[B, T]`, and those of whole sequences `[B]`; all float64.

    Sums or maxima; of places beyond a sequence nothing is set.
    """
    batch, length, _, n = inputs.sizes
    messages, ends = inputs.table.new_empty(2, batch, length, n, dtype=torch.float64)
    tops, totals = messages.new_empty(batch, length), messages.new_empty(batch)
    if batch:
        _inside[(batch,)](
            *inputs.arguments(), *inputs.durations(), inputs.rows, messages, ends, tops, totals, MAXIMUM=maximum,
            **inputs.tiles(),
        )  # fmt: skip
    return messages, ends, tops, totals


def forward(*tensors: Tensor, lengths: Tensor) -> tuple[Tensor, Kept] | None:
    """Log of the sum over all segmentations of the first `lengths [B]` positions."""
    inputs = Inputs.of(tensors, lengths)
    if inputs is None:
        return None
    found = messages_of(inputs, maximum=False)
    return found[-1], (*tensors, *found)


def backward(kept: Kept, grad: Tensor, wanted: Sequence[bool], *, lengths: Tensor) -> Sequence[Tensor | None]:
    """The gradients in the scores."""
    tensors, (messages, ends, tops, totals) = kept[:-4], kept[-4:]
    inputs = Inputs.of(tensors, lengths)
    assert inputs is not None
    batch, length, longest, n = inputs.sizes
    of_messages, of_ends = tensors[0].new_empty(2, batch, length, n)
    of_table = tensors[0].new_zeros(tensors[0].shape)
    of_lasting = messages.new_zeros((batch, 2, longest, n) if inputs.lasting is not None else 0)
    if batch:
        _outside[(batch,)](
            *inputs.arguments(), *inputs.durations(), inputs.rows, messages, ends, tops, totals, grad.float().contiguous(),
            of_messages, of_ends, of_table, of_lasting, **inputs.tiles(),
        )  # fmt: skip
    slopes: list[Tensor | None] = [of_table]
    if inputs.lasting is not None:
        slopes += of_lasting.sum_to_size(inputs.lasting.shape).float().unbind(1)
    return [*slopes, _slopes_of_pairs(inputs, messages, ends, tops, of_messages) if wanted[-1] else None]


def _slopes_of_pairs(inputs: Inputs, messages: Tensor, ends: Tensor, tops: Tensor, of_messages: Tensor) -> Tensor:
    batch, length, _, n = inputs.sizes
    own, steps, *_ = inputs.pairs.shape
    if length == 1 or not batch:
        return torch.zeros_like(inputs.pairs)
    tile, groups, together = inputs.pair_tile(), own * steps, (length - 1) // steps
    count = batch // own * together
    blocks = triton.cdiv(inputs.rows, tile["I"]) * triton.cdiv(n, tile["J"])
    chunk = min(512, max(64, count * groups * blocks // _PROGRAMS))  # few enough to be summed in float32
    chunks = triton.cdiv(count, chunk)
    slopes = of_messages.new_empty(chunks, groups, inputs.rows, n)
    _of_pairs[(chunks * groups * blocks,)](
        *inputs.arguments(), inputs.rows, messages, ends, tops, of_messages, slopes, groups, steps, together, count, chunk,
        chunks, **tile,
    )  # fmt: skip
    total = slopes[0] if chunks == 1 else slopes.sum(0, dtype=torch.float64).float()
    return total.reshape(inputs.pairs.shape)
