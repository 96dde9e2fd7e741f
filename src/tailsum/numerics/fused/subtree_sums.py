"""Inside and outside sums of all subtrees, for sweeps: the chart of `subtree_chart.py`, without gradients."""

from torch import Tensor

from tailsum.numerics.fused.kernel import Kept
from tailsum.numerics.fused.subtree_chart import inside_sums, outside_sums, under_roots


def forward(
    nodes: Tensor, arcs: Tensor, pairs: Tensor, *, lengths: Tensor, multiroot: bool
) -> tuple[tuple[Tensor, Tensor, Tensor], Kept]:
    """Inside and outside log sums by first word, last word and head, and outside sums of subtrees under a root."""
    length = nodes.shape[1]
    inside = inside_sums(nodes, arcs, pairs if pairs.dim() > 2 else pairs.expand(1, length, length, -1, -1))
    _, free = under_roots(inside, lengths, multiroot)
    return (inside.trees, outside_sums(inside, free).outside, free), ()
