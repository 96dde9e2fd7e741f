"""The best path by kernels, on a GPU. Chosen for a table, or for factors that fit the tiles of kernels."""

import math

import torch
from torch import Tensor

from tailsum.chains.plan import takes_log_kernels
from tailsum.chains.ways.best_steps import less_highest
from tailsum.scores.potential import Potential


def best_path_by_kernels(node: Tensor, pairs: Potential, last: Tensor) -> Tensor:
    """The best path `[B, T]`; arguments as of `best_paths`."""
    from tailsum.numerics.fused.log_steps import enter  # noqa: PLC0415
    from tailsum.numerics.fused.paths import best_messages, walk  # noqa: PLC0415
    from tailsum.numerics.fused.scores import Pairs  # noqa: PLC0415

    batch, length, n = node.shape
    if takes_log_kernels(batch, length, n, pairs):
        table = Pairs(pairs.tensors)
        best = enter(less_highest(node).transpose(0, 1), table, last, maximum=True).alpha
    else:
        table = Pairs(
            pairs.within(1).tensors
        )  # six times faster than factors, which make every score anew at each step
        best = best_messages(less_highest(node), table)
    possible = (best[last, torch.arange(batch, device=last.device)] > -math.inf).any(-1)
    return torch.where(possible[:, None], walk(best, table, last), -1)[0]
