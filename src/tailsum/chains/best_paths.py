"""The best paths of a chain (maxima in place of sums), by the first of the planner's ways. Nothing here records gradients.

Finite masks count as minus infinity. Shapes are as in `Products`: pair scores `[G, S, N, N]` or their factors. Paths are
`[k, B, T]`, -1 after the last position of a sequence, and throughout where there is no path.
"""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from tailsum.chains import plan, small_chains
from tailsum.chains.ways.best_kernels import best_path_by_kernels
from tailsum.chains.ways.best_steps import best_path_by_steps
from tailsum.chains.ways.packed_paths import packed_path
from tailsum.chains.ways.ranked_paths import ranked_paths
from tailsum.numerics.fused.kernel import Kernel
from tailsum.numerics.tensors import unmasked
from tailsum.scores.potential import Dense, Potential


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


def _small_best_path(node: Tensor, table: Tensor, *, last: Tensor | None = None) -> Tensor:
    return _small_ranked_paths(node, table, k=1, last=last)[0]


def _small_ranked_paths(node: Tensor, table: Tensor, *, k: int, last: Tensor | None = None) -> Tensor:
    scores = unmasked(small_chains.cleaned(node, last))
    paths = best_paths(scores, Dense(table[:, None]), small_chains.last_positions(node, last), k)
    return F.pad(paths, (0, 0, 0, 0, 0, k - len(paths)), value=-1)


small_best_path = Kernel("small_best", _small_best_path, small_chains.example, *small_chains.sized())
small_ranked_paths = Kernel("small_ranked", _small_ranked_paths, small_chains.example, *small_chains.sized(k=5))
