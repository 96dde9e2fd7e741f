"""The log-partition of a chain whose states are on several ranks: `chains/forward.py` with a table in slices."""

import torch
from torch import Tensor

from tailsum.chains.messages import Forward
from tailsum.chains.ways.log_steps import log_space_scan
from tailsum.chains.ways.products import in_range
from tailsum.chains.ways.scan import forward_scan
from tailsum.distributed.collectives import summed
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
    table = pairs.products()
    result, total = forward_scan(node, table, pairs.tensors)
    if in_range(node.detach(), table, result, total, last):
        return result
    del table, result, total
    if node.dtype == torch.float32:
        wide = _messages(node.double(), pairs.to(torch.float64), last, shards)
        return Forward(wide.log_mass.to(node.dtype), wide.offset)
    return log_space_scan(node, pairs, normalise=lambda alpha: _normalise(alpha, shards))


def _normalise(alpha: Tensor, shards: Shards) -> Forward:
    highest = finite(shards.highest(alpha.detach()))
    return Forward(alpha - highest[..., None], highest.double())
