"""Scores of a grammar's binary rules, head -> left right, and the algorithms on them.

Heads are nonterminals `0 .. N-1`. Children are nonterminals or preterminals, numbered together (*rule ids*): nonterminal i is
child i, preterminal p is child `N + p`. `WholeRule` has scores `[*lead, N, N+P, N+P]` (head, left, right) of all states;
`lead` broadcasts against the batch. In a restricted grammar every span has its own states and rules: `SpanRule`.

Each kind of rule has its own inside chart, reader of trees and lookahead, with the leading dimensions flattened to one,
`[G, ...]`: G is 1 where all sentences share the rules and B where each has its own.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.numerics.charts import Watch, by_width, fill_chart, keep
from tailsum.numerics.check import check_device, check_scores
from tailsum.numerics.noise import Choose
from tailsum.numerics.reduce import Reduce
from tailsum.scores.base import Scores
from tailsum.sketch.sweep import Sweep
from tailsum.trees.reader import TreeReader
from tailsum.trees.rules.exact_sweep import ExactSweep, beliefs_by_gradient
from tailsum.trees.rules.grammar_reader import Expansion, GrammarReader


class Norms(NamedTuple):
    """Norms of the states of longer spans (nonterminals) and of single positions (preterminals)."""

    heads: Float[Tensor, "*#lead_span n"]
    leaves: Float[Tensor, "*#lead_span m"]


class Rule(Scores):
    """Scores of rules, over all states or over the kept states of each span."""

    n_heads: int  # of the whole grammar
    n_children: int
    trailing: int  # the number of dimensions after the leading ones
    by_span = False  # whether every span has its own states

    @property
    def after_batch(self) -> int:
        return self.trailing

    @abstractmethod
    def map(self, change: Callable[[Tensor], Tensor]) -> "Rule": ...

    @abstractmethod
    def tabled(self) -> "Rule": ...

    def evaluated(self) -> "Rule":
        return self

    def as_table(self) -> "Rule | None":
        """The rules as a table over all states, where it fits the budget for tables."""
        return None

    def centred(self) -> "Rule":
        return self

    @abstractmethod
    def at_spans(self, index: Int[Tensor, "*lead T T k"]) -> "Rule":
        """The rules between the given states of every span: nonterminals, or preterminals where it has one position."""

    @abstractmethod
    def contract(
        self, width: int, left: Sequence[Tensor], right: Sequence[Tensor], reduce: Reduce
    ) -> Float[Tensor, "B n heads"]:
        """Scores of the heads of spans of one width from their children, `[B, n, states]` for each split."""

    @abstractmethod
    def children_of(self, at: Expansion, choose: Choose, reduce: Reduce) -> tuple[Tensor, Tensor, Tensor]:
        """The split and the two children of the heads of some spans, `[R]` each, by `choose(logits)`."""

    @abstractmethod
    def counts(self, gradients: Sequence[Tensor], states: Int[Tensor, "*batch T T n"]) -> Float[Tensor, "*batch N C C"]:
        """The expected number of uses of each rule, from the gradients in the tables of these rules."""

    def state_norms(self) -> Norms:
        """The L1 norms of the states' vectors; a ValueError where the rules are not made of vectors."""
        raise ValueError("the global proposal needs state embeddings: a FactoredRule or LowRankRule")

    @property
    def lead(self) -> torch.Size:
        """The leading dimensions of the scores, before spans and states."""
        return torch.broadcast_shapes((), *(x.shape[: -self.trailing] for x in self.tensors))

    def check(self, device: torch.device) -> None:
        """A ValueError unless the scores are valid and on the given device."""
        for tensor in self.tensors:
            check_device("rule", tensor, device)
            check_scores("rule", tensor)

    def to(self, dtype: torch.dtype, device: torch.device) -> "Rule":
        """The rules with scores of the given type, for state ids on `device`."""
        return self.map(lambda x: x.to(dtype))

    def flat(self, batch: torch.Size) -> "Rule":
        """The rules with one leading dimension: of size 1 where all sentences share them."""

        def flat(x: Tensor) -> Tensor:
            lead, rest = x.shape[: -self.trailing], x.shape[-self.trailing :]
            shape = lead if lead.numel() == 1 and batch.numel() != 1 else batch
            return x.expand(*shape, *rest).reshape(shape.numel(), *rest) if shape else x[None]

        return self.map(flat)

    def of_width(self, width: int, entry: Tensor) -> Tensor:
        """The scores of the states that spans of this width can have, from `[.., S]`."""
        count = self.n_children - self.n_heads if width == 1 else self.n_heads
        return entry if self.by_span else entry[..., :count]

    def chart(self, spans: list[Tensor], reduce: Reduce, watch: Watch = keep) -> list[Tensor]:
        """The inside chart over scores `[B, n, S]` of the spans of each width, leaves first.

        `watch(width, entry)` returns each entry, possibly changed, before it is used.
        """

        def combine(width: int, left: list[Tensor], right: list[Tensor]) -> Tensor:
            return self.of_width(width, spans[width - 1]) + self.contract(width, left, right, reduce)

        return fill_chart(self.of_width(1, spans[0]), combine, watch)

    def total(self, spans: Float[Tensor, "B T T n"], length: Int[Tensor, " B"], reduce: Reduce) -> Float[Tensor, " B"]:
        """The reduction over all trees of each sentence; minus infinity for a single word, which has none."""
        chart = self.chart(by_width(spans), reduce)
        no_tree = torch.full_like(chart[0][:, 0, 0], -math.inf)
        totals = torch.stack([no_tree, *(reduce(entry[:, 0], -1) for entry in chart[1:])])
        return totals.gather(0, length[None] - 1)[0]

    def reader(self, spans: Float[Tensor, "B T T n"], length: Tensor, choose: Choose, reduce: Reduce) -> TreeReader:
        """A reader of trees from the chart over scores of spans."""
        n_heads = None if self.by_span else self.n_heads
        children_of = partial(self.children_of, reduce=reduce)
        return GrammarReader(self.chart(by_width(spans), reduce), length, n_heads, choose, children_of)

    def sweep(self, spans: Float[Tensor, "B T T n"], length: Int[Tensor, " B"], batch: torch.Size) -> Sweep:
        """Lookahead over the spans of sentences with these scores of their states."""
        with torch.inference_mode(False):
            fixed = self.map(lambda x: x.detach().clone())
        return ExactSweep(fixed.chart, partial(beliefs_by_gradient, fixed.chart), spans, length, batch)
