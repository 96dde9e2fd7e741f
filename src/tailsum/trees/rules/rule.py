"""Scores of a grammar's binary rules, head -> left right, and what is computed with them.

Heads are nonterminals `0 .. N-1`. Children are nonterminals or preterminals, numbered together: nonterminal i is child i,
preterminal p is child `N + p`. A rule of all states stands for scores `[*lead, N, N+P, N+P]` (head, left, right); `lead`
broadcasts against the batch. In a restricted grammar every span has states of its own, and so do its rules: `span_rule.py`.

A rule owns its algorithms: the inside chart, how trees are read from it, and how landmarks look ahead. For these the
leading dimensions are one, `[G, ...]`: G is 1 where all sentences share the rules and B where each has its own.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.numerics.charts import Watch, fill_chart, keep
from tailsum.numerics.check import check_device, check_scores
from tailsum.numerics.noise import Choose
from tailsum.numerics.reduce import LogProduct, Reduce
from tailsum.scores.base import Scores
from tailsum.scores.potential import Potential
from tailsum.sketch.sweep import Sweep
from tailsum.trees.reader import Reader

Kind = tuple[bool, bool]  # whether the left and the right child are leaves (preterminals)
Role = Literal["head", "left", "right"]


class Rule(Scores):
    """Scores of rules, over all states or over the kept ones of each span."""

    n_heads: int
    n_children: int
    trailing: int  # how many dimensions its tensors have after the leading ones
    by_span = False  # whether every span has states of its own

    @property
    @abstractmethod
    def lead(self) -> torch.Size:
        """What the scores vary with, beside spans and states."""

    @abstractmethod
    def map(self, change: Callable[[Tensor], Tensor]) -> "Rule": ...

    @abstractmethod
    def tabled(self) -> "Rule": ...

    def evaluated(self) -> "Rule":
        return self

    def centred(self) -> "Rule":
        """The same rules but for a constant: every tree of a sentence has the same number of them."""
        return self

    @abstractmethod
    def at_spans(self, index: Int[Tensor, "*lead T T k"]) -> "Rule":
        """The rules between the given states of every span: nonterminals, or preterminals where it has one position."""

    @abstractmethod
    def contract(
        self, width: int, left: Sequence[Tensor], right: Sequence[Tensor], reduce: Reduce
    ) -> Float[Tensor, "B n heads"]:
        """What the heads of spans of one width get from their children, `[B, n, states]` for each split."""

    @abstractmethod
    def children_of(
        self,
        spans: tuple[Tensor, Tensor, Tensor],
        head: Int[Tensor, " r"],
        left: Float[Tensor, "r T c"],
        right: Float[Tensor, "r T c"],
        choose: Choose,
        reduce: Reduce,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The split and the two children of each head, by `choose(logits)`.

        `spans` are the sentence, the first and the last position of each row; `left` and `right` are the inside scores of
        the children by the last position of the left one.
        """

    @abstractmethod
    def reader(self, chart: list[Tensor], length: Tensor, choose: Choose, reduce: Reduce) -> Reader:
        """How to read trees from a chart."""

    @abstractmethod
    def sweep(self, spans: Float[Tensor, "B T T n"], length: Int[Tensor, " B"], batch: torch.Size) -> Sweep:
        """Lookahead over the spans of sentences with these scores of their states."""

    @abstractmethod
    def counts(
        self, found: Sequence[Tensor], states: Int[Tensor, "*batch T T n"]
    ) -> Float[Tensor, "*batch heads children children"]:
        """How often each rule is expected, from the gradients `found` in the tables of these rules."""

    def check(self, device: torch.device) -> None:
        """A ValueError unless the scores are sound, and on the given device."""
        for tensor in self.tensors:
            check_device("rule", tensor, device)
            check_scores("rule", tensor)

    def to(self, dtype: torch.dtype) -> "Rule":
        """The rules with scores of the given type."""
        return self.map(lambda x: x.to(dtype))

    def flat(self, batch: torch.Size) -> "Rule":
        """The rules with their leading dimensions as one: of size 1 where all sentences share them."""

        def flat(x: Tensor) -> Tensor:
            lead, rest = x.shape[: -self.trailing], x.shape[-self.trailing :]
            shape = lead if lead.numel() == 1 and batch.numel() != 1 else batch
            return x.expand(*shape, *rest).reshape(shape.numel(), *rest) if shape else x[None]

        return self.map(flat)

    def children(self, leaf: bool) -> slice:
        """The numbers of the children that are leaves, or of those that are not."""
        return slice(self.n_heads, self.n_children) if leaf else slice(0, self.n_heads)

    def own(self, width: int, entry: Tensor) -> Tensor:
        """Of scores `[.., S]` of the states of spans, those that a span of this width can have."""
        count = self.n_children - self.n_heads if width == 1 else self.n_heads
        return entry if self.by_span else entry[..., :count]

    def chart(self, spans: list[Tensor], reduce: Reduce, watch: Watch = keep) -> list[Tensor]:
        """The inside chart over scores `[B, n, S]` of the spans of each width: leaves first.

        `watch` sees every entry before it is read, and may change it.
        """

        def combine(width: int, left: list[Tensor], right: list[Tensor]) -> Tensor:
            return self.own(width, spans[width - 1]) + self.contract(width, left, right, reduce)

        return fill_chart(self.own(1, spans[0]), combine, watch)


class WholeRule(Rule):
    """Rules over all states."""

    def on(self, device: torch.device) -> "WholeRule":
        """The rules for states numbered on `device`."""
        return self

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
    def contract_pairs(self, pairs: Float[Tensor, "G r pair"], kind: Kind, reduce: Reduce) -> Float[Tensor, "G r N"]:
        """For each head, the reduction over pairs of children of their score and the rule's."""

    def contract(
        self, width: int, left: Sequence[Tensor], right: Sequence[Tensor], reduce: Reduce
    ) -> Float[Tensor, "B n heads"]:
        """The splits of a span are merged by a product before the rules are contracted: T^3 N^2 + T^2 N^3."""
        found = []
        for kind, sizes in _splits(width):
            before = torch.stack([left[size - 1] for size in sizes], -1)
            after = torch.stack([right[size - 1] for size in sizes], -2)
            merged = LogProduct(after, reduce)(before).flatten(-2)  # [B, n, left right]
            rows = merged if len(merged) == math.prod(self.lead) else merged.flatten(0, 1)[None]
            found.append(self.contract_pairs(rows, kind, reduce).reshape(*merged.shape[:2], self.n_heads))
        return reduce(torch.stack(found), 0)

    def children_of(
        self,
        spans: tuple[Tensor, Tensor, Tensor],
        head: Int[Tensor, " r"],
        left: Float[Tensor, "r T c"],
        right: Float[Tensor, "r T c"],
        choose: Choose,
        reduce: Reduce,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """First the pair of children, the splits merged; then the split."""
        pairs = LogProduct(right, reduce)(left.mT) + self.rows(spans[0], head.clamp(max=self.n_heads - 1))
        pick = choose(pairs.flatten(1))
        one, other = pick // self.n_children, pick % self.n_children
        ways = left.take_along_dim(one[:, None, None], -1) + right.take_along_dim(other[:, None, None], -1)
        return choose(ways[..., 0]), one, other

    def counts(
        self, found: Sequence[Tensor], states: Int[Tensor, "*batch T T n"]
    ) -> Float[Tensor, "*batch heads children children"]:
        return found[0]


def _splits(width: int) -> list[tuple[Kind, list[int]]]:
    """The sizes of the left child, sorted by which of the two children are leaves."""
    kinds: dict[Kind, list[int]] = {}
    for size in range(1, width):
        kinds.setdefault((size == 1, width - size == 1), []).append(size)
    return list(kinds.items())


def of_sentences(chart: Sequence[Tensor], length: Tensor, reduce: Reduce) -> Tensor:
    """The reduction over all trees of each sentence, `[B]`; minus infinity for a single word, which has none."""
    never = torch.full_like(chart[0][:, 0, 0], -math.inf)
    totals = torch.stack([never, *(reduce(entry[:, 0], -1) for entry in chart[1:])])
    return totals.gather(0, length[None] - 1)[0]
