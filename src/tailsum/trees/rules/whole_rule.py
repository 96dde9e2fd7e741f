"""Rules over all states."""

import math
from abc import abstractmethod
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.numerics.noise import Choose
from tailsum.numerics.reduce import LogProduct, Reduce
from tailsum.scores.potential import Potential
from tailsum.sketch.sweep import Sweep
from tailsum.trees.rules.grammar_reader import Expansion
from tailsum.trees.rules.pair_sweep import PairSweep
from tailsum.trees.rules.rule import Rule
from tailsum.trees.rules.span_rule import SpanRule, SpanTables, sets_of_width

Kind = tuple[bool, bool]  # whether the left and the right child are leaves (preterminals)
Ids = Int[Tensor, "*lead m"]
Scores = Float[Tensor, "*lead m"]
# Heads, left and right children of n spans with several splits each, and the scores of all rules between them.
Heads = Int[Tensor, "*#lead #n #split a"]
Lefts = Int[Tensor, "*#lead #n #split b"]
Rights = Int[Tensor, "*#lead #n #split c"]
Between = Float[Tensor, "*lead n split a b c"]


class WholeRule(Rule):
    """Scores `[*lead, N, N+P, N+P]` (head, left, right)."""

    def at(self, head: Ids, left: Ids, right: Ids) -> Scores:
        """Scores of single rules."""
        return self.between(*(ids[..., None, None] for ids in (head, left, right)))[..., 0, 0, 0, 0]

    @abstractmethod
    def between(self, head: Heads, left: Lefts, right: Rights) -> Between:
        """Scores of all given heads with all given left and right children."""

    # Rules need the next one only if `sweep` passes messages from pairs, and the others only if charts are not made from
    # a table of the rules (`evaluated`).

    def fan(self, role: int, first: Int[Tensor, "G m"], second: Int[Tensor, "G m"], rest: slice) -> Potential:
        """Scores from m pairs of states in a rule's other two roles, in its order, to the states `rest` in this role."""
        raise NotImplementedError

    def rows(self, batch: Int[Tensor, " r"], head: Int[Tensor, " r"]) -> Float[Tensor, "r C C"]:
        """All rules of one head, of sentence `batch`, for each row."""
        raise NotImplementedError

    def contract_pairs(self, pairs: Float[Tensor, "G r pair"], kind: Kind, reduce: Reduce) -> Float[Tensor, "G r N"]:
        """For each head, the reduction over pairs of children of their score and the rule's."""
        raise NotImplementedError

    def children(self, leaf: bool) -> slice:
        """The ids of the children that are leaves, or of those that are not."""
        return slice(self.n_heads, self.n_children) if leaf else slice(0, self.n_heads)

    def contract(
        self, width: int, left: Sequence[Tensor], right: Sequence[Tensor], reduce: Reduce
    ) -> Float[Tensor, "B n heads"]:
        """Splits are merged by a product before the rules are contracted: T^3 N^2 + T^2 N^3."""
        by_kind = []
        for kind, sizes in splits_by_kind(width).items():
            before = torch.stack([left[size - 1] for size in sizes], -1)
            after = torch.stack([right[size - 1] for size in sizes], -2)
            merged = LogProduct(after, reduce)(before).flatten(-2)  # [B, n, left right]
            rows = merged if len(merged) == math.prod(self.lead) else merged.flatten(0, 1)[None]
            by_kind.append(self.contract_pairs(rows, kind, reduce).reshape(*merged.shape[:2], self.n_heads))
        return reduce(torch.stack(by_kind), 0)

    def children_of(self, at: Expansion, choose: Choose, reduce: Reduce) -> tuple[Tensor, Tensor, Tensor]:
        """First the pair of children, over all splits; then the split."""
        pairs = LogProduct(at.right, reduce)(at.left.mT) + self.rows(at.batch, at.head.clamp(max=self.n_heads - 1))
        pick = choose(pairs.flatten(1))
        left, right = pick // self.n_children, pick % self.n_children
        splits = at.left.take_along_dim(left[:, None, None], -1) + at.right.take_along_dim(right[:, None, None], -1)
        return choose(splits[..., 0]), left, right

    def counts(self, gradients: Sequence[Tensor], states: Int[Tensor, "*batch T T n"]) -> Float[Tensor, "*batch N C C"]:
        return gradients[0]

    def at_spans(self, index: Int[Tensor, "*lead T T k"]) -> SpanRule:
        tables = []
        for width in range(2, index.shape[-2] + 1):
            head, left, right = sets_of_width(index, width, self.n_heads, self.n_children)
            tables.append(self.between(head[..., None, :], left, right))
        return SpanTables(tables, self.n_heads, self.n_children)

    def sweep(self, spans: Float[Tensor, "B T T n"], length: Int[Tensor, " B"], batch: torch.Size) -> Sweep:
        return PairSweep(self.between, self.fan, (self.n_heads, self.n_children), spans, length, batch)


def splits_by_kind(width: int) -> dict[Kind, list[int]]:
    """The sizes of left children in spans of one width, by which children are leaves."""
    kinds: dict[Kind, list[int]] = {}
    for size in range(1, width):
        kinds.setdefault((size == 1, width - size == 1), []).append(size)
    return kinds
