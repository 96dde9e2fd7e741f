"""Scores of segments and of their pairs within a kernel, and what kernels of segments take.

Scores come from a table, or from positions and durations. Sums are float64 until the largest is subtracted, so that float32
loses no digits over the length.
"""

# pyright: reportArgumentType=false

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from tailsum.numerics.fused.exponential import exp

WIDEST = 1024  # states
LONGEST = 4096  # durations


@triton.jit
def scores_until(
    e, i, length, longest, n, table, lasting, t_s, t_d, t_n, D: tl.constexpr, DURATIONS: tl.constexpr
):  # fmt: skip
    """Of the segments of all durations [D] and states i [I] that end before position e: starts, which exist, float64 scores."""
    d = tl.arange(0, D)
    start = e - 1 - d
    inside = ((d < longest) & (start >= 0))[:, None] & (i < n)[None, :]
    place = start.to(tl.int64)[:, None] * t_s + i[None, :] * t_n
    if DURATIONS:
        score = tl.cumsum(tl.load(table + place, inside, 0.0).to(tl.float64), 0)
        far = tl.where(e == length, longest, 0) + d
        score += tl.load(lasting + far[:, None] * n + i[None, :], inside, 0.0).to(tl.float64)
    else:
        score = tl.load(table + place + d[:, None] * t_d, inside, 0.0).to(tl.float64)
    return start, inside, score


@triton.jit
def scores_from(
    t, i, length, longest, n, table, lasting, t_s, t_d, t_n, D: tl.constexpr, DURATIONS: tl.constexpr
):  # fmt: skip
    """The same of those that start at position t: where they end, which exist, and their scores."""
    d = tl.arange(0, D)
    end = t + 1 + d
    inside = ((d < longest) & (end <= length))[:, None] & (i < n)[None, :]
    if DURATIONS:
        place = (t + d).to(tl.int64)[:, None] * t_s + i[None, :] * t_n
        score = tl.cumsum(tl.load(table + place, inside, 0.0).to(tl.float64), 0)
        far = tl.where(end == length, longest, 0) + d
        score += tl.load(lasting + far[:, None] * n + i[None, :], inside, 0.0).to(tl.float64)
    else:
        place = tl.cast(t, tl.int64) * t_s + d[:, None] * t_d + i[None, :] * t_n
        score = tl.load(table + place, inside, 0.0).to(tl.float64)
    return end, inside, score


@triton.jit
def sources(e, r, rows, n, messages, ends, table, t_s, t_d, t_n, BY_DURATION: tl.constexpr):
    """Scores of all that comes before boundary e, in float64: by the last state r, or by duration and state, r = d n + i."""
    if BY_DURATION:
        d, i = r // n, r % n
        start = (e - 1 - d).to(tl.int64)
        inside = (r < rows) & (start >= 0)
        score = tl.load(table + start * t_s + d * t_d + i * t_n, inside, 0.0).to(tl.float64)
        score += tl.load(messages + start * n + i, inside, -float("inf"))
    else:
        score = tl.load(ends + tl.cast(e - 1, tl.int64) * n + r, r < n, -float("inf"))
    return score


@triton.jit
def pair_tile(pairs, r, j, rows, n, p_d, p_i, p_j):
    """The scores of pairs of r [I] and states j [J]; minus infinity where there are none."""
    place = (r // n).to(tl.int64) * p_d + (r % n) * p_i
    return tl.load(pairs + place[:, None] + j[None, :] * p_j, (r < rows)[:, None] & (j < n)[None, :], -float("inf"))


@triton.jit
def part(grad, x):
    """The part `grad exp(x)` of a gradient; zero where x is minus infinity."""
    possible = x > -float("inf")
    return tl.where(possible, grad * exp(tl.where(possible, x, 0.0)), 0.0)


class Inputs(NamedTuple):
    """Scores of segments and of pairs as kernels take them."""

    table: Tensor  # [B, T, D, N], or scores of positions [B, T, 1, N] beside those of durations
    lasting: Tensor | None  # scores of durations [#B, 2, D, N]: within the sequence, and at its end
    pairs: Tensor  # [#B, #T-1, #D, N, N]
    lengths: Tensor

    @classmethod
    def of(cls, tensors: tuple[Tensor, ...], lengths: Tensor) -> "Inputs | None":
        """From a table `[B, T, D, N]` and pairs; or from `[B, T, N]`, `[#B, D, N]` twice and pairs. None if too large."""
        own, *durations, pairs = tensors
        lasting = torch.stack(durations, 1) if durations else None
        made = cls(own if lasting is None else own[:, :, None], lasting, pairs, lengths)
        _, _, longest, n = made.sizes
        fits = n <= WIDEST and longest <= LONGEST and not (made.by_duration and durations)
        return made if fits else None

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        batch, length, longest, n = self.table.shape
        return batch, length, longest if self.lasting is None else self.lasting.shape[-2], n

    @property
    def by_duration(self) -> bool:
        """Whether scores of pairs depend on the duration of the first segment."""
        return self.pairs.shape[2] > 1

    @property
    def rows(self) -> int:
        """From how many states, or durations and states, transitions go."""
        _, _, longest, n = self.sizes
        return longest * n if self.by_duration else n

    def arguments(self) -> tuple[object, ...]:
        """What all kernels take first: pointers, sizes and strides."""
        _, length, _, n = self.sizes
        shared = zip(self.pairs.shape[:3], self.pairs.stride(), strict=False)
        strides = [0 if size == 1 else stride for size, stride in shared]
        steps = *self.table.stride(), *strides, *self.pairs.stride()[3:]
        return self.table, self.pairs, self.lengths, length, n, *steps

    def durations(self) -> tuple[Tensor, int, int]:
        """The scores of durations, if there are any, their stride over the batch, and the longest duration."""
        lasting = self.table if self.lasting is None else self.lasting
        return lasting, 0 if len(lasting) == 1 else lasting.stride(0), self.sizes[2]

    def tile(self, entries: int) -> dict[str, int]:
        """The size of a tile of segments of all durations, and how many warps work on it."""
        _, _, longest, n = self.sizes
        d = triton.next_power_of_2(longest)
        k = min(triton.next_power_of_2(n), max(1, entries // d))
        return {"D": d, "K": k, "num_warps": min(16, max(1, d * k // 128)), "DURATIONS": self.lasting is not None}

    def pair_tile(self) -> dict[str, int]:
        """The same of a tile of pairs."""
        j = min(triton.next_power_of_2(self.sizes[3]), 128)
        i = min(triton.next_power_of_2(self.rows), 4096 // j)
        return {"I": i, "J": j, "num_warps": min(16, max(1, i * j // 256)), "BY_DURATION": self.by_duration}

    def tiles(self) -> dict[str, int]:
        """Both, for kernels that take all of a sequence."""
        own, pairs = self.tile(2048), self.pair_tile()
        return own | pairs | {"num_warps": max(own["num_warps"], pairs["num_warps"])}
