"""The halves of all subtrees, from which trees are read: the chart of `subtree_chart.py`, without gradients."""

import torch
from torch import Tensor

from tailsum.numerics.fused.kernel import Kept
from tailsum.numerics.fused.subtree_chart import inside_sums, under_roots


def forward(
    nodes: Tensor, arcs: Tensor, pairs: Tensor, *, multiroot: bool, summed: bool
) -> tuple[tuple[Tensor, Tensor, Tensor], Kept]:
    """Left and right halves, and sums over all trees of the words up to each `[B, T]`; maxima if not `summed`."""
    inside = inside_sums(nodes, arcs, pairs, summed)
    lengths = nodes.new_full((len(nodes),), nodes.shape[1], dtype=torch.long)
    before, _ = under_roots(inside, lengths, multiroot, summed)
    return (inside.left, inside.right, before[:, 1:]), ()
