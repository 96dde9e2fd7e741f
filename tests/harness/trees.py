"""Binary trees over words and grammars: their truths and their cases."""

import itertools
import math
from collections.abc import Iterator
from random import Random
from typing import Any, cast

import torch
from torch import Tensor

import tailsum as ts
from harness.case import Case, Counted, Kind, Row, pad
from harness.truth import Truth, Weighted, counts, total


def catalan(n: int) -> int:
    return math.comb(2 * n, n) // (n + 1)


def bracketings(i: int, j: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """Every binary tree over i..j: its spans, ends included, in preorder."""
    if i == j:
        yield ((i, i),)
    for split in range(i, j):
        for left in bracketings(i, split):
            for right in bracketings(split + 1, j):
                yield ((i, j), *left, *right)


class SpanTruth(Truth):
    """All binary trees whose spans, leaves too, have states, with scores `span [L, L, N]`.

    A configuration is a tuple of (i, j, state), ends included, in preorder.
    """

    def __init__(self, span: Tensor):
        length, _, n = span.shape
        assert span.shape == (length, length, n)
        configurations = [
            tuple((*ends, state) for ends, state in zip(spans, states, strict=True))
            for spans in bracketings(0, length - 1)
            for states in itertools.product(range(n), repeat=len(spans))
        ]
        super().__init__(configurations, total(span, configurations), counts(span.shape, configurations))


class GrammarTruth(Truth):
    """All derivations of a grammar with scores `root [N]`, `rule [N, N+P, N+P]` and `emission [L, P]`.

    A configuration is as in `SpanTruth`, with nonterminals 0..N-1 on longer spans and preterminals 0..P-1 on
    words; as a child in a rule, preterminal p is number N+p. One word alone has no derivation. `uses_of_rules
    [C, N, N+P, N+P]` counts how often each derivation uses each rule.
    """

    def __init__(self, root: Tensor, rule: Tensor, emission: Tensor):
        (n,), (length, p) = root.shape, emission.shape
        assert rule.shape == (n, n + p, n + p)
        configurations = [
            tuple((*ends, state) for ends, state in zip(spans, states, strict=True))
            for spans in (bracketings(0, length - 1) if length > 1 else ())
            for states in itertools.product(*(range(p if i == j else n) for i, j in spans))
        ]
        roots = [[(c[0][2],)] for c in configurations]
        rules = [grammar_rules(c, n) for c in configurations]
        words = [[(i, state) for i, j, state in c if i == j] for c in configurations]
        scores = total(root, roots) + total(rule, rules) + total(emission, words)
        super().__init__(configurations, scores, counts((length, length, max(n, p)), configurations))
        self.uses_of_rules = counts(rule.shape, rules)

    @property
    def rule_marginals(self) -> Tensor:
        """How often each rule is used, on average."""
        return self.expected(self.uses_of_rules)


def grammar_rules(tree: tuple[tuple[int, int, int], ...], n: int) -> list[tuple[int, int, int]]:
    """The rules (parent, left, right) of a tree in preorder."""
    symbol = {(i, j): state if i < j else n + state for i, j, state in tree}
    rules = []
    for (i, j, parent), (_, split, _) in itertools.pairwise(tree):
        if i < j:  # then what follows in preorder is its left child, i..split
            rules.append((parent, symbol[i, split], symbol[split + 1, j]))
    return rules


class TreeCase(Case):
    tuple_type = ts.Trees

    def nodes(self, truth: Truth) -> list[list[tuple[int, ...]]]:
        return [list(c) for c in truth.configurations]

    @property
    def fields(self) -> dict[str, tuple[int, ...]]:
        return {"spans": (2 * self.length - 1, 2), "states": (2 * self.length - 1,)}

    def row(self, configuration: tuple) -> Row:
        spans = [x for i, j, _ in configuration for x in (i, j)]
        states = [state for _, _, state in configuration]
        return pad(spans, 4 * self.length - 2) + pad(states, 2 * self.length - 1)

    def configuration(self, row: Row, length: int) -> tuple:
        spans, states = row[: 4 * self.length - 2], row[4 * self.length - 2 :]
        return tuple(x for x in zip(spans[::2], spans[1::2], states, strict=True) if x[0] >= 0)

    def within(self, length: int) -> tuple[slice, ...]:
        return slice(length), slice(length)


class SpanCase(TreeCase):
    """`n` states of every span; with `size`, scores are inner products of vectors of that size."""

    name = "spans"
    small = {"dense": {"n": 2}, "factored": {"n": 2, "size": 2}}
    few = ("dense",)
    large = {"dense": {"length": 3, "n": 5, "scale": 0.7}, "factored": {"length": 3, "n": 5, "size": 2, "scale": 0.7}}
    embedded = ("factored",)

    @classmethod
    def sizes(cls, r: Random) -> Kind:
        n = r.randint(1, 3)
        return {"n": n, "length": r.randint(1, {1: 5, 2: 4, 3: 3}[n]), "size": r.choice([None, None, 2])}

    @classmethod
    def counted(cls, length: int) -> Iterator[Counted]:
        for n in (1, 3):
            yield Counted(
                ts.SpanTree(torch.zeros(length, length, n).double()), catalan(length - 1) * n ** (2 * length - 1)
            )

    @property
    def coupling(self) -> int:
        return 0

    @property
    def carrier(self) -> tuple[int, int]:
        return 0, 3

    def draw(self, n: int, size: int | None = None, shared: bool = False) -> None:
        self.n, self.size_of_vectors = n, size
        upper = torch.ones(self.length, self.length, dtype=torch.bool).triu()
        used = (upper & self.inside()[..., None, :])[..., None].expand(*self.batch, self.length, self.length, size or n)
        lead = () if shared else self.batch
        self.leaf(*lead, self.length, self.length, size or n, used=used, finite=size is not None)
        if size is not None:
            self.leaf(n, size, finite=True)

    @property
    def can_block(self) -> bool:
        return self.size_of_vectors is None  # factors are finite, and so are their products

    def block(self, b: int) -> None:
        self.banned[0][b, 0, self.lengths[b] - 1] = True

    def build(self, *leaves: Tensor) -> ts.SpanTree:
        return ts.SpanTree(leaves[0] if self.size_of_vectors is None else ts.Factored(*leaves), self.given)

    def truth(self, b: int, leaves: list[Tensor]) -> Truth:
        length, span = self.lengths[b], leaves[0]
        if self.size_of_vectors is not None:
            span = span @ leaves[1].mT
        return SpanTruth(self.of_batch(span, self.length, self.length, self.n)[b, :length, :length])


class GrammarCase(TreeCase):
    """`n` nonterminals and `p` preterminals; rules of every kind, shared or of each sentence's own ("own ..")."""

    name = "pcfg"
    RULES = (
        "dense", "own dense", "low rank", "own low rank", "mixed low rank", "factored", "own factored",
        "mixed factored", "scored",
    )  # fmt: skip
    small = {
        "dense": {"n": 2, "p": 1},
        "own dense": {"n": 1, "p": 2, "rule": "own dense", "own_root": True},
        "low rank": {"n": 2, "p": 2, "rule": "low rank"},
        "mixed low rank": {"n": 2, "p": 1, "rule": "mixed low rank"},
        "factored": {"n": 2, "p": 2, "rule": "factored"},
        "own factored": {"n": 1, "p": 2, "rule": "own factored"},
        "scored": {"n": 2, "p": 2, "rule": "scored"},
    }
    few = ("own dense", "low rank", "factored", "scored")
    large = {
        rule: {"length": 3, "n": 5, "p": 4, "rule": rule, "rank": 3, "scale": 0.7}
        for rule in ("dense", "factored", "low rank", "scored")
    }
    embedded = ("factored", "low rank")
    landmarks = 2
    shortest = 2

    @classmethod
    def sizes(cls, r: Random) -> Kind:
        n, p = r.choice([(1, 1), (1, 2), (2, 1), (1, 3), (3, 1), (2, 2), (3, 2), (2, 3)])
        return {
            "n": n, "p": p, "length": r.randint(1, {2: 5, 3: 4, 4: 4, 5: 3}[n + p]), "rule": r.choice(cls.RULES),
            "own_root": r.random() < 0.5,
        }  # fmt: skip

    def changes(self, r: Random) -> Kind:
        return {"rule": r.choice(self.RULES)}

    @classmethod
    def counted(cls, length: int) -> Iterator[Counted]:
        zeros = lambda *shape: torch.zeros(*shape).double()  # noqa: E731
        for n, p in ((1, 1), (2, 3), (3, 2)):
            expected = 0 if length == 1 else catalan(length - 1) * n ** (length - 1) * p**length
            low_rank = ts.LowRankRule(zeros(n, 2), zeros(n + p, 2), zeros(n + p, 2))
            yield Counted(ts.PCFG(zeros(n), zeros(n, n + p, n + p), zeros(length, p)), expected)
            yield Counted(ts.PCFG(zeros(n), low_rank, zeros(length, p)), expected * 2 ** (length - 1))

    @property
    def coupling(self) -> int:
        return 2

    @property
    def carrier(self) -> tuple[int, int]:
        return 1, 2

    def draw(
        self, n: int, p: int, rule: str = "dense", rank: int = 2, own_root: bool = False, shared: bool = False
    ) -> None:
        self.n, self.p, self.rule = n, p, rule.rsplit(maxsplit=1)[-1]
        lead = self.batch if rule.startswith("own") else ()
        self.leaf(*(self.batch if own_root else ()), n)
        used = self.inside()[..., None].expand(*self.batch, self.length, p)
        self.leaf(*(() if shared else self.batch), self.length, p, used=used)
        if self.rule == "dense":
            self.leaf(*lead, n, n + p, n + p)
            return
        first = self.batch if rule.startswith("mixed") else lead
        for size, own in ((n, first), (n + p, lead), (n + p, lead)):
            self.leaf(*own, size, rank, finite=self.rule != "rank", seen=self.rule != "scored")
        self.never = torch.rand(n, n + p, n + p, generator=self.generator) < self.forbidden

    def block(self, b: int) -> None:
        self.banned[1][b, 0] = True

    def build(self, *leaves: Tensor) -> ts.PCFG:
        root, emission, *rule = leaves
        if self.rule == "dense":
            return ts.PCFG(root, rule[0], emission, self.given)
        if self.rule == "rank":
            return ts.PCFG(root, ts.LowRankRule(*rule), emission, self.given)
        if self.rule == "factored":
            return ts.PCFG(root, ts.FactoredRule(*rule), emission, self.given)
        head, left, right = rule

        def function(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
            scores = torch.tanh(head[a] * left[b] + right[c]).sum(-1)
            return scores.masked_fill(self.never[a, b, c], self.mask)

        return ts.PCFG(root, ts.ScoredRule(function, self.n, self.p), emission, self.given)

    def rule_table(self, rule: list[Tensor]) -> Tensor:
        if self.rule == "dense":
            return rule[0]
        head, left, right = rule
        if self.rule == "rank":
            ranks = head[..., :, None, None, :] + left[..., None, :, None, :] + right[..., None, None, :, :]
            empty = (ranks == -math.inf).all(-1)  # a sum of nothing would have no gradient
            return ranks.masked_fill(empty[..., None], 0.0).logsumexp(-1).masked_fill(empty, -math.inf)
        if self.rule == "factored":
            return torch.einsum("...ad,...bd,...cd->...abc", head, left, right)
        table = torch.tanh(head[:, None, None] * left[:, None] + right).sum(-1)
        return table.masked_fill(self.never, self.mask)

    def truth(self, b: int, leaves: list[Tensor]) -> Truth:
        root, emission, *rule = leaves
        size = self.n + self.p
        return GrammarTruth(
            self.of_batch(root, self.n)[b],
            self.of_batch(self.rule_table(rule), self.n, size, size)[b],
            self.of_batch(emission, self.length, self.p)[b, : self.lengths[b]],
        )

    def other_marginals(self, model: Any) -> list[Tensor]:
        return [model.rule_marginals()]

    def expected_sums(self, model: Any) -> list[Tensor]:
        return [*super().expected_sums(model), model.rule_marginals()]

    def fewest_states(self, model: Any) -> int:
        return min(self.n, self.p)

    def more(self, model: Any, truths: list[Weighted]) -> list[tuple[Tensor, Tensor]]:
        found = self.flat(model.rule_marginals())
        uses = [cast("GrammarTruth", truth.truth).uses_of_rules for truth in truths]
        return [(x, truth.expected(used)) for x, truth, used in zip(found, truths, uses, strict=True)]
