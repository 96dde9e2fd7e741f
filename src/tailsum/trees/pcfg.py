"""Probabilistic context-free grammars, and weighted ones: binary trees with a state at each span, scored by rules.

`score(tree) = root[state of the whole] + sum of rule[parent, left, right] + sum of emission[t, state of leaf t]`

Spans of one position have a preterminal `0 .. P-1`, all others a nonterminal `0 .. N-1`; in the rules the two kinds of
children are numbered together, preterminal p as `N + p`. Positions, spans and `Trees` are as in `SpanTree`. Rules are
binary, so a sentence of one word has no tree: its log-partition is minus infinity.

A sketch keeps K weighted states at every span, chosen independently. One set for all spans, or for all spans of a width,
would be biased: the weight of a tree is the product of the weights of its spans, and the mean of a product is the product
of the means only if the factors are independent.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.numerics.check import (
    check_broadcast,
    check_device,
    check_floating,
    check_in_range,
    check_scores,
    shape_or_type,
)
from tailsum.numerics.kernels import fused
from tailsum.numerics.noise import Choose
from tailsum.numerics.reduce import Reduce
from tailsum.numerics.tensors import working_type
from tailsum.scores.potential import Dense
from tailsum.sketch.sweep import Sweep
from tailsum.structure.check import checked_lengths
from tailsum.structure.derivatives import recording_as_before
from tailsum.structure.transforms import differentiable
from tailsum.trees.configuration import Trees, children
from tailsum.trees.reader import TreeReader
from tailsum.trees.rules.dense import DenseRule
from tailsum.trees.rules.rule import Rule
from tailsum.trees.rules.whole_rule import WholeRule
from tailsum.trees.tree_structure import TreeStructure


class GrammarTerms(NamedTuple):
    """Scores of the states of spans `[*batch, T, T, S]`, and of the rules."""

    spans: Dense
    rule: Rule


class PCFG(TreeStructure[GrammarTerms]):
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
        rule: Float[Tensor, "*#batch N C C"] | WholeRule,
        emission: Float[Tensor, "*#batch T P"],
        lengths: Int[Tensor, "*#batch"] | Sequence[int] | None = None,
    ) -> None:
        for name, tensor, least, form in (("root", root, 1, "N"), ("emission", emission, 2, "T, P")):
            if not isinstance(tensor, Tensor) or tensor.dim() < least or 0 in tensor.shape[-least:]:
                raise ValueError(f"{name} must be [*batch, {form}], none of them zero: got {shape_or_type(tensor)}")
        self.device = emission.device
        check_device("root", root, self.device)
        length, self.n_leaves = emission.shape[-2:]
        self.n_heads = root.shape[-1]
        self.node_shape = torch.Size((length, length))
        self.n_states = max(self.n_heads, self.n_leaves)
        rule = _checked_rule(rule, self.n_heads, self.n_leaves, self.device)
        shape = check_broadcast("root", root.shape[:-1], emission.shape[:-2], "emission's")
        shape = check_broadcast("rule", rule.lead, shape, "that of root and emission,")
        self.batch_shape, self.lengths = checked_lengths(lengths, shape, length, self.device)
        check_floating("emission", emission)
        self.root, self.emission = root, emission
        check_scores("root", root)
        check_scores("emission", self._blanked(emission.detach()))
        self.dtype = working_type(root, emission, *rule.tensors)
        self.rule: Rule = rule.to(self.dtype, self.device)
        self.span: Tensor | None = None  # in a sketch, the scores of the kept states of each span

    def _blanked(self, emission: Tensor) -> Float[Tensor, "*batch T P"]:
        """The emission scores with zero in the padding."""
        return torch.where(self.inside()[..., None], emission, 0.0)

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, {self.n_heads} nonterminals, {self.n_leaves} preterminals)"

    def node_scores(self) -> Float[Tensor, "*batch T T n"]:
        """Emissions at single positions, the root's scores at the whole sentence, zero at all other spans."""
        if self.span is not None:
            return self.span.expand(*self.batch_shape, *self.node_shape, -1)
        length, size = self.node_shape[0], self.n_states
        emission, root = self._blanked(self.emission).to(self.dtype), self.root.to(self.dtype)
        emission = F.pad(emission, (0, size - self.n_leaves), value=-math.inf)
        inner = F.pad(root.new_zeros(self.n_heads), (0, size - self.n_heads), value=-math.inf)
        root = F.pad(root, (0, size - self.n_heads), value=-math.inf)
        position = torch.arange(length, device=self.device)
        last = self.sequence_lengths().reshape(*self.batch_shape, 1, 1) - 1
        whole = (position[:, None] == 0) & (position == last)
        leaf = position[:, None] == position
        spans = torch.where(whole[..., None], root[..., None, None, :], inner)
        return torch.where(leaf[..., None], emission[..., :, None, :], spans).expand(*self.batch_shape, -1, -1, -1)

    def terms(self) -> GrammarTerms:
        return GrammarTerms(Dense(self.node_scores()), self.rule.evaluated())

    def gather(self, index: Int[Tensor, "*#batch T T k"]) -> "PCFG":
        spans = self.node_scores()
        return self.replaced(rule=self.rule.at_spans(index), span=spans.gather(-1, index.expand(*spans.shape[:-1], -1)))

    def total(self, terms: GrammarTerms, reduce: Reduce) -> Float[Tensor, "*batch"]:
        rule = terms.rule.flat(self.batch_shape)
        return rule.total(self.flat_spans(terms), self.sequence_lengths(), reduce).reshape(self.batch_shape)

    def reader(self, terms: GrammarTerms, reduce: Reduce, choose: Choose) -> TreeReader:
        rule = terms.rule.flat(self.batch_shape)
        return rule.reader(self.flat_spans(terms), self.sequence_lengths(), choose, reduce)

    def sweep(self) -> Sweep:
        spans = self.weighted_nodes().reshape(self.batch_shape.numel(), *self.node_shape, self.n_states)
        return self.rule.flat(self.batch_shape).sweep(spans, self.sequence_lengths(), self.batch_shape)

    def log_sum_and_mean(
        self, own: GrammarTerms, values: GrammarTerms
    ) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
        """By kernels, the sums and their slopes in one chart."""
        if not fused(*own.spans.tensors, *own.rule.tensors):
            return super().log_sum_and_mean(own, values)
        with recording_as_before(self.device, own) as scores, recording_as_before(self.device, values) as numbers:
            rule = scores.rule.as_table()
            of_rules = rule if numbers.rule is scores.rule else numbers.rule.as_table()
            if not isinstance(rule, DenseRule) or not isinstance(of_rules, DenseRule):
                return super().log_sum_and_mean(own, values)
            rule, of_rules = rule.flat(self.batch_shape), of_rules.flat(self.batch_shape)
            assert isinstance(rule, DenseRule)
            assert isinstance(of_rules, DenseRule)
            flat = self.flat_spans(scores), self.flat_spans(numbers)
            found = rule.log_sum_and_mean(flat[0], (flat[1], of_rules), self.sequence_lengths())
            total, mean = (x.reshape(self.batch_shape) for x in found)
        return total, mean

    def centred(self, terms: GrammarTerms) -> GrammarTerms:
        spans, rule = super().centred(terms)
        return GrammarTerms(spans, rule.centred())

    def state_norms(self) -> Float[Tensor, "*#batch T T n"]:
        heads, leaves = (F.pad(x, (0, self.n_states - x.shape[-1])) for x in self.rule.state_norms())
        leaf = torch.eye(self.node_shape[0], dtype=torch.bool, device=self.device)[..., None]
        return torch.where(leaf, leaves, heads)

    def after_batch(self) -> dict[str, int]:
        return {"root": 1, "emission": 2, "span": 3}

    def form(self) -> tuple[int, int]:
        return self.n_heads, self.n_leaves

    def check_configuration(self, configuration: Trees) -> Trees:
        spans, states = tree = super().check_configuration(configuration)
        leaf = spans[..., 0] == spans[..., 1]
        check_in_range("tree.states", torch.where(leaf, states, -1), self.n_leaves)
        check_in_range("tree.states", torch.where(leaf, -1, states), self.n_heads)
        return tree

    def score_of(self, configuration: Trees) -> Float[Tensor, "*sample_batch"]:
        """The scores of the root, the rules and the emissions of given trees.

        >>> grammar = PCFG(torch.ones(2), torch.ones(2, 5, 5), torch.ones(4, 3))
        >>> grammar.score(grammar.sample())
        tensor(8.)
        """
        rule, triples = self.rule.flat(self.batch_shape), children(configuration, self.node_shape[0], self.n_heads)
        assert isinstance(rule, WholeRule)
        shape, batch = triples[0].shape, self.batch_shape
        count = shape[: len(shape) - 1 - len(batch)].numel()
        flat = (x.clamp(min=0).reshape(count, batch.numel(), shape[-1]).transpose(0, 1).flatten(1) for x in triples)
        rules = rule.at(*flat).unflatten(1, (count, shape[-1])).transpose(0, 1).reshape(shape)
        spans = self.span_scores(configuration).masked_fill(self.sequence_lengths().reshape(batch) < 2, -math.inf)
        return spans + torch.where(triples[0] >= 0, rules, 0.0).sum(-1)

    @differentiable
    def rule_marginals(self) -> Float[Tensor, "*batch N C C"]:
        """The expected number of uses of each rule in a tree: `[*batch, N, N+P, N+P]`, over all states even in a sketch."""
        return self.rule.counts(self.term_gradients(1, self._for_each_sentence), self.states).to(self.dtype)

    def span_and_rule_marginals(self) -> tuple[Float[Tensor, "*batch T T n"], Float[Tensor, "*batch N C C"]]:
        """`marginals` and `rule_marginals`, in one pass."""
        (spans,), rules = self.gradients_of_terms({0: lambda x: x, 1: self._for_each_sentence})
        return spans, self.rule.counts(rules, self.states).to(self.dtype)

    def _for_each_sentence(self, table: Tensor) -> Tensor:
        """A table of rules expanded to one for every sentence."""
        trailing = 5 if self.rule.by_span else 3  # dimensions of `SpanTables` or of a `DenseRule`
        return table.expand(*self.batch_shape, *table.shape[-trailing:])


def _checked_rule(rule: Tensor | WholeRule, n_heads: int, n_leaves: int, device: torch.device) -> WholeRule:
    """Rules of N nonterminals over N + P children, on the right device and with valid scores."""
    size = n_heads + n_leaves
    if isinstance(rule, Tensor):
        if rule.dim() < 3 or rule.shape[-3:] != (n_heads, size, size):
            raise ValueError(
                f"rule must be [*batch, N, N+P, N+P] = [..., {n_heads}, {size}, {size}], as root and emission have: "
                f"got {list(rule.shape)}"
            )
        rule = DenseRule(rule)
    if not isinstance(rule, WholeRule):
        raise ValueError(
            f"rule must be a tensor, a LowRankRule, a FactoredRule or a ScoredRule: got {type(rule).__name__}"
        )
    if (rule.n_heads, rule.n_children) != (n_heads, size):
        raise ValueError(
            f"rule must have N = {n_heads} heads and N+P = {size} children, as root and emission have: "
            f"got {rule.n_heads} and {rule.n_children}"
        )
    rule.check(device)
    return rule
