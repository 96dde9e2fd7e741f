"""Scores of a grammar's binary rules, head -> left right: as a table, as low-rank or trilinear factors, or as a function.

Heads are nonterminals `0 .. N-1`. Children are nonterminals or preterminals, numbered together: nonterminal i is child i,
preterminal p is child `N + p`. A rule stands for scores `[*lead, N, N+P, N+P]` (head, left, right); `lead` broadcasts
against the batch.

Inside a model the leading dimensions are one, `[G, ...]`: G is 1 where all sentences share the rules and B where each has
its own. A model of all states sums its chart by `chart`; a restricted one has states of its own at every span, and so do
its rules: see `span_rule.py`. Rules of factors are in `factor_rule.py`, of any function in `scored_rule.py`.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.numerics.charts import fill_chart
from tailsum.numerics.reduce import LogProduct, Reduce
from tailsum.numerics.tensors import as_values, finite, largest, scaled, take
from tailsum.scores.base import Scores
from tailsum.scores.potential import Dense, Potential

Kind = tuple[bool, bool]  # whether the left and the right child are leaves (preterminals)
Role = Literal["head", "left", "right"]


class Rule(Scores):
    """Scores of rules over all states."""

    n_heads: int
    n_children: int

    @property
    @abstractmethod
    def lead(self) -> torch.Size:
        """What the scores vary with, beside the three states."""

    @abstractmethod
    def block(self) -> Float[Tensor, "*lead N C C"]:
        """The whole table."""

    @abstractmethod
    def at(
        self, head: Int[Tensor, "*lead m"], left: Int[Tensor, "*lead m"], right: Int[Tensor, "*lead m"]
    ) -> Float[Tensor, "*lead m"]:
        """Scores of single rules."""

    @abstractmethod
    def between(
        self, head: Int[Tensor, "G *lead a"], left: Int[Tensor, "G *lead b"], right: Int[Tensor, "G *lead c"]
    ) -> Float[Tensor, "G *lead a b c"]:
        """Scores of all given heads with all given left and right children."""

    @abstractmethod
    def fan(self, role: Role, first: Int[Tensor, "G m"], second: Int[Tensor, "G m"], rest: slice) -> Potential:
        """Scores from m pairs of two of a rule's states, in the order of the rule, to all states `rest` in the third."""

    @abstractmethod
    def rows(self, batch: Int[Tensor, " r"], head: Int[Tensor, " r"]) -> Float[Tensor, "r C C"]:
        """All rules of one head, of sentence `batch`, for each row."""

    @abstractmethod
    def contract(self, pairs: Float[Tensor, "G r pair"], kind: Kind, reduce: Reduce) -> Float[Tensor, "G r N"]:
        """For each head, the sum (or maximum) over pairs of children of their score and the rule's."""

    @abstractmethod
    def map(self, change: Callable[[Tensor], Tensor]) -> "Rule": ...

    def children(self, leaf: bool) -> slice:
        """The numbers of the children that are leaves, or of those that are not."""
        return slice(self.n_heads, self.n_children) if leaf else slice(0, self.n_heads)

    def chart(self, spans: list[Tensor], reduce: Reduce) -> list[Tensor]:
        """The inside chart over scores `[B, n, S]` of the spans of each width: leaves first.

        The splits of a span are merged by a product before the rules are contracted: T^3 N^2 + T^2 N^3.
        """
        n_leaves = self.n_children - self.n_heads

        def combine(width: int, left: list[Tensor], right: list[Tensor]) -> Tensor:
            found = []
            for kind, sizes in _splits(width):
                before = torch.stack([left[size - 1] for size in sizes], -1)
                after = torch.stack([right[size - 1] for size in sizes], -2)
                merged = LogProduct(after, reduce)(before).flatten(-2)  # [B, n, left right]
                rows = merged if len(merged) == math.prod(self.lead) else merged.flatten(0, 1)[None]
                found.append(self.contract(rows, kind, reduce).reshape(*merged.shape[:2], self.n_heads))
            return spans[width - 1][..., : self.n_heads] + reduce(torch.stack(found), 0)

        return fill_chart(spans[0][..., :n_leaves], combine)

    def scaled(self, factor: Float[Tensor, ""] | float) -> "Rule":
        return DenseRule(scaled(self.block(), factor))

    def plus(self, other: "Rule") -> "Rule":
        return DenseRule(self.block() + other.block())

    def finite(self) -> "Rule":
        return DenseRule(as_values(self.block()))

    def forbidden(self, dtype: torch.dtype) -> "Rule":
        return DenseRule((self.block() == -math.inf).to(dtype))

    def centred(self) -> "Rule":
        """The same rules but for a constant: every tree of a sentence has the same number of them."""
        return self

    @staticmethod
    def table(scores: Tensor) -> "DenseRule":
        """Rules with the given table of scores."""
        return DenseRule(scores)


def _splits(width: int) -> list[tuple[Kind, list[int]]]:
    """The sizes of the left child, sorted by which of the two children are leaves."""
    kinds: dict[Kind, list[int]] = {}
    for size in range(1, width):
        kinds.setdefault((size == 1, width - size == 1), []).append(size)
    return list(kinds.items())


class DenseRule(Rule):
    """A table of scores `[*lead, N, N+P, N+P]` (head, left, right)."""

    def __init__(self, scores: Float[Tensor, "*lead N C C"]) -> None:
        if scores.dim() < 3 or scores.shape[-2] != scores.shape[-1] or 0 in scores.shape[-3:]:
            raise ValueError(f"scores of rules must be [*lead, N, N+P, N+P]: got {list(scores.shape)}")
        self.scores = scores
        self.n_heads, self.n_children = scores.shape[-3:-1]
        self._products: dict[tuple[Kind, Reduce], LogProduct] = {}

    @property
    def lead(self) -> torch.Size:
        return self.scores.shape[:-3]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.scores,)

    def map(self, change: Callable[[Tensor], Tensor]) -> "DenseRule":
        return DenseRule(change(self.scores))

    def block(self) -> Float[Tensor, "*lead N C C"]:
        return self.scores

    def at(
        self, head: Int[Tensor, "*lead m"], left: Int[Tensor, "*lead m"], right: Int[Tensor, "*lead m"]
    ) -> Float[Tensor, "*lead m"]:
        flat = (head * self.n_children + left) * self.n_children + right
        return take(self.scores.flatten(-3)[..., None], flat)[..., 0]

    def between(
        self, head: Int[Tensor, "G *lead a"], left: Int[Tensor, "G *lead b"], right: Int[Tensor, "G *lead c"]
    ) -> Float[Tensor, "G *lead a b c"]:
        triples = (head[..., :, None, None], left[..., None, :, None], right[..., None, None, :])
        shape = torch.broadcast_shapes(*(x.shape for x in triples))
        return self.at(*(x.expand(shape).reshape(len(head), -1) for x in triples)).reshape(shape)

    def fan(self, role: Role, first: Int[Tensor, "G m"], second: Int[Tensor, "G m"], rest: slice) -> Potential:
        order = {"head": (1, 2, 0), "left": (0, 2, 1), "right": (0, 1, 2)}[role]
        table = self.scores.movedim([-3 + i for i in order], [-3, -2, -1])[..., rest]
        rows = first * table.shape[-2] + second
        return Dense(take(table.flatten(-3, -2), rows))

    def rows(self, batch: Int[Tensor, " r"], head: Int[Tensor, " r"]) -> Float[Tensor, "r C C"]:
        return self.scores[batch if len(self.scores) > 1 else torch.zeros_like(batch), head]

    def contract(self, pairs: Float[Tensor, "G r pair"], kind: Kind, reduce: Reduce) -> Float[Tensor, "G r N"]:
        if (kind, reduce) not in self._products:
            part = self.scores[..., self.children(kind[0]), self.children(kind[1])]
            self._products[kind, reduce] = LogProduct(part.flatten(-2).mT, reduce)
        return self._products[kind, reduce](pairs)

    def centred(self) -> "DenseRule":
        return DenseRule(self.scores - finite(self.scores.detach().amax((-3, -2, -1), keepdim=True)))

    def bound(self) -> float:
        return largest(self.scores)
