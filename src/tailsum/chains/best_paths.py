"""The best paths of a chain (maxima in place of sums), by the first of the planner's ways. Nothing here records gradients.

Finite masks count as minus infinity. Shapes are as in `Products`: pair scores `[G, S, N, N]` or their factors. Paths are
`[k, B, T]`, -1 after the last position of a sequence, and throughout where there is no path.
"""

import torch
from torch import Tensor

from tailsum.chains import plan
from tailsum.chains.ways.best_kernels import best_path_by_kernels
from tailsum.chains.ways.best_steps import best_path_by_steps
from tailsum.chains.ways.packed_paths import packed_path
from tailsum.chains.ways.ranked_paths import ranked_paths
from tailsum.scores.potential import Potential


@torch.no_grad()
def best_paths(node: Tensor, pairs: Potential, last: Tensor, k: int) -> Tensor:
    """The k best paths of each sequence, best first, to its last position `last [B]`; fewer if N^T is less than k.

    `node [B, T, N]` are the scores of states, and `pairs` a flat potential.
    """
    pairs = pairs.unmasked()
    ways = {"kernels": best_path_by_kernels, "whole numbers": packed_path, "steps": best_path_by_steps}
    for way in plan.best_paths(node, pairs, k):
        paths = ranked_paths(node, pairs, last, k) if way == "ranked" else ways[way](node, pairs, last)
        if paths is not None:
            return paths if way == "ranked" else paths[None]
    raise AssertionError
