"""How a chain is computed: the one place that chooses. It names the ways, whose files are in `ways/`.

| what | ways, the first that succeeds | chosen |
|---|---|---|
| log Z, entropy, means | `small_chains` | on a GPU, for few states with one table for all steps; not for a long chain |
| log Z, messages | `log_kernels` | on a GPU, for few states, and where each sequence has scores of its own; not for a long chain, nor where all paths break a mask |
| | `products`, in the dtype of the scores | unless rounding would add up, or scores are too far apart |
| | `products` in float64 | after float32 |
| | `gauge` | where products underflow, if there is room for the tables of all steps |
| | `log_steps` | else |
| the recursion in products | `small_steps` | few states on a CPU, and long chains of them anywhere: in blocks of time |
| | `kernel_steps` | on a GPU, where sequences share a table or factors |
| | `plain_steps` | else |
| best path | `small_best`, as `small_chains`; `packed_paths`; `best_kernels`; `best_steps` | few states, as above; on a GPU; else |
| k best paths | `small_ranked`, as `small_chains`; `ranked_paths` | not very many; else |
| random paths | `small_walk`; `walk_kernel`; `BackwardWalk` itself | few states, as above; on a GPU; else |

Sizes at which a way begins to pay were measured; they stand below, next to the choice that they are for.
"""

import math
from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from tailsum.numerics.kernels import fused
from tailsum.numerics.tiles import fits_budget
from tailsum.scores.potential import Dense, Potential
from tailsum.scores.products import Products
from tailsum.scores.table import SMALL, Table

Sum = Literal["products", "products in float64", "another gauge"]
Recursion = Literal["kernels", "few states", "steps"]
Best = Literal["kernels", "whole numbers", "steps", "ranked"]
Walk = Literal["kernels", "few states", "steps"]

TOGETHER = 256  # up to this many states, one program takes all steps of a sequence, with their means and gradients
RANKED = 32  # up to this many best paths, `small_ranked` finds them all in one launch
ALONE = 512  # up to this many states, the kernels in log space are faster than matrix products
ROUNDING = 1e-3  # nats that may be lost to rounding in float32
FREE_ROUNDING = 2e-4  # the same where steps are so small that float64 takes no longer
LONG = 10_000  # positions: on a GPU, blocks of time take less time than one kernel that goes from step to step
WIDEST = 800  # of B N: where a step has more numbers, the loop over time is not what takes the time
RANGE = 600.0  # nats: scores further apart underflow in float64 too, unless all paths that matter avoid the low ones
TABLES = 4  # of all steps, that another gauge needs at the same time, with derivatives


# Log Z and messages.


def takes_small_kernels(batch: int, length: int, n: int, pairs: Potential) -> bool:
    """Whether log Z and means are sums of `small_chains`: with few states, and one table for all steps."""
    if not batch or length < 2 or n > TOGETHER or (pairs.lead and pairs.lead[-1] > 1) or not pairs.whole:
        return False
    return fused(*pairs.tensors) and not is_long(batch, length, n)


def takes_log_kernels(batch: int, length: int, n: int, pairs: Potential) -> bool:
    """Whether to use the kernels in log space: with few states, or if each sequence has pair scores of its own."""
    if not batch or not pairs.whole or not fused(*pairs.tensors) or is_long(batch, length, n):
        return False
    few, apart = n <= ALONE, pairs.lead[0] == batch
    return (few or apart) and (pairs.for_kernels is not None or (few and not apart))  # few shared states get a table


def is_long(batch: int, length: int, n: int) -> bool:
    """Whether a chain has so many positions and so few states that even a kernel waits for its steps."""
    return length >= LONG and n <= SMALL and batch * n <= WIDEST


def sums(node: Tensor, pairs: Potential, last: Tensor) -> Iterator[Sum]:
    """The ways to sum, best first; arguments as of `forward.summed`."""
    narrow, (length, batch, n) = node.dtype == torch.float32, node.shape
    few = n <= SMALL and node.device.type == "cpu"
    apart = _spread(node, pairs) if node.numel() and few and pairs.by_parts else 0.0
    too_far = apart > RANGE and has_room(node) and not _avoids_masks(node, pairs, last)
    limit = FREE_ROUNDING if batch * n <= SMALL else ROUNDING
    if not too_far and not (narrow and length * apart * torch.finfo(node.dtype).eps > limit):
        yield "products"
    room = has_room(node, torch.float64)
    if narrow:
        too_far = too_far or (not few and pairs.by_parts and has_room(node) and not _avoids_masks(node, pairs, last))
        if not too_far or not room:
            yield "products in float64"
    if room and pairs.by_parts:
        yield "another gauge"


def has_room(node: Tensor, dtype: torch.dtype | None = None) -> bool:
    """Whether the tables of all steps fit the table budget, in this dtype or that of the scores."""
    return fits_budget(TABLES * node.numel() * node.shape[-1] * (dtype or node.dtype).itemsize)


@torch.no_grad()
def _spread(node: Tensor, pairs: Potential) -> float:
    """By how much the finite scores of a position differ, masks included.

    Rounding at each step grows with it, and in float32 may add up along the chain. With few states on a CPU, float64 takes
    about as long.
    """

    def widest(scores: Tensor, dims: tuple[int, ...]) -> float:
        if not scores.numel():
            return 0.0
        highest = scores.amax(dims, keepdim=True)
        lowest = scores.amin(dims, keepdim=True)
        if lowest.amin().item() == -math.inf:
            lowest = torch.where(scores > -math.inf, scores, highest).amin(dims, keepdim=True)
        return (highest - lowest).nan_to_num_(0.0).max().item()

    return widest(node, (-1,)) + widest(pairs.block(), (-2, -1))


def _avoids_masks(node: Tensor, pairs: Potential, last: Tensor) -> bool:
    """Whether every sequence has a path whose scores are all within `RANGE` of the best, so that float64 may suffice."""

    def near(scores: Tensor, dims: tuple[int, ...]) -> Tensor:
        return scores.masked_fill(scores < scores.amax(dims, keepdim=True) - RANGE, -math.inf)

    with torch.no_grad():
        allowed = near(node, (-1,)) > -math.inf
        reached = Table(Dense(near(pairs.block(), (-2, -1)))).reach(allowed)
    return bool(reached[last, torch.arange(len(last), device=last.device)].any(-1).all())


# The recursion in products.


def recursions(table: Products, x: Tensor) -> Iterator[Recursion]:
    """The ways to run `scan.py` for x `[T, B, N]`, best first."""
    length, batch, n = x.shape
    if table.small is not None and x.numel() and _waits_for_calls(x, batch, length, n):
        yield "few states"
    if table.suits_kernels and fused(x) and x.numel():
        yield "kernels"
    yield "steps"


# Paths.


def best_paths(node: Tensor, pairs: Potential, k: int) -> Iterator[Best]:
    """The ways to the k best paths of scores `node [B, T, N]`, best first."""
    if k > 1:
        yield "ranked"
        return
    batch, length, n = node.shape
    if _has_few_states(node, batch, length, n, pairs):
        yield "whole numbers"
    yield "kernels" if node.numel() and _suits_kernels(node, pairs) else "steps"


def walks(log_mass: Tensor, pairs: Potential) -> Walk:
    """The way to draw paths, given messages `[T, B, N]`."""
    length, batch, n = log_mass.shape
    if _has_few_states(log_mass, batch, length, n, pairs):
        return "few states"
    return "kernels" if log_mass.numel() and _suits_kernels(log_mass, pairs) else "steps"


def _suits_kernels(x: Tensor, pairs: Potential) -> bool:
    same = all(scores.dtype == x.dtype for scores in pairs.tensors)
    return same and pairs.for_kernels is not None and fused(x, *pairs.tensors)


def _has_few_states(x: Tensor, batch: int, length: int, n: int, pairs: Potential) -> bool:
    """Whether calls take longer than arithmetic, and the table fits; paths are then found on the CPU."""
    size = pairs.lead.numel() * n**2 * x.element_size()
    return batch > 0 and length > 1 and n <= SMALL and fits_budget(size) and _waits_for_calls(x, batch, length, n)


def _waits_for_calls(x: Tensor, batch: int, length: int, n: int) -> bool:
    """Whether steps of few states take as long as the calls that run them: where no kernel runs all steps, or there are very many."""
    return is_long(batch, length, n) or (x.device.type == "cpu" and not fused(x))
