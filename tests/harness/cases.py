"""Small random instances of every structure, each with its truth: whoever inherits from `Case` inherits all tests.

The parameters of a model are its *leaves*, float64 tensors of finite numbers. `case.model()` forbids some of their
entries, puts NaN wherever padding stands, and builds the model; `case.truths()` enumerates every sentence from the same
leaves, written out as tables.
"""

import functools
import math
from abc import ABC, abstractmethod
from random import Random
from typing import Any

import torch
from torch import Tensor

import tailsum as ts
from harness.truth import DependencyTruth, GrammarTruth, SegmentTruth, SpanTruth, Truth, total

Row = list[int]


class Weighted(Truth):
    """All configurations of one sentence, weighted by the states of their nodes: what a restricted model sums over.

    Weights count in the sums and stay out of the scores. A state of weight zero is not there.
    """

    def __init__(self, truth: Truth, weight: Tensor):
        super().__init__(truth.configurations, truth.scores + weight, truth.parts)
        self.unweighted, self.truth = truth.scores, truth
        self.present = weight > -math.inf

    @property
    def entropy(self) -> Tensor:
        return self.cross_entropy(self)

    def cross_entropy(self, other: Truth) -> Tensor:
        assert isinstance(other, Weighted)
        p = self.probability
        used = p > 0
        if (other.unweighted[used] == -math.inf).any():
            return torch.tensor(math.inf).double()
        return other.log_partition - (p[used] * other.unweighted[used]).sum()

    def best(self, k: int) -> Tensor:
        found = self.unweighted.masked_fill(~self.present, -math.inf).sort(descending=True).values[:k]
        return torch.nn.functional.pad(found, (0, k - len(found)), value=-math.inf)


class Case(ABC):
    """An instance of a structure: `fields` are the shapes of what makes up a configuration, one row of `F` numbers."""

    node_dims = 1

    def __init__(
        self, batch: tuple[int, ...], length: int, *, lengths: list[int] | None = None, forbidden: float = 0.0,
        scale: float = 1.0, seed: int = 0, **kind: Any,
    ):  # fmt: skip
        self.kind = {
            "batch": batch, "length": length, "lengths": lengths, "forbidden": forbidden, "scale": scale, "seed": seed,
            **kind,
        }  # fmt: skip
        self.batch, self.length, self.size = batch, length, math.prod(batch)
        # What has no batch dimensions of its own gets them from the lengths.
        given = [length] * self.size if lengths is None and kind.get("shared") else lengths
        self.given = None if given is None else torch.tensor(given).reshape(batch)
        self.lengths = [length] * self.size if lengths is None else lengths
        self.generator = torch.Generator().manual_seed(seed)
        self.forbidden, self.scale = forbidden, scale
        self.leaves: list[Tensor] = []
        self.banned: list[Tensor] = []
        self.factors: list[bool] = []
        self.padding: list[Tensor | None] = []
        self.draw(**kind)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(**{self.kind})"

    def sibling(self, **changed: Any) -> "Case":
        """Another random model over the same configurations."""
        return type(self)(**{**self.kind, **changed})

    # What leaves are made of.

    def leaf(self, *shape: int, finite: bool = False, used: Tensor | None = None) -> None:
        """One more leaf, some of its entries forbidden; what no sentence has `used` is NaN to the model."""
        self.leaves.append(torch.randn(*shape, generator=self.generator, dtype=torch.float64) * self.scale)
        banned = torch.rand(shape, generator=self.generator) < self.forbidden
        self.banned.append(banned & (not finite))
        self.factors.append(finite)
        self.padding.append(None if used is None else used.long().sum_to_size(shape) == 0)

    def marked(self, *leaves: Tensor) -> list[Tensor]:
        """The leaves with minus infinity where an entry is forbidden, without NaN."""
        return [
            x.masked_fill(banned, -math.inf) if banned.any() else x
            for x, banned in zip(leaves or self.leaves, self.banned, strict=True)
        ]

    def model(self, *leaves: Tensor) -> Any:
        marked = zip(self.marked(*leaves), self.padding, strict=True)
        return self.build(*(x if padding is None else x.masked_fill(padding, math.nan) for x, padding in marked))

    def inside(self) -> Tensor:
        """Which positions are not padding, `[*batch, T]`."""
        return (torch.arange(self.length) < torch.tensor(self.lengths)[:, None]).reshape(*self.batch, self.length)

    def of_batch(self, x: Tensor, *shape: int) -> Tensor:
        """A table `[*#batch, ...]` written out for all sentences, `[B, *shape]`."""
        return x.expand(*self.batch, *shape).reshape(self.size, *shape)

    @abstractmethod
    def draw(self, **kind: Any) -> None:
        """Draw all leaves."""

    @abstractmethod
    def build(self, *leaves: Tensor) -> Any:
        """The model."""

    @abstractmethod
    def truth(self, b: int, leaves: list[Tensor]) -> Truth:
        """All configurations of sentence b."""

    @functools.cached_property
    def whole_truths(self) -> list[Truth]:
        return [self.truth(b, self.marked()) for b in range(self.size)]

    def truths(self, model: Any = None) -> list[Weighted]:
        """Of the whole model, or of a restricted one by the states that it keeps and their weights."""
        truths = self.whole_truths
        if model is None or model.kept is None:
            return [Weighted(truth, torch.zeros_like(truth.scores)) for truth in truths]
        each = model.log_weight.double().exp()
        weight = torch.zeros(*each.shape[:-1], model.whole.n_states).double().scatter_add(-1, model.states, each)
        weight = weight.log().reshape(self.size, *weight.shape[len(self.batch) :])
        return [Weighted(truth, total(weight[b], self.nodes(truth))) for b, truth in enumerate(truths)]

    # Configurations.

    @abstractmethod
    def nodes(self, truth: Truth) -> list[list[tuple[int, ...]]]:
        """For every configuration the nodes and their states."""

    fields: dict[str, tuple[int, ...]]
    tuple_type: Any

    @abstractmethod
    def row(self, configuration: tuple) -> Row:
        """A configuration of the truth as the library writes it, its fields one after the other."""

    @abstractmethod
    def configuration(self, row: Row) -> tuple:
        """The reverse of `row`, as far as possible."""

    @property
    def none(self) -> Row:
        """No configuration."""
        return [-1] * self.width

    @property
    def width(self) -> int:
        return sum(map(math.prod, self.fields.values()))

    def rows(self, configurations: Any) -> Tensor:
        """What the library gives, `[*sample, *batch]` of it, as rows `[S, B, F]`."""
        given = {name: x for name, x in configurations._asdict().items() if x is not None}
        assert given.keys() == self.fields.keys()
        found = [x.reshape(-1, self.size, math.prod(self.fields[name])) for name, x in given.items()]
        assert all(x.shape[x.dim() - len(self.fields[name]) :] == self.fields[name] for name, x in given.items())
        return torch.cat(found, -1)

    def read(self, row: Tensor) -> tuple | None:
        """The configuration in a row; None for none. Fails unless the row is written as it should be."""
        numbers = row.tolist()
        if numbers == self.none:
            return None
        found = self.configuration(numbers)
        assert self.row(found) == numbers
        return found

    def written(self, rows: list[list[Row]]) -> Any:
        """Rows `[S][B]` as the library takes them, `[S, *batch]`."""
        table = torch.tensor(rows).reshape(len(rows), *self.batch, self.width)
        parts = table.split([math.prod(shape) for shape in self.fields.values()], -1)
        named = zip(self.fields.items(), parts, strict=True)
        return self.tuple_type(**{name: x.reshape(*x.shape[:-1], *shape) for (name, shape), x in named})

    def flat(self, value: Tensor) -> Tensor:
        """Values `[*batch, ...]` as `[B, ...]`."""
        return value.reshape(self.size, *value.shape[len(self.batch) :])

    def marginals(self, model: Any) -> Tensor:
        """The model's marginals over all states, in the shape of the truth's parts, `[B, T, ...]`."""
        return self.flat(model.scatter(model.marginals()))

    def weights(self, model: Any, sample: Any) -> list[Tensor]:
        """The weights of a relaxed sample over all states, `[*sample, *batch, ...]`."""
        return [model.scatter(sample.weights)]

    def used(self, truth: Weighted) -> list[Tensor]:
        """What each configuration uses of every table that relaxed samples weight, `[C, *part]` within the sentence."""
        return [truth.parts]

    def more(self, model: Any, truth: Weighted, b: int) -> list[tuple[Tensor, Tensor]]:
        """Further results and what they should be."""
        return []

    @abstractmethod
    def block(self, b: int) -> None:
        """Forbid something that every configuration of sentence b has."""

    def shift(self, offset: float) -> None:
        """Add the same to all scores that are given as such."""
        self.leaves = [x if given else x + offset for x, given in zip(self.leaves, self.factors, strict=True)]

    def within(self, length: int) -> tuple[slice, ...]:
        """The part of the marginals that is not padding."""
        return (slice(length),)

    @property
    def has_states(self) -> bool:
        return True


def pad(row: Row, length: int, value: int = -1) -> Row:
    return row + [value] * (length - len(row))


# Scores of pairs of states.


def pair_leaves(case: Case, kind: str, lead: tuple[int, ...], n: int, used: Tensor) -> None:
    """Leaves of scores between n and n states that vary with `lead`; `used [*batch, *steps]` by the sentences."""

    def leaf(own: tuple[int, ...], *size: int) -> None:
        known = case.given is not None and own != ()
        used_here = used[(..., *[None] * len(size))].expand(*used.shape, *size) if known else None
        case.leaf(*own, *size, finite=kind != "dense", used=used_here)

    if kind == "dense":
        leaf(lead, n, n)
        return
    leaf(lead if "factored" in kind else (), n, 2)
    leaf(lead if kind == "factored" else (), n, 2)
    if kind == "scored" and lead:
        leaf(lead, 2)


def pair_potential(kind: str, n: int, forbidden: bool, leaves: list[Tensor]) -> Any:
    if kind == "dense":
        return leaves[0]
    if kind in {"factored", "half factored"}:
        return ts.Factored(*leaves)
    left, right, *context = leaves

    def function(i: Tensor, j: Tensor, c: Tensor | float = 0.0) -> Tensor:
        scores = torch.tanh(left[i] * right[j] + c).sum(-1)
        return scores.masked_fill((i == 0) & (j == n - 1), -math.inf) if forbidden else scores

    return ts.Scored(function, n, n, *context)


def pair_table(kind: str, n: int, forbidden: bool, leaves: list[Tensor]) -> Tensor:
    """What the potential stands for, `[*lead, n, n]`."""
    if kind == "dense":
        return leaves[0]
    if kind in {"factored", "half factored"}:
        return leaves[0] @ leaves[1].mT
    left, right, *context = leaves
    extra = context[0][..., None, None, :] if context else 0.0
    table = torch.tanh(left[:, None] * right + extra).sum(-1)
    if forbidden:
        table[..., 0, n - 1] = -math.inf
    return table


PAIRS = ("dense", "factored", "half factored", "scored")


class SegmentCase(Case):
    """`longest` durations of `n` states; pair scores shared, by boundary ("time"), by sentence ("batch"), or by both."""

    tuple_type = ts.Segments

    def draw(self, longest: int, n: int, pairs: str = "dense", lead: str = "shared", shared: bool = False) -> None:
        self.longest, self.n, self.pairs = longest, n, pairs
        steps = {"shared": (), "time": (self.length - 1,), "batch": (*self.batch, 1)}
        starts = torch.arange(self.length)[:, None] + torch.arange(longest)
        used = starts < torch.tensor(self.lengths)[:, None, None]
        used = used.reshape(*self.batch, self.length, longest, 1).expand(*self.batch, -1, -1, n)
        self.leaf(*(() if shared else self.batch), self.length, longest, n, used=used)
        pair_leaves(self, pairs, steps.get(lead, (*self.batch, self.length - 1)), n, self.inside()[..., 1:])
        self.fields = dict.fromkeys(ts.Segments._fields, (self.length,))

    def build(self, *leaves: Tensor) -> ts.SemiMarkov:
        segment, *pairs = leaves
        return ts.SemiMarkov(segment, pair_potential(self.pairs, self.n, self.forbidden > 0, pairs), self.given)

    def truth(self, b: int, leaves: list[Tensor]) -> Truth:
        segment, *pairs = leaves
        segment = self.of_batch(segment, self.length, self.longest, self.n)[b, : self.lengths[b]]
        table = pair_table(self.pairs, self.n, self.forbidden > 0, pairs)
        table = self.of_batch(table, self.length - 1, self.n, self.n)[b, : self.lengths[b] - 1]
        return SegmentTruth(segment, table)

    def block(self, b: int) -> None:
        self.banned[0][b, 0] = True

    def nodes(self, truth: Truth) -> list[list[tuple[int, ...]]]:
        return [[(start, state) for start, _, state in c] for c in truth.configurations]

    def row(self, configuration: tuple) -> Row:
        starts, durations, states = (list(x) for x in zip(*configuration, strict=True))
        return pad(starts, self.length) + pad(durations, self.length, 0) + pad(states, self.length)

    def configuration(self, row: Row) -> tuple:
        starts, durations, states = (row[i * self.length : (i + 1) * self.length] for i in range(3))
        return tuple(x for x in zip(starts, durations, states, strict=True) if x[0] >= 0)

    @property
    def none(self) -> Row:
        return [-1] * self.length + [0] * self.length + [-1] * self.length


class TreeCase(Case):
    node_dims = 2
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

    def configuration(self, row: Row) -> tuple:
        spans, states = row[: 4 * self.length - 2], row[4 * self.length - 2 :]
        return tuple(x for x in zip(spans[::2], spans[1::2], states, strict=True) if x[0] >= 0)

    def within(self, length: int) -> tuple[slice, ...]:
        return slice(length), slice(length)


class SpanCase(TreeCase):
    def draw(self, n: int, shared: bool = False) -> None:
        self.n = n
        upper = torch.ones(self.length, self.length, dtype=torch.bool).triu()
        used = (upper & self.inside()[..., None, :])[..., None].expand(*self.batch, self.length, self.length, n)
        self.leaf(*(() if shared else self.batch), self.length, self.length, n, used=used)

    def block(self, b: int) -> None:
        self.banned[0][b, 0, self.lengths[b] - 1] = True

    def build(self, *leaves: Tensor) -> ts.SpanTree:
        return ts.SpanTree(*leaves, self.given)

    def truth(self, b: int, leaves: list[Tensor]) -> Truth:
        length = self.lengths[b]
        return SpanTruth(self.of_batch(leaves[0], self.length, self.length, self.n)[b, :length, :length])


class GrammarCase(TreeCase):
    """`n` nonterminals and `p` preterminals; rules of every kind, shared or of each sentence's own ("own ..")."""

    RULES = (
        "dense", "own dense", "low rank", "own low rank", "mixed low rank", "factored", "own factored",
        "mixed factored", "scored",
    )  # fmt: skip

    def draw(self, n: int, p: int, rule: str = "dense", own_root: bool = False, shared: bool = False) -> None:
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
            self.leaf(*own, size, 2, finite=self.rule != "rank")

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
            return scores.masked_fill((a == 0) & (b == c), -math.inf) if self.forbidden else scores

        return ts.PCFG(root, ts.ScoredRule(function, self.n, self.p), emission, self.given)

    def rule_table(self, rule: list[Tensor]) -> Tensor:
        if self.rule == "dense":
            return rule[0]
        head, left, right = rule
        if self.rule == "rank":
            ranks = head[..., :, None, None, :] + left[..., None, :, None, :] + right[..., None, None, :, :]
            return ranks.logsumexp(-1)
        if self.rule == "factored":
            return torch.einsum("...ad,...bd,...cd->...abc", head, left, right)
        table = torch.tanh(head[:, None, None] * left[:, None] + right).sum(-1)
        if self.forbidden:
            table[0].fill_diagonal_(-math.inf)
        return table

    def truth(self, b: int, leaves: list[Tensor]) -> Truth:
        root, emission, *rule = leaves
        size = self.n + self.p
        return GrammarTruth(
            self.of_batch(root, self.n)[b],
            self.of_batch(self.rule_table(rule), self.n, size, size)[b],
            self.of_batch(emission, self.length, self.p)[b, : self.lengths[b]],
        )

    def more(self, model: Any, truth: Weighted, b: int) -> list[tuple[Tensor, Tensor]]:
        assert isinstance(truth.truth, GrammarTruth)
        return [(self.flat(model.rule_marginals())[b], truth.expected(truth.truth.uses_of_rules))]


class DependencyCase(Case):
    """Labels, states and pair scores if given; these by `lead`: shared, "batch", "arc", "head", "child" or "both"."""

    tuple_type = ts.Dependencies
    LEADS = ("shared", "batch", "arc", "head", "child", "both")

    def draw(
        self, projective: bool = True, multiroot: bool = False, labels: int | None = None, n: int | None = None,
        pairs: str = "dense", lead: str = "shared", shared: bool = False,
    ) -> None:  # fmt: skip
        self.projective, self.multiroot, self.labels, self.n, self.pairs = projective, multiroot, labels, n, pairs
        own, t = () if shared else self.batch, self.length
        inside = self.inside()
        both = inside[..., :, None] & inside[..., None, :]
        used = both if labels is None else both[..., None].expand(*both.shape, labels)
        self.leaf(*own, t, t, *(() if labels is None else (labels,)), used=used)
        self.fields = (
            {"heads": (t,)} | ({} if labels is None else {"labels": (t,)}) | ({} if n is None else {"states": (t,)})
        )
        if n is None:
            return
        self.leaf(*self.batch, t, n, used=inside[..., None].expand(*self.batch, t, n))
        leads = {"shared": (), "batch": (*self.batch, 1, 1), "arc": (t, t), "head": (t, 1), "child": (1, t)}
        pair_leaves(self, pairs, leads.get(lead, (*self.batch, t, t)), n, both)

    def block(self, b: int) -> None:
        self.banned[0][b, :, 0] = True

    def build(self, *leaves: Tensor) -> ts.DependencyTree:
        arc, *rest = leaves
        more = {}
        if self.n is not None:
            more["node"] = rest[0]
            more["transition"] = pair_potential(self.pairs, self.n, self.forbidden > 0, rest[1:])
        if self.labels is not None and self.labels in {1, self.length}:
            more["labelled"] = True
        elif self.length == 1:
            more["labelled"] = self.labels is not None
        return ts.DependencyTree(arc, self.given, self.projective, self.multiroot, **more)

    def truth(self, b: int, leaves: list[Tensor]) -> Truth:
        (arc, *rest), t, length = leaves, self.length, self.lengths[b]
        arc = self.of_batch(arc if self.labels else arc[..., None], t, t, self.labels or 1)[b, :length, :length]
        if self.n is None:
            return DependencyTruth(arc, self.projective, self.multiroot)
        node = self.of_batch(rest[0], t, self.n)[b, :length]
        truth = DependencyTruth(arc, self.projective, self.multiroot, node)
        table = pair_table(self.pairs, self.n, self.forbidden > 0, rest[1:])
        table = self.of_batch(table, t, t, self.n, self.n)[b, :length, :length]
        arcs = [
            [(head, child, states[head], states[child]) for child, head in enumerate(heads) if head != child]
            for heads, _, states in truth.configurations
        ]
        truth.scores = truth.scores + total(table, arcs)
        return truth

    def nodes(self, truth: Truth) -> list[list[tuple[int, ...]]]:
        return [list(enumerate(states)) for _, _, states in truth.configurations]

    def row(self, configuration: tuple) -> Row:
        heads, labels, states = configuration
        given = [heads, *([] if self.labels is None else [labels]), *([] if self.n is None else [states])]
        return [number for field in given for number in pad(list(field), self.length)]

    def configuration(self, row: Row) -> tuple:
        fields = [tuple(x for x in row[i : i + self.length] if x >= 0) for i in range(0, len(row), self.length)]
        heads = fields.pop(0)
        labels = (0,) * len(heads) if self.labels is None else fields.pop(0)
        return heads, labels, None if self.n is None else fields.pop(0)

    def marginals(self, model: Any) -> Tensor:
        found = self.flat(model.marginals())
        return found[..., None] if self.labels is None else found

    def weights(self, model: Any, sample: Any) -> list[Tensor]:
        arcs = sample.arcs if self.labels else sample.arcs[..., None]
        return [arcs] if self.n is None else [arcs, model.scatter(sample.weights)]

    def used(self, truth: Weighted) -> list[Tensor]:
        states = getattr(truth.truth, "words_in_states", None)
        return [truth.parts] if states is None else [truth.parts, states]

    def more(self, model: Any, truth: Weighted, b: int) -> list[tuple[Tensor, Tensor]]:
        if self.n is None:
            return []
        assert isinstance(truth.truth, DependencyTruth)
        found = self.flat(model.scatter(model.state_marginals()))[b]
        assert found[self.lengths[b] :].eq(0).all()
        return [(found[: self.lengths[b]], truth.expected(truth.truth.words_in_states))]

    def within(self, length: int) -> tuple[slice, ...]:
        return slice(length), slice(length)

    @property
    def has_states(self) -> bool:
        return self.n is not None


# Random instances.


def segment_sizes(r: Random) -> dict[str, Any]:
    n = r.randint(1, 3)
    length = r.randint(1, {1: 6, 2: 5, 3: 4}[n])
    return {
        "n": n, "length": length, "longest": r.randint(1, length), "pairs": r.choice(PAIRS),
        "lead": r.choice(["shared", "time", "batch", "both"]),
    }  # fmt: skip


def span_sizes(r: Random) -> dict[str, Any]:
    n = r.randint(1, 3)
    return {"n": n, "length": r.randint(1, {1: 5, 2: 4, 3: 3}[n])}


def grammar_sizes(r: Random) -> dict[str, Any]:
    n, p = r.choice([(1, 1), (1, 2), (2, 1), (1, 3), (3, 1), (2, 2), (3, 2), (2, 3)])
    return {
        "n": n, "p": p, "length": r.randint(1, {2: 5, 3: 4, 4: 4, 5: 3}[n + p]), "rule": r.choice(GrammarCase.RULES),
        "own_root": r.random() < 0.5,
    }  # fmt: skip


def dependency_sizes(r: Random) -> dict[str, Any]:
    n, labels = r.choice([None, None, 1, 2, 3]), r.choice([None, 1, 2, 3])
    kinds = (labels or 1) * (n or 1)
    size = {
        "n": n, "labels": labels, "length": r.randint(1, 4 if kinds <= 2 else 3 if kinds <= 4 else 2),
        "projective": n is not None or r.random() < 0.5, "multiroot": r.random() < 0.5,
    }  # fmt: skip
    return size if n is None else size | {"pairs": r.choice(PAIRS), "lead": r.choice(DependencyCase.LEADS)}


STRUCTURES = {
    "SemiMarkov": (SegmentCase, segment_sizes),
    "SpanTree": (SpanCase, span_sizes),
    "PCFG": (GrammarCase, grammar_sizes),
    "DependencyTree": (DependencyCase, dependency_sizes),
}


def random_case(structure: str, r: Random) -> Case:
    kind, sizes = STRUCTURES[structure]
    size, batch = sizes(r), r.choice([(), (1,), (3,), (2, 2)])
    lengths = [r.randint(1, size["length"]) for _ in range(math.prod(batch))]
    return kind(
        batch=batch,
        lengths=lengths if r.random() < 0.6 else None,
        shared=r.random() < 0.3,
        forbidden=r.choice([0.0, 0.15, 0.4]),
        scale=r.choice([0.1, 1.0, 5.0]),
        seed=r.randint(0, 2**32),
        **size,
    )


def another(case: Case, r: Random) -> Case:
    """A second model over the same configurations, with scores of any other kind."""
    changed: dict[str, Any] = {"seed": r.randint(0, 2**32), "forbidden": r.choice([0.0, 0.1])}
    if "pairs" in case.kind:
        changed |= {"pairs": r.choice(PAIRS), "lead": r.choice(["shared", "batch"])}
    if "rule" in case.kind:
        changed["rule"] = r.choice(GrammarCase.RULES)
    return case.sibling(**changed)


PROPOSALS = {
    "lookahead": None,
    "static lookahead": ts.Lookahead(2, 1, sequential=False),
    "uniform": ts.Uniform(),
    "local": ts.Local(),
}
WAYS = ("whole", *PROPOSALS, "some states", "restricted", "restricted, shared")


def made(case: Case, way: str, seed: int = 0) -> Any:
    """The whole model; a sketch that keeps all states, or not; or one with some states, some twice, of random weights."""
    model = case.model()
    if way == "whole" or not case.has_states:
        return model
    if way.startswith("restricted"):
        return model.restrict(random_subset(case, model, seed, shared=way.endswith("shared")))
    k = max(1, model.n_states - 1) if way == "some states" else model.n_states
    small = model.sketch(k, proposal=PROPOSALS.get(way), generator=torch.Generator().manual_seed(seed))
    assert small.whole is model
    assert small.states.shape == (*case.batch, *model.node_shape, k)
    return small


def random_subset(case: Case, model: Any, seed: int, k: int | None = None, *, shared: bool = False) -> ts.Subset:
    """States drawn with repetition and random weights, some zero, for each sentence or the same for all of them."""
    g = torch.Generator().manual_seed(seed)
    k = int(torch.randint(1, model.n_states + 2, (), generator=g)) if k is None else k
    shape = (*(() if shared else case.batch), *model.node_shape, k)
    index = torch.randint(model.n_states, shape, generator=g)
    log_weight = torch.randn(shape, generator=g, dtype=torch.float64)
    return ts.Subset(index, log_weight.masked_fill(torch.rand(shape, generator=g) < 0.1, -math.inf))


# One instance of each kind, all with two sentences, for what need not be drawn.

ZOO: dict[str, tuple[type[Case], dict[str, Any]]] = {
    "segments, dense": (SegmentCase, {"longest": 2, "n": 2}),
    "segments, dense of each boundary": (SegmentCase, {"longest": 3, "n": 2, "lead": "time"}),
    "segments, factored": (SegmentCase, {"longest": 3, "n": 3, "pairs": "factored"}),
    "segments, half factored": (SegmentCase, {"longest": 2, "n": 2, "pairs": "half factored", "lead": "time"}),
    "segments, scored": (SegmentCase, {"longest": 2, "n": 2, "pairs": "scored", "lead": "both"}),
    "spans": (SpanCase, {"n": 2}),
    "grammar, dense": (GrammarCase, {"n": 2, "p": 1}),
    "grammar, own dense": (GrammarCase, {"n": 1, "p": 2, "rule": "own dense", "own_root": True}),
    "grammar, low rank": (GrammarCase, {"n": 2, "p": 2, "rule": "low rank"}),
    "grammar, mixed low rank": (GrammarCase, {"n": 2, "p": 1, "rule": "mixed low rank"}),
    "grammar, factored": (GrammarCase, {"n": 2, "p": 2, "rule": "factored"}),
    "grammar, own factored": (GrammarCase, {"n": 1, "p": 2, "rule": "own factored"}),
    "grammar, scored": (GrammarCase, {"n": 2, "p": 2, "rule": "scored"}),
    "arcs": (DependencyCase, {}),
    "arcs, multiroot": (DependencyCase, {"multiroot": True}),
    "arcs, labelled": (DependencyCase, {"labels": 2}),
    "any arcs": (DependencyCase, {"projective": False}),
    "any arcs, multiroot, labelled": (DependencyCase, {"projective": False, "multiroot": True, "labels": 3}),
    "arcs and states": (DependencyCase, {"n": 2}),
    "arcs and states, factored": (DependencyCase, {"n": 2, "pairs": "factored", "multiroot": True}),
    "arcs and states, scored": (DependencyCase, {"n": 2, "pairs": "scored", "lead": "batch"}),
    "arcs and states, labelled, dense of each arc": (DependencyCase, {"n": 2, "labels": 2, "lead": "both"}),
}  # fmt: skip
FEW = [
    "segments, half factored", "segments, scored", "spans", "grammar, own dense", "grammar, low rank",
    "grammar, factored", "grammar, scored", "arcs, labelled", "any arcs", "arcs and states",
    "arcs and states, factored",
]  # fmt: skip
STATEFUL = [name for name, (kind, how) in ZOO.items() if kind is not DependencyCase or "n" in how]


BOTH = [(name, way) for name in ZOO for way in ("whole", "restricted") if way == "whole" or name in STATEFUL]


def zoo(name: str, **how: Any) -> Case:
    kind, fixed = ZOO[name]
    return kind(**{"batch": (2,), "length": 3, **fixed, **how})


def possible(name: str, way: str = "whole", **how: Any) -> tuple[Case, Any]:
    """A case of which every sentence has a configuration, in spite of what is forbidden, and the model to test."""
    for seed in range(100):
        case = zoo(name, **{"lengths": [3, 2], "seed": seed, **how})
        model = made(case, way, seed)
        if all(truth.possible for truth in case.truths(model)):
            return case, model
    raise AssertionError(name)
