"""Selection of K of N states in one launch: the threshold, and a systematic draw. The reference is `sketch.selection`.

The states of a row are split among programs, which meet after each pass. Their sums are added in the same order each time, so
that a seed gives the same states.
"""

# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportOperatorIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from tailsum.numerics.fused.exponential import exp, finite
from tailsum.numerics.fused.scores import at_once, before_hopper, meet

LEVELS = 16  # powers of two by which states are ordered, padded: the reference has nine
PASSES = 12  # at most, to find the threshold


@triton.jit
def _mass(log_q, i, stop, peak):
    """Q of the states i, where the highest is one; positive for all possible states."""
    value = tl.load(log_q + i, i < stop, -float("inf"))
    return tl.where(value == -float("inf"), 0.0, tl.maximum(exp(value - peak), 1e-38)).to(tl.float64)


@triton.jit
def _chance(q, share):
    """The probability of being kept."""
    return tl.where(q > 0.0, tl.minimum(q * share, 1.0), 0.0)


@triton.jit
def _level(chance, ordered, LAST: tl.constexpr):
    """The power of two of a probability, counted from one downwards; zero for all states without `ordered`."""
    power = tl.ceil(-tl.log2(tl.maximum(chance.to(tl.float32), 1e-30)))
    return tl.where(ordered > 0, tl.minimum(power, LAST), 0.0).to(tl.int32)


@triton.jit
def _select_kernel(
    log_q, value, mark, index, log_weight, excess, highest, partial, levels, counter, n, k, chunk,
    log_q_b, value_b, index_b, ordered,
    BLOCK: tl.constexpr, P: tl.constexpr, PASSES: tl.constexpr, LEVELS: tl.constexpr, LAST: tl.constexpr, EXCESS: tl.constexpr,
    MEET: tl.constexpr,
):  # fmt: skip
    program, b = tl.program_id(0), tl.program_id(1).to(tl.int64)
    log_q += b * log_q_b
    value += b * value_b
    begin, stop = program * chunk, tl.minimum(n, (program + 1) * chunk)
    counter += b
    each = tl.arange(0, P)  # programs
    # The maxima of each row.
    top = tl.full([BLOCK], -float("inf"), tl.float32)
    top_value = tl.full([BLOCK], -float("inf"), tl.float32)
    for start in range(begin, stop, BLOCK):
        i = start + tl.arange(0, BLOCK)
        top = tl.maximum(top, tl.load(log_q + i, i < stop, -float("inf")))
        if EXCESS:
            top_value = tl.maximum(top_value, tl.load(value + i, i < stop, -float("inf")))
    tl.store(partial + (b * 2 * P) + program, tl.max(top, 0).to(tl.float64))
    tl.store(partial + (b * 2 * P) + P + program, tl.max(top_value, 0).to(tl.float64))
    meet(counter, P, MEET)
    peak = finite(tl.max(tl.load(partial + b * 2 * P + each, cache_modifier=".cg"), 0).to(tl.float32))
    peak_value = finite(tl.max(tl.load(partial + b * 2 * P + P + each, cache_modifier=".cg"), 0).to(tl.float32))
    tl.store(highest + b, peak_value)
    # The threshold c from above: c' = (the sum of all q below c) / (k - the number of others).
    threshold = tl.full([], float("inf"), tl.float64)
    more = 1
    sure_before = tl.full([], -1.0, tl.float64)
    for turn in range(PASSES):
        if more > 0:
            total = tl.zeros([BLOCK], tl.float64)
            sure = tl.zeros([BLOCK], tl.float32)
            for start in range(begin, stop, BLOCK):
                i = start + tl.arange(0, BLOCK)
                q = _mass(log_q, i, stop, peak)
                above = q >= threshold
                total += tl.where(above, 0.0, q)
                sure += tl.where(above, 1.0, 0.0)
            slot = partial + (2 + 2 * turn) * P * tl.num_programs(1) + b * 2 * P
            tl.store(slot + program, tl.sum(total, 0))
            tl.store(slot + P + program, tl.sum(sure, 0).to(tl.float64))
            meet(counter, (turn + 2) * P, MEET)
            all_total = tl.sum(tl.load(slot + each, cache_modifier=".cg"), 0)
            all_sure = tl.sum(tl.load(slot + P + each, cache_modifier=".cg"), 0)
            more = tl.where((all_sure == sure_before) | (all_total == 0.0) | (all_sure >= k), 0, 1)
            threshold = tl.where(
                (all_total > 0.0) & (all_sure < k), all_total / (k - all_sure), tl.where(turn == 0, 0.0, threshold)
            )
            sure_before = all_sure
    # Where fewer than k states are possible, the threshold is zero, and each is kept.
    share = tl.where(threshold > 0.0, 1.0 / threshold, float("inf"))
    # The sum of the probabilities at each power of two.
    level_of = tl.arange(0, LEVELS)
    sums = tl.zeros([LEVELS], tl.float64)
    for start in range(begin, stop, BLOCK):
        i = start + tl.arange(0, BLOCK)
        chance = _chance(_mass(log_q, i, stop, peak), share)
        at_level = _level(chance, ordered, LAST)[None, :] == level_of[:, None]
        sums += tl.sum(tl.where(at_level, chance[None, :], 0.0), 1)
    tl.store(levels + (b * P + program) * LEVELS + level_of, sums)
    meet(counter + tl.num_programs(1), P, MEET)
    table = tl.load(levels + (b * P + each[:, None]) * LEVELS + level_of[None, :], cache_modifier=".cg")
    whole = tl.sum(table, 0)
    # The sum of all lower levels, and of earlier programs at the same level.
    reach = tl.cumsum(whole, 0) - whole + tl.sum(tl.where((each < program)[:, None], table, 0.0), 0)
    uniform = tl.load(mark + b)
    for start in range(begin, stop, BLOCK):
        i = start + tl.arange(0, BLOCK)
        chance = _chance(_mass(log_q, i, stop, peak), share)
        at_level = _level(chance, ordered, LAST)[None, :] == level_of[:, None]
        spread = tl.where(at_level, chance[None, :], 0.0)
        after = tl.sum(tl.where(at_level, tl.cumsum(spread, 1) + reach[:, None], 0.0), 0)
        reach += tl.sum(spread, 1)
        # State i is kept at place m if m + mark lies between the cumulative sums before and after it.
        place = tl.ceil(after - chance - uniform)
        taken = (place < after - uniform) & (chance > 0.0) & (place < k)
        place = tl.maximum(place, 0.0).to(tl.int64)
        weight = -tl.log(tl.maximum(chance.to(tl.float32), 1e-38))
        tl.store(index + b * index_b + place, i.to(tl.int64), taken & (i < stop))
        tl.store(log_weight + b * index_b + place, weight, taken & (i < stop))
        if EXCESS:
            mass = exp(tl.load(value + i, i < stop, -float("inf")) - peak_value)
            rest = tl.where(taken, mass - mass * exp(weight), mass)
            tl.store(excess + b * n + i, rest, i < stop)


class Selector:
    """Up to `calls` selections of k of n states for a batch of rows, which share their buffers."""

    def __init__(self, batch: int, n: int, calls: int, device: torch.device) -> None:
        self.batch, self.n = batch, n
        self.block = 256 if before_hopper(device) else 512  # the compiler spills 512 for older GPUs
        blocks = triton.cdiv(n, self.block)
        several = at_once(device, 32 << 10) // max(1, batch)
        programs = max(1, min(64, several, blocks))
        self.programs = 1 << (programs.bit_length() - 1)  # a power of two
        self.chunk = triton.cdiv(blocks, self.programs) * self.block
        self.partial = torch.empty((2 + 2 * PASSES) * self.programs * batch, dtype=torch.float64, device=device)
        self.levels = torch.empty(batch * self.programs * LEVELS, dtype=torch.float64, device=device)
        self.highest = torch.empty(batch, dtype=torch.float32, device=device)
        self.excess = torch.empty(batch, n, dtype=torch.float32, device=device)
        self._counters = iter(torch.zeros(calls, 2 * batch, dtype=torch.int32, device=device).unbind())

    def __call__(
        self, log_q: Tensor, mark: Tensor, index: Tensor, log_weight: Tensor, ordered: bool, value: Tensor | None = None
    ) -> None:
        """Fill `index [B, k]` and `log_weight`, in rows of equal stride, from `log_q [B, n]` and uniform `mark [B]`.

        Where fewer than k states are possible, the remaining places are not written. With `ordered`, states are drawn by
        magnitude. With `value [B, n]`, `excess` becomes `exp(value - highest)`, minus itself times the weight for kept states.
        """
        _select_kernel[self.programs, self.batch](
            log_q, log_q if value is None else value, mark, index, log_weight, self.excess, self.highest, self.partial, self.levels,
            next(self._counters), self.n, index.shape[-1], self.chunk, log_q.stride(0), 0 if value is None else value.stride(0), index.stride(0),
            int(ordered), BLOCK=self.block, P=self.programs, PASSES=PASSES, LEVELS=LEVELS, LAST=8, EXCESS=value is not None,
            MEET=self.programs > 1, num_warps=4,
        )  # fmt: skip
