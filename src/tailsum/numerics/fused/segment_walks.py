"""Best and sampled segmentations: walks back along the messages of `fused.segments`, one program for each.

The reference is `chains.segment_walk`. At each boundary the highest score of a last segment is chosen, after noise if it is to
be a sample; a score is relative to the message that sums them all up, so that it has all digits of float32.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from tailsum.numerics.fused.kernel import Kept
from tailsum.numerics.fused.segment_tiles import Inputs, scores_until
from tailsum.numerics.fused.segments import PLAIN, messages_of


@triton.jit(do_not_specialize=[*PLAIN, "batch", "seed"])
def _walk(
    table, pairs, lengths, length, n, t_b, t_s, t_d, t_n, p_b, p_s, p_d, p_i, p_j,
    lasting, l_b, longest, messages, totals, walks, batch, seed, D: tl.constexpr, K: tl.constexpr, DURATIONS: tl.constexpr, SAMPLE: tl.constexpr,
):  # fmt: skip
    """Starts, durations and states `[3, count, B, T]`: written from the last place on, and then moved to the first."""
    walk = tl.program_id(0).to(tl.int64)
    b = walk % batch
    table, lasting, pairs = table + b * t_b, lasting + b * l_b, pairs + b * p_b
    messages += b * length * n
    starts = walks + walk * length
    apart = tl.num_programs(0).to(tl.int64) * length
    last = tl.load(lengths + b).to(tl.int32)
    reached = tl.load(totals + b)
    end = tl.where(reached > -float("inf"), last, 0)
    place, state = length, end * 0
    while end > 0:
        highest, best = -float("inf"), end * 0
        of_boundary = pairs + tl.cast(end - 1, tl.int64) * p_s + state * p_j
        for first in range(0, n, K):
            i, d = first + tl.arange(0, K), tl.arange(0, D)
            start, inside, score = scores_until(
                end, i, last, longest, n, table, lasting, t_s, t_d, t_n, D, DURATIONS
            )  # fmt: skip
            before = messages + start.to(tl.int64)[:, None] * n + i[None, :]
            score += tl.load(before, inside, -float("inf"))
            if end < last:
                pair = of_boundary + d.to(tl.int64)[:, None] * p_d + i[None, :] * p_i
                score += tl.load(pair, inside, -float("inf")).to(tl.float64)
            logits = (score - reached).to(tl.float32)
            which = d[:, None] * n + i[None, :]
            if SAMPLE:
                noise, _, _, _ = tl.philox(seed, which, which * 0 + end, which * 0 + walk.to(tl.int32), which * 0)
                uniform = tl.uint_to_uniform_float(noise) + 2.3e-10
                wait = tl.where(uniform < 1e-3, uniform * (1 + 0.5 * uniform), -tl.log(1 - uniform))
                logits -= tl.log(wait)
            top = tl.max(tl.max(logits, 1), 0)
            here = tl.min(tl.min(tl.where(logits == top, which, longest * n), 1), 0)
            best = tl.where(top > highest, here, best)
            highest = tl.maximum(highest, top)
        end, state, place = end - 1 - best // n, best % n, place - 1
        tl.store(starts + place, end)
        tl.store(starts + apart + place, best // n + 1)
        tl.store(starts + 2 * apart + place, state)
        reached = tl.load(messages + end.to(tl.int64) * n + state)
    tl.debug_barrier()
    found = length - place
    for first in range(0, length, 512):
        to = first + tl.arange(0, 512)
        inside, there = to < found, starts + place + to
        start, duration = tl.load(there, inside, -1), tl.load(there + apart, inside, 0)
        label = tl.load(there + 2 * apart, inside, -1)
        tl.debug_barrier()
        tl.store(starts + to, start, to < length)
        tl.store(starts + apart + to, duration, to < length)
        tl.store(starts + 2 * apart + to, label, to < length)
        tl.debug_barrier()


def walks(inputs: Inputs, messages: Tensor, totals: Tensor, count: int = 1, seed: int | None = None) -> Tensor:
    """Starts, durations and states `[3, count, B, T]` of the best segmentation, or of samples by a `seed`; -1, 0, -1 after the last."""
    batch, length, _, _ = inputs.sizes
    walked = torch.empty(3, count, batch, length, dtype=torch.long, device=messages.device)
    if walked.numel():
        _walk[(batch * count,)](
            *inputs.arguments(), *inputs.durations(), messages, totals, walked, batch, seed or 0, SAMPLE=seed is not None,
            **inputs.tile(1024),
        )  # fmt: skip
    return walked


def forward(*tensors: Tensor, lengths: Tensor) -> tuple[Tensor, Kept] | None:
    """The best segmentations, `[3, B, T]`."""
    inputs = Inputs.of(tensors, lengths)
    if inputs is None:
        return None
    messages, _, _, totals = messages_of(inputs, maximum=True)
    return walks(inputs, messages, totals)[:, 0], ()


def sampler(*tensors: Tensor, lengths: Tensor) -> Callable[[int, int], Tensor] | None:
    """Draws segmentations, if there is a kernel for such scores."""
    inputs = Inputs.of(tensors, lengths)
    if inputs is None:
        return None
    messages, _, _, totals = messages_of(inputs, maximum=False)
    return lambda count, seed: walks(inputs, messages, totals, count, seed)
