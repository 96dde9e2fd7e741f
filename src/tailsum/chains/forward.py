"""Forward messages of a chain, by the fastest method that is accurate for the range of its scores.

Products in probability space underflow below the smallest number of their floating-point type. `summed` computes them and
checks whether underflow could have changed the result. If so it repeats them in float64 (a range of e^650 in place of
e^57), then for the same chain in another gauge, where nothing underflows. Without memory for that, sums are in log space.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from tailsum.chains.fused_messages import fused_log_partition, fused_messages, suits_log_steps
from tailsum.chains.gauge import gauged, has_room
from tailsum.chains.scan import Forward, forward_scan, raised_sum
from tailsum.numerics.reduce import log_sum_exp
from tailsum.numerics.tensors import finite
from tailsum.scores.potential import Dense, Potential
from tailsum.scores.products import Products
from tailsum.scores.table import SMALL, Table

LogStep = Callable[[Tensor, Potential], Tensor]  # from log masses `[B, N]` and scores `[G, N, N]` to sums `[B, N]`
Normalise = Callable[[Tensor], Forward]

ROUNDING = 1e-3  # nats that may be lost to rounding in float32
FREE_ROUNDING = 2e-4  # the same where steps are so small that float64 takes no longer
RANGE = 600.0  # nats: scores further apart underflow in float64 too, unless all paths that matter avoid the low ones


class Summed(NamedTuple):
    """The forward recursion of a chain: its messages, and the scores and products that they were made from.

    The scores may be those of the chain in float64 or in another gauge. In the second case `left_out [T, B, N]` must be
    added to the messages.
    """

    node: Tensor
    pairs: Potential
    table: Products
    messages: Forward
    total: Tensor
    left_out: Tensor | None = None


def summed(node: Tensor, pairs: Potential, last: Tensor) -> Summed | None:
    """The forward recursion by products without underflow; None if that needs log space.

    `node [T, B, N]` are scores, `pairs` a flat potential, and `last [B]` the last position of each sequence.
    """
    narrow, (length, batch, n) = node.dtype == torch.float32, node.shape
    few = n <= SMALL and node.device.type == "cpu"
    apart = _spread(node, pairs) if node.numel() and few and pairs.by_parts else 0.0
    too_far = apart > RANGE and has_room(node) and not _avoids_masks(node, pairs, last)
    limit = FREE_ROUNDING if batch * n <= SMALL else ROUNDING
    too_coarse = narrow and length * apart * torch.finfo(node.dtype).eps > limit
    if not too_far and not too_coarse:
        table = pairs.products()
        messages, total = forward_scan(node, table, pairs.tensors)
        if in_range(node.detach(), table, messages, total, last):
            return Summed(node, pairs, table, messages, total)
        del table, messages, total
    if narrow:
        too_far = too_far or (not few and has_room(node) and pairs.by_parts and not _avoids_masks(node, pairs, last))
        node, pairs = node.double(), pairs.to(torch.float64)
        if not too_far or not has_room(node):
            return summed(node, pairs, last)
    elif not has_room(node) or not pairs.by_parts:
        return None
    other = gauged(node, pairs, last)
    table = Table(other.pairs)
    messages, total = forward_scan(other.node, table, other.pairs.tensors)
    messages = Forward(messages.log_mass, messages.offset + other.offset)
    return Summed(other.node, other.pairs, table, messages, total, other.left_out)


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


def forward_messages(node: Tensor, pairs: Potential, last: Tensor) -> Forward:
    """Forward messages from scores `node [T, B, N]` and a flat potential; `last [B]` is each last position."""
    if len(node) == 1:
        return _normalise(node)
    if suits_log_steps(node.shape[1], node.shape[2], pairs):
        return fused_messages(
            node.transpose(0, 1), pairs, last, lambda x, pairs: forward_messages(x.transpose(0, 1), pairs, last)
        )
    products = summed(node, pairs, last)
    if products is None:
        log_mass, offset = log_space_scan(node.double(), pairs.to(torch.float64))
    else:
        log_mass, offset = products.messages
        log_mass = log_mass if products.left_out is None else log_mass + products.left_out
    return Forward(log_mass.to(node.dtype), offset)


def log_partition(node: Tensor, pairs: Potential, last: Tensor) -> Tensor:
    """Log-partition `[B]` in float64, from scores `node [B, T, N]`; other arguments as of `forward_messages`."""
    batch, length, n = node.shape
    if length > 1 and suits_log_steps(batch, n, pairs):
        return fused_log_partition(node, pairs, last, lambda node, pairs: log_partition(node, pairs, last))
    return final_log_sum(forward_messages(node.transpose(0, 1).contiguous(), pairs, last), last)


def in_range(node: Tensor, table: Products, result: Forward, total: Tensor, last: Tensor) -> bool:
    """Whether underflow in the products changed the sum by no more than rounding."""
    inside = torch.arange(len(node), device=node.device)[:, None, None] <= last[:, None]
    suspect = (total < table.floor) & (node > -math.inf) & inside
    if not table.anywhere(suspect):
        return True
    reachable, batch = table.reach(node > -math.inf), torch.arange(len(last), device=last.device)
    possible = table.highest(reachable[last, batch].to(node.dtype)) > 0
    if not table.anywhere(suspect & reachable & possible[:, None]):  # minus infinity is right: no path leads there
        return True
    # Underflow makes the result too low, a floor under every sum makes it too high. Do the two agree?
    high = raised_sum(node, table, reachable, last)
    low = table.summed(result.log_mass[last, batch].exp()).log().double() + result.offset[last, batch]
    # Both are rounded: their steps in this dtype, and their offsets in float64.
    rounding = 16 * (torch.finfo(node.dtype).eps + torch.finfo(torch.float64).eps * high.abs())
    agree = (high - low <= rounding) | (high == -math.inf)
    return bool(agree.all())


def final_log_sum(messages: Forward, last: Tensor) -> Tensor:
    """Log-partition `[B]` in float64: the sum of the messages at each sequence's last position."""
    batch = torch.arange(len(last), device=last.device)
    return log_sum_exp(messages.log_mass[last, batch], -1).double() + messages.offset[last, batch]


def log_space_scan(
    node: Tensor, pairs: Potential, step: LogStep | None = None, normalise: Normalise | None = None
) -> Forward:
    """Forward messages without products: accurate for scores of any size, but many times slower.

    `step` and `normalise` are the operations over all states, for callers whose states are on several devices.
    """
    step, normalise = step or log_space_step, normalise or _normalise
    messages = [normalise(node[:1])]
    for t in range(1, len(node)):
        before = messages[-1]
        entering = step(before.log_mass[0], pairs.at_step(t - 1))
        after = normalise((node[t] + entering)[None])
        messages.append(Forward(after.log_mass, before.offset + after.offset))
    return Forward(torch.cat([m.log_mass for m in messages]), torch.cat([m.offset for m in messages]))


def _normalise(alpha: Tensor) -> Forward:
    highest = finite(alpha.detach().amax(-1))
    return Forward(alpha - highest[..., None], highest.double())


def log_space_step(alpha: Tensor, pairs: Potential) -> Tensor:
    """`logsumexp_i(alpha [B, i] + scores [G, i, j])`."""
    groups = pairs.lead[0]
    sums = pairs.into(alpha.reshape(groups, len(alpha) // max(1, groups), alpha.shape[-1]), log_sum_exp)
    return sums.reshape(len(alpha), sums.shape[-1])
