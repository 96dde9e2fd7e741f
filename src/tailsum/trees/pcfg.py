"""Probabilistic context-free grammars, and weighted ones: binary trees with a state at each span, scored by rules.

`score(tree) = root[state of the whole] + sum of rule[parent, left, right] + sum of emission[t, state of leaf t]`

Spans of one position have a preterminal `0 .. P-1`, all others a nonterminal `0 .. N-1`; in the rules the two kinds of
children are numbered together, preterminal p as `N + p`. Positions, spans and `Trees` are as in `SpanTree`. Rules are
binary, so a sentence of one word has no tree: its log-partition is minus infinity.

A sketch keeps K weighted states at every span, chosen independently for each. One set for all spans, or for all
spans of a width, would be biased: a tree has several spans, its weight is the product of theirs, and the mean of a
product is the product of the means only where the factors are independent.
"""

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.numerics.charts import by_width
from tailsum.numerics.check import check_broadcast, check_device, check_floating, check_in_range, check_scores
from tailsum.numerics.noise import Choose
from tailsum.numerics.precision import full_precision
from tailsum.numerics.reduce import Reduce, log_sum_exp
from tailsum.numerics.tensors import working_type
from tailsum.scores.potential import Dense
from tailsum.sketch.sweep import Sweep
from tailsum.structure.base import Terms
from tailsum.structure.check import checked_lengths
from tailsum.trees.grammar_reader import PairReader, RankReader, SpanPairReader
from tailsum.trees.grammar_sweep import GrammarSweep, RankSweep
from tailsum.trees.reader import Reader
from tailsum.trees.rules.factors import LowRankRule
from tailsum.trees.rules.rule import DenseRule, Rule
from tailsum.trees.rules.scored import ScoredRule, check_rule
from tailsum.trees.rules.spans import SpanFactors, SpanRule, SpanTables, at_spans, flattened, sets_of_width
from tailsum.trees.tree_structure import Trees, TreeStructure, children


class PCFG(TreeStructure):
    """A distribution over the trees of a sentence by a grammar of N nonterminals and P preterminals.

    `root [*batch, N]`, `emission [*batch, T, P]`, and `rule`: a tensor `[*batch, N, N+P, N+P]` (head, left, right), or a
    `LowRankRule`, `FactoredRule` or `ScoredRule`. All hold scores: log-probabilities for a probabilistic grammar, whose
    `log_partition()` is then the log-likelihood of the sentence.

    Exact: T^3 N^2 + T^2 N^3; with rules of rank R, T^3 R + T^2 N R. A sketch: T^3 K^3, or T^3 R + T^2 K R.

    >>> zeros = torch.zeros
    >>> grammar = PCFG(zeros(2), zeros(2, 5, 5), zeros(4, 3))
    >>> round(grammar.log_partition().exp().item())  # 5 trees x 2^3 nonterminals x 3^4 preterminals
    3240
    """

    def __init__(
        self,
        root: Float[Tensor, "*#batch N"],
        rule: Float[Tensor, "*#batch N C C"] | Rule | ScoredRule,
        emission: Float[Tensor, "*#batch T P"],
        lengths: Int[Tensor, "*#batch"] | Sequence[int] | None = None,
    ) -> None:
        for name, tensor, least, form in (("root", root, 1, "N"), ("emission", emission, 2, "T, P")):
            if not isinstance(tensor, Tensor) or tensor.dim() < least or 0 in tensor.shape[-least:]:
                got = list(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
                raise ValueError(f"{name} must be [*batch, {form}], none of them zero: got {got}")
        self.device = emission.device
        check_device("root", root, self.device)
        length, self.n_leaves = emission.shape[-2:]
        self.n_heads = root.shape[-1]
        self.node_shape = torch.Size((length, length))
        self.n_states = max(self.n_heads, self.n_leaves)
        rule = check_rule(rule, self.n_heads, self.n_leaves, self.device)
        shape = check_broadcast("root", root.shape[:-1], emission.shape[:-2], "emission's")
        if isinstance(rule, Rule):
            shape = check_broadcast("rule", rule.lead, shape, "that of root and emission,")
        self.batch_shape, self.lengths = checked_lengths(lengths, shape, length, self.device)
        check_floating("emission", emission)
        emission = torch.where(self._inside()[..., None], emission, 0.0)
        check_scores("root", root)
        check_scores("emission", emission)
        self.dtype = working_type(root, emission, *(rule.tensors if isinstance(rule, Rule) else ()))
        self._rule: Rule | ScoredRule | SpanRule = (
            rule.map(lambda x: x.to(self.dtype)) if isinstance(rule, Rule) else rule.to(self.dtype)
        )
        self._root, self._emission = root.to(self.dtype), emission.to(self.dtype)
        self._span: Tensor | None = None  # scores of the kept states of each span, in a sketch

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, {self.n_heads} nonterminals, {self.n_leaves} preterminals)"

    # What the base asks for.

    def node_scores(self) -> Float[Tensor, "*batch T T n"]:
        """Emissions at single positions, the root's scores at the whole sentence, zero at all other spans."""
        if self._span is not None:
            return self._span.expand(*self.batch_shape, *self.node_shape, -1)
        length, size = self.node_shape[0], self.n_states
        emission = F.pad(self._emission, (0, size - self.n_leaves), value=-math.inf)
        root = F.pad(self._root, (0, size - self.n_heads), value=-math.inf)
        inner = F.pad(
            torch.zeros_like(self._root[..., :1]).expand(self._root.shape), (0, size - self.n_heads), value=-math.inf
        )
        position = torch.arange(length, device=self.device)
        last = self._length().reshape(*self.batch_shape, 1, 1) - 1
        whole = (position[:, None] == 0) & (position == last)
        leaf = position[:, None] == position
        spans = torch.where(whole[..., None], root[..., None, None, :], inner[..., None, None, :])
        return torch.where(leaf[..., None], emission[..., :, None, :], spans).expand(*self.batch_shape, -1, -1, -1)

    def terms(self) -> Terms:
        rule = self._rule
        if isinstance(rule, ScoredRule):
            rule = DenseRule(rule.block(self.device))
        return Dense(self.node_scores()), rule

    def _centred(self, terms: Terms) -> Terms:
        (spans,), rule = super()._centred(terms[:1]), cast("Rule | SpanRule", terms[1])
        return spans, rule.centred()

    def _form(self) -> tuple[int, int]:
        return self.n_heads, self.n_leaves

    def log_sum(self, terms: Terms) -> Float[Tensor, "*batch"]:
        chart = self._chart(terms, log_sum_exp)
        never = torch.full_like(chart[0][:, 0, 0], -math.inf)  # of a single word
        totals = torch.stack([never, *(log_sum_exp(entry[:, 0], -1) for entry in chart[1:])])
        return totals.gather(0, self._length()[None] - 1)[0].reshape(self.batch_shape)

    def _chart(self, terms: Terms, reduce: Reduce) -> list[Tensor]:
        """Sums (or maxima) over all trees of each span, by the state of the span."""
        spans, rule = cast("Dense", terms[0]).scores, cast("Rule | SpanRule", terms[1])
        spans = spans.reshape(self.batch_shape.numel(), *spans.shape[-3:])
        return flattened(rule, self.batch_shape).chart(by_width(spans), reduce)

    def _reader(self, terms: Terms, reduce: Reduce, choose: Choose) -> Reader:
        chart, length = self._chart(terms, reduce), self._length()
        rule = flattened(cast("Rule | SpanRule", terms[1]), self.batch_shape)
        kind = rule.kind if isinstance(rule, SpanFactors) else type(rule)
        if kind is LowRankRule and reduce is log_sum_exp:
            return RankReader(chart, rule, length, choose)
        if isinstance(rule, SpanRule):
            return SpanPairReader(chart, rule, length, choose)
        return PairReader(chart, cast("Rule", rule), length, choose, reduce)

    def sweep(self) -> Sweep:
        if isinstance(self._rule, SpanRule):
            raise ValueError("a sketched grammar has no Lookahead: sketch the whole grammar, or give another proposal")
        spans = self.node_scores().reshape(self.batch_shape.numel(), *self.node_shape, self.n_states)
        rule = self._rule if isinstance(self._rule, ScoredRule) else flattened(self._rule, self.batch_shape)
        if isinstance(rule, LowRankRule):
            return RankSweep(self, rule, spans)
        return GrammarSweep(cast("Rule | ScoredRule", rule), spans, self._length(), self.batch_shape)

    def score(self, configuration: Trees) -> Float[Tensor, "*sample_batch"]:
        """The score of given trees, in original states, kept or not: a sketch asks the whole model.

        >>> grammar = PCFG(torch.ones(2), torch.ones(2, 5, 5), torch.ones(4, 3))
        >>> grammar.score(grammar.sample())
        tensor(8.)
        """
        if self.kept is not None:
            return self.whole.score(configuration)
        tree = self._checked(configuration)
        spans, states = tree
        leaf = spans[..., 0] == spans[..., 1]
        check_in_range("tree.states", torch.where(leaf, states, -1), self.n_leaves)
        check_in_range("tree.states", torch.where(leaf, -1, states), self.n_heads)
        place = (spans[..., 0] * self.node_shape[0] + spans[..., 1]) * self.n_states + states
        table = self.node_scores().expand(*states.shape[:-1], *self.node_shape, -1).flatten(-3)
        own = torch.where(states < 0, 0.0, table.gather(-1, place.clamp(min=0))).sum(-1)
        own = own.masked_fill((states < 0).all(-1) | (self._length().reshape(self.batch_shape) < 2), -math.inf)
        return own + self._rule_scores(tree)

    def _rule_scores(self, tree: Trees) -> Tensor:
        """The sum of the scores of the rules of each tree."""
        head, left, right = children(tree, self.node_shape[0], self.n_heads)
        inner, rule = head >= 0, self._rule
        head, left, right = (x.clamp(min=0) for x in (head, left, right))
        if isinstance(rule, ScoredRule):
            scores = rule.at(head, left, right)
        else:
            rule = cast("Rule", flattened(cast("Rule", rule), self.batch_shape))
            shape = head.shape
            count = shape[: len(shape) - 1 - len(self.batch_shape)].numel()
            head, left, right = (
                x.reshape(count, self.batch_shape.numel(), shape[-1]).transpose(0, 1).flatten(1)
                for x in (head, left, right)
            )
            scores = rule.at(head, left, right).unflatten(1, (count, shape[-1])).transpose(0, 1).reshape(shape)
        return torch.where(inner, scores, 0.0).sum(-1)

    def rule_marginals(self) -> Float[Tensor, "*batch N C C"]:
        """How often each rule is expected in a tree: a table `[*batch, N, N+P, N+P]`, also of a sketch."""
        shape = (*self.batch_shape, self.n_heads, *(self.n_heads + self.n_leaves,) * 2)
        if self.kept is None:
            return self._gradient(1, *shape)
        recording = torch.is_grad_enabled()
        with torch.inference_mode(False), torch.enable_grad(), full_precision(self.device):
            spans, rule = self._weighted(self.terms())
            tables = [x.expand(*self.batch_shape, *x.shape[-5:]).clone() for x in cast("SpanRule", rule).tables()]
            recording &= any(x.requires_grad for x in (*spans.tensors, *tables))
            tables = [x if x.requires_grad else x.requires_grad_() for x in tables]
            total = self.log_sum((spans.map(torch.clone), SpanTables(tables)))
            if not tables:  # a single word has no rules
                return total.new_zeros(shape)
            counts = torch.autograd.grad(total.sum(), tables, create_graph=recording, materialize_grads=True)
        expected = torch.zeros(*self.batch_shape, math.prod(shape[-3:]), dtype=self.dtype, device=self.device)
        for width, count in enumerate(counts, 2):
            head, left, right = sets_of_width(self.states, width, cast("Any", self.whole)._rule)
            place = head[..., None, :, None, None] * shape[-1] + left[..., None, :, None]
            place = place * shape[-1] + right[..., None, None, :]
            expected = expected.scatter_add(-1, place.flatten(-5), count.flatten(-5))
        return expected.reshape(shape)

    def _gather(self, index: Int[Tensor, "*#batch T T k"]) -> None:
        spans = self.node_scores()
        self._rule = self._rule.gather(index) if isinstance(self._rule, SpanRule) else at_spans(self._rule, index)
        self._span = spans.gather(-1, index.expand(*spans.shape[:-1], -1))
