"""What the kernels of chains of few states (`small_chains.py`) share: scores turned to states after by states before, and sizes."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportOperatorIssue=false

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tailsum.numerics.fused.exponential import finite
from tailsum.numerics.fused.scores import unmasked

HELD, HELD_WITH_MEANS = 128, 64  # up to this many states, tables stay in registers
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
def worth_of(table, i, j, n, base):
    """Values `[J, I]`, with zero in place of masks, less a number for all."""
    return finite(turned_scores(table, i, j, n)) - base


def has_digits(fallen: Tensor, lost: float) -> bool:
    """Whether the highest messages never fell so far in one step that rounding takes more than `lost` nats.

    They fall far where all paths break a mask such as -1e9: beside that number, other scores are rounded away.
    """
    return fallen.cpu().amax().item() * torch.finfo(torch.float32).eps < lost  # a copy takes less time than a launch


def tile(n: int, held: bool, many: int = 8) -> dict[str, Any]:
    """The size of a tile, N states before and J after, and how many warps work on it: as `many` for more than 128 states.

    Forward 8 were faster than 16 there, on a Hopper GPU, and 16 backward.
    """
    states = max(16, triton.next_power_of_2(n))
    warps = {16: 1, 32: 4, 64: 8}.get(states, 16 if held else many if states > 128 else 8)
    return {"N": states, "J": states if held else max(16, min(states // 2, 8192 // states)), "num_warps": warps}
