"""Rules scored by any function, and the check of what users give as rules. Conventions are those of `rule.py`."""

import copy
import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.numerics.check import check_device, check_scores
from tailsum.scores.potential import Dense, Potential
from tailsum.trees.rules.factors import FactoredRule
from tailsum.trees.rules.rule import DenseRule, Role, Rule


class ScoredRule:
    """Rules scored by any differentiable function of three index tensors, for instance a network over embeddings.

    `function(head, left, right)` gets tensors of state numbers that broadcast together (heads `0 .. N-1`, children
    `0 .. N+P-1`) and gives one score for each triple. Exact inference evaluates all of them; a sketch those of the states
    it keeps.

    >>> states = torch.randn(50, 8)
    >>> rule = ScoredRule(lambda a, b, c: -(states[a] - states[b] * states[c]).square().sum(-1), 20, 30)
    >>> rule.block().shape
    torch.Size([20, 50, 50])
    """

    def __init__(self, function: Callable[[Tensor, Tensor, Tensor], Tensor], n_heads: int, n_leaves: int) -> None:
        if n_heads < 1 or n_leaves < 1:
            raise ValueError(f"n_heads and n_leaves must be at least 1: got {n_heads} and {n_leaves}")
        self.function, self.n_heads, self.n_children = function, n_heads, n_heads + n_leaves
        self.dtype: torch.dtype | None = None  # what the function gives, unless a model asked for another

    def to(self, dtype: torch.dtype) -> "ScoredRule":
        """The rule with scores of the given type."""
        other = copy.copy(self)
        other.dtype = dtype
        return other

    def block(self, device: torch.device | None = None) -> Float[Tensor, "N C C"]:
        """The whole table."""
        heads, children = (torch.arange(n, device=device) for n in (self.n_heads, self.n_children))
        return self.between(heads, children, children)

    def between(
        self, head: Int[Tensor, "*#lead a"], left: Int[Tensor, "*#lead b"], right: Int[Tensor, "*#lead c"]
    ) -> Float[Tensor, "*lead a b c"]:
        """Scores of all given heads with all given left and right children."""
        return self.at(head[..., :, None, None], left[..., None, :, None], right[..., None, None, :])

    def fan(self, role: Role, first: Int[Tensor, "G m"], second: Int[Tensor, "G m"], rest: slice) -> Potential:
        """Scores from m pairs of two of a rule's states, in the order of the rule, to all states `rest` in the third."""
        third = torch.arange(self.n_children, device=first.device)[rest]
        given = [first[..., None], second[..., None]]
        given.insert({"head": 0, "left": 1, "right": 2}[role], third)
        return Dense(self.at(*given))

    def children(self, leaf: bool) -> slice:
        """The numbers of the children that are leaves, or of those that are not."""
        return slice(self.n_heads, self.n_children) if leaf else slice(0, self.n_heads)

    def at(
        self, head: Int[Tensor, "*#shape"], left: Int[Tensor, "*#shape"], right: Int[Tensor, "*#shape"]
    ) -> Float[Tensor, "*shape"]:
        """Scores of triples of states, checked."""
        scores = self.function(head, left, right)
        if not isinstance(scores, Tensor):
            raise ValueError(f"function must give a tensor of scores: got {type(scores).__name__}")
        wanted = torch.broadcast_shapes(head.shape, left.shape, right.shape)
        if not scores.is_floating_point() or scores.shape != wanted:
            raise ValueError(
                f"function must give one floating-point score for each triple, {list(wanted)}: "
                f"got {scores.dtype} {list(scores.shape)}"
            )
        if not (scores < math.inf).all():
            raise ValueError("function gave a score that is NaN or +inf: scores must be finite, or -inf for forbidden")
        return scores if self.dtype is None else scores.to(self.dtype)


def check_rule(
    given: Tensor | Rule | ScoredRule, n_heads: int, n_leaves: int, device: torch.device
) -> Rule | ScoredRule:
    """Rules of N nonterminals over N + P children, on the right device and of sound scores."""
    size = n_heads + n_leaves
    if isinstance(given, Tensor):
        if given.dim() < 3 or given.shape[-3:] != (n_heads, size, size):
            raise ValueError(
                f"rule must be [*batch, N, N+P, N+P] = [..., {n_heads}, {size}, {size}], as root and emission have: "
                f"got {list(given.shape)}"
            )
        given = DenseRule(given)
    if not isinstance(given, (Rule, ScoredRule)):
        raise ValueError(
            f"rule must be a tensor, a LowRankRule, a FactoredRule or a ScoredRule: got {type(given).__name__}"
        )
    if (given.n_heads, given.n_children) != (n_heads, size):
        raise ValueError(
            f"rule must have N = {n_heads} heads and N+P = {size} children, as root and emission have: "
            f"got {given.n_heads} and {given.n_children}"
        )
    for tensor in given.tensors if isinstance(given, Rule) else ():
        check_device("rule", tensor, device)
        check_scores("rule", tensor)
        if isinstance(given, FactoredRule) and not (tensor > -math.inf).all():
            raise ValueError("rule must have finite factors: got -inf")
    return given
