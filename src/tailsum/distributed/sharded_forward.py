"""The log-partition of a chain whose states are on several ranks: `chains/forward.py` with a table in slices."""

import math

import torch
from torch import Tensor

from tailsum.chains.messages import Forward
from tailsum.chains.ways.log_steps import log_space_scan, log_space_step
from tailsum.chains.ways.products import in_range
from tailsum.chains.ways.scan import forward_scan
from tailsum.distributed.collectives import from_rank, summed, to_rank
from tailsum.distributed.sharded_table import ShardedTable
from tailsum.distributed.shards import Shards
from tailsum.numerics.reduce import log_or_never
from tailsum.numerics.tensors import finite
from tailsum.scores.potential import Potential


def sharded_log_sum(node: Tensor, pairs: Potential, last: Tensor, shards: Shards) -> Tensor:
    """The log-partition `[B]` in float64, on every rank, from this rank's scores `node [T, B, n]` and flat `pairs`.

    Each rank gets the gradient in its scores, if every rank computes the same loss from the result.
    """
    messages = _messages(node, pairs, last, shards)
    batch = torch.arange(len(last), device=last.device)
    mass = messages.log_mass[last, batch].exp().sum(-1)  # the largest entry on any rank is one
    return log_or_never(summed(shards, mass)).double() + messages.offset[last, batch]


def _messages(node: Tensor, pairs: Potential, last: Tensor, shards: Shards) -> Forward:
    if len(node) == 1:
        return _normalise(node, shards)
    table = ShardedTable(pairs, shards)
    result, total = forward_scan(node, table, pairs.tensors)
    if in_range(node.detach(), table, result, total, last):
        return result
    del table, result, total
    if node.dtype == torch.float32:
        wide = _messages(node.double(), pairs.to(torch.float64), last, shards)
        return Forward(wide.log_mass.to(node.dtype), wide.offset)
    return log_space_scan(
        node, pairs, lambda alpha, here: _log_space_step(alpha, here, shards), lambda alpha: _normalise(alpha, shards)
    )


def _normalise(alpha: Tensor, shards: Shards) -> Forward:
    highest = finite(shards.highest(alpha.detach()))
    return Forward(alpha - highest[..., None], highest.double())


def _log_space_step(alpha: Tensor, pairs: Potential, shards: Shards) -> Tensor:
    """`logsumexp_i(alpha [B, i] + scores [G, i, j])` over the states i of all ranks, for the states j of this one."""
    entering = torch.zeros_like(alpha)
    for p in shards.filled:
        rows, whole = pairs.parts()
        if whole:
            block = pairs.with_tensors((*rows, *(from_rank(shards, p, x, -2) for x in whole)))
        else:
            block = pairs.with_tensors([x[..., shards.columns(p)] for x in rows])
        part = log_space_step(alpha, block) if alpha.shape[-1] else _nothing(alpha, block.tensors[-1], shards.sizes[p])
        highest = finite(shards.highest(part.detach()[..., None]))
        total = to_rank(shards, p, (part - highest).exp(), -1)
        # On the other ranks add the zeros, so that they take part in the exchange of gradients.
        entering = entering + (log_or_never(total) + highest if p == shards.rank else total)
    return entering


def _nothing(alpha: Tensor, used: Tensor, size: int) -> Tensor:
    """The sum over no states, minus infinity; it depends on the same tensors as the sums on other ranks."""
    return (0.0 * (alpha.sum() + used.sum()) - math.inf).expand(len(alpha), size)
