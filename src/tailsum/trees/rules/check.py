"""The check of the `rule` argument of a grammar."""

import torch
from torch import Tensor

from tailsum.trees.rules.dense import DenseRule
from tailsum.trees.rules.whole_rule import WholeRule


def check_rule(given: Tensor | WholeRule, n_heads: int, n_leaves: int, device: torch.device) -> WholeRule:
    """Rules of N nonterminals over N + P children, on the right device and with valid scores."""
    size = n_heads + n_leaves
    if isinstance(given, Tensor):
        if given.dim() < 3 or given.shape[-3:] != (n_heads, size, size):
            raise ValueError(
                f"rule must be [*batch, N, N+P, N+P] = [..., {n_heads}, {size}, {size}], as root and emission have: "
                f"got {list(given.shape)}"
            )
        given = DenseRule(given)
    if not isinstance(given, WholeRule):
        raise ValueError(
            f"rule must be a tensor, a LowRankRule, a FactoredRule or a ScoredRule: got {type(given).__name__}"
        )
    if (given.n_heads, given.n_children) != (n_heads, size):
        raise ValueError(
            f"rule must have N = {n_heads} heads and N+P = {size} children, as root and emission have: "
            f"got {given.n_heads} and {given.n_children}"
        )
    given.check(device)
    return given
