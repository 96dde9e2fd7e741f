"""Forward messages in log space, one step after the other: accurate for scores of any size, but many times slower.

Chosen where products fail in float64 and there is no room for the tables of another gauge.
"""

import torch
from torch import Tensor

from tailsum.chains.messages import Forward, normalised
from tailsum.numerics.reduce import log_sum_exp
from tailsum.scores.potential import Potential


def log_space_scan(node: Tensor, pairs: Potential) -> Forward:
    """Forward messages from scores `node [T, B, N]` and a flat potential."""
    messages = [normalised(node[:1], pairs)]
    for t in range(1, len(node)):
        before = messages[-1]
        entering = log_space_step(before.log_mass[0], pairs.at_step(t - 1))
        after = normalised((node[t] + entering)[None], pairs)
        messages.append(Forward(after.log_mass, before.offset + after.offset))
    return Forward(torch.cat([m.log_mass for m in messages]), torch.cat([m.offset for m in messages]))


def log_space_step(alpha: Tensor, pairs: Potential) -> Tensor:
    """`logsumexp_i(alpha [B, i] + scores [G, i, j])`."""
    groups = pairs.lead[0]
    sums = pairs.into(alpha.reshape(groups, len(alpha) // max(1, groups), alpha.shape[-1]), log_sum_exp)
    return sums.reshape(len(alpha), sums.shape[-1])
