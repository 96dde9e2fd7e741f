"""The same chain with other scores, for which no message underflows, however far apart the chain's own scores are.

For any numbers `c_t(i)`, the scores

    pair'_t(i, j) = c_t(i) + pair_t(i, j) + node_{t+1}(j) - c_{t+1}(j) - gain_{t+1}

give every path its score less the sum of the gains. If c_t are the forward messages in log space, less their highest, the
new messages are zero wherever a path arrives, and products lose nothing. At the last position c is zero, so that the final
messages are those of the chain itself. The numbers c are constants: derivatives of every order are those of the new chain.
This needs a table for each step of each sequence, so it is only for chains whose sums fail without it.

Chosen where products fail in float64, or will, as scores are hundreds of nats apart.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from tailsum.chains.messages import Forward, Summed
from tailsum.chains.ways.scan import forward_scan
from tailsum.numerics.tensors import exponentials, finite
from tailsum.scores.potential import Dense, Potential
from tailsum.scores.table import Table

LOWEST = -1e15  # of the numbers c: lower ones would have no digits left beside the scores of pairs


class Gauged(NamedTuple):
    """Scores as of `Products`, and what to add to their messages: `left_out [T, B, N]` and `offset [T, B]`."""

    node: Tensor
    pairs: Dense
    left_out: Tensor
    offset: Tensor


def in_another_gauge(node: Tensor, pairs: Potential, last: Tensor) -> Summed:
    """The messages; arguments as of `forward.summed`."""
    other = gauged(node, pairs, last)
    table = Table(other.pairs)
    messages, total, _ = forward_scan(other.node, table, other.pairs.tensors)
    messages = Forward(messages.log_mass, messages.offset + other.offset)
    return Summed(other.node, other.pairs, table, messages, total, other.left_out)


def gauged(node: Tensor, pairs: Potential, last: Tensor) -> Gauged:
    """The chain with scores `node [T, B, N]` and a flat potential, in another gauge."""
    length = len(node)
    scores = pairs.block()
    log_mass, gain = _log_messages(node.detach(), scores.detach())
    inside = torch.arange(length, device=node.device)[:, None, None] < last[:, None]
    left_out = torch.where(inside, log_mass, 0.0)
    nodes = node - finite(left_out) - gain[..., None]
    moved = scores + left_out[:-1].transpose(0, 1)[..., None] + nodes[1:].transpose(0, 1)[..., None, :]
    return Gauged(F.pad(nodes[:1], (0, 0, 0, 0, 0, length - 1)), Dense(moved), left_out, gain.cumsum(0))


@torch.no_grad()
def _log_messages(node: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Forward messages less their highest, `[T, B, N]`, and by how much it rose, `[T, B]`."""
    steps = scores.expand(-1, max(1, len(node) - 1), -1, -1).unbind(1)
    log_mass, gain = torch.empty_like(node), torch.empty_like(node[..., 0])
    message = node[0]
    for t in range(len(node)):
        if t > 0:  # logsumexp by hand, which takes half the time of torch's
            ways = log_mass[t - 1, :, :, None] + steps[t - 1]
            highest = finite(ways.amax(1))
            message = exponentials(ways.sub_(highest[:, None])).sum(1).log_().add_(highest).add_(node[t])
        gain[t] = finite(message.amax(-1))
        torch.sub(message, gain[t, :, None], out=log_mass[t])
    return torch.where(log_mass > -math.inf, log_mass.clamp_(min=LOWEST), -math.inf), gain
