"""Sums over projective dependency trees whose words have states, by plain torch or by kernels.

Scores are those of states `[B, T, K]`, arcs `[B, T, T]` (head, child; roots on the diagonal), and pairs of states `[K, K]` (of
the head, of the child) that all arcs share, or `[G, T, T, K, K]` for each arc.
"""

from typing import Any

import torch
from torch import Tensor

from tailsum.dependencies.projective import Charts, Halves, attach_by, roots, stateful
from tailsum.numerics.fused.kernel import Example, Kernel
from tailsum.numerics.reduce import Reduce, highest, log_sum_exp

_LARGEST = 2**31  # entries of a chart
_MOST_STATES = 1024  # of a word: beyond, products of tables are faster than sums of each pair's exponential


def takes(nodes: Tensor, *_: Tensor, **__: Any) -> bool:
    """Whether kernels take scores of this size."""
    batch, length, states = nodes.shape
    return 0 < batch * length**3 * states < _LARGEST and states <= _MOST_STATES


def tree_example(batch: int, length: int, states: int, own: int, multiroot: int = 0, **more: Any) -> Example:
    """Random scores; `own` is the number of tables of pairs, zero for one that all arcs share."""
    pairs = torch.randn(own, length, length, states, states) if own else torch.randn(states, states)
    settings = {"lengths": torch.randint(1, length + 1, (batch,)), "multiroot": bool(multiroot)}
    return Example((torch.randn(batch, length, states), torch.randn(batch, length, length), pairs), settings | more)


SIZES = (
    {"batch": 2, "length": 3, "states": 3, "own": 0},
    {"batch": 2, "length": 4, "states": 2, "own": 2, "multiroot": 1},
    {"batch": 2, "length": 3, "states": 2, "own": 1},
    {"batch": 1, "length": 2, "states": 1, "own": 0, "multiroot": 1},
)
LARGE = {"batch": 4, "length": 20, "states": 100, "own": 0}


def _halves(nodes: Tensor, arc: Tensor, pairs: Tensor, multiroot: bool, reduce: Reduce) -> tuple[Halves, list[Tensor]]:
    halves = stateful(nodes, attach_by(arc, pairs, reduce), reduce)
    return halves, roots(halves, nodes, arc.diagonal(dim1=1, dim2=2), multiroot, reduce)


def _total(
    nodes: Tensor, arc: Tensor, pairs: Tensor, lengths: Tensor, multiroot: bool, reduce: Reduce = log_sum_exp
) -> Tensor:
    _, before = _halves(nodes, arc, pairs, multiroot, reduce)
    return torch.stack(before).gather(0, lengths[None] - 1)[0]


log_tree_sum = Kernel("subtrees", _total, tree_example, SIZES, LARGE, takes)


def tree_total(nodes: Tensor, arc: Tensor, pairs: Tensor, lengths: Tensor, multiroot: bool, reduce: Reduce) -> Tensor:
    """The reduction `[B]` over all trees of the first `lengths [B]` words."""
    if reduce is log_sum_exp:
        return log_tree_sum(nodes, arc, pairs, lengths=lengths, multiroot=multiroot)
    return _total(nodes, arc, pairs, lengths, multiroot, reduce)


def _half_sums(
    nodes: Tensor, arc: Tensor, pairs: Tensor, multiroot: bool, summed: bool
) -> tuple[Tensor, Tensor, Tensor]:
    (left, right), before = _halves(nodes, arc, pairs, multiroot, log_sum_exp if summed else highest)
    return left, right, torch.stack(before, 1)


def _half_example(summed: int, **sizes: int) -> Example:
    inputs, settings = tree_example(**sizes, summed=bool(summed))
    return Example(inputs, {name: settings[name] for name in ("multiroot", "summed")})


half_sums = Kernel(
    "subtree_halves",
    _half_sums,
    _half_example,
    tuple({**sizes, "summed": number % 2} for number, sizes in enumerate(SIZES)),
    {**LARGE, "summed": 0},
    takes,
)


def tree_charts(nodes: Tensor, arc: Tensor, pairs: Tensor, multiroot: bool, reduce: Reduce) -> Charts:
    """Charts to read trees from, without gradients; the reduction is a sum or the maximum."""
    left, right, before = half_sums(nodes, arc, pairs, multiroot=multiroot, summed=reduce is log_sum_exp)
    return Charts(arc, arc.diagonal(dim1=1, dim2=2), nodes, pairs, Halves(left, right), list(before.unbind(1)))
