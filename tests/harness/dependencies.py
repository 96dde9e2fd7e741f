"""Dependency trees: their truth and their cases."""

import itertools
import math
from collections.abc import Iterator
from random import Random
from typing import Any, cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

import tailsum as ts
from harness.case import Case, Counted, Kind, Row, pad
from harness.pair_scores import PAIRS, PairScores
from harness.truth import Truth, Weighted, counts, total


def ancestors(word: int, heads: tuple[int, ...]) -> list[int]:
    """The word, its head, the head's head ... up to a root, or until they have gone round a cycle."""
    found = [word]
    while heads[found[-1]] != found[-1] and len(found) <= len(heads):
        found.append(heads[found[-1]])
    return found


def is_forest(heads: tuple[int, ...]) -> bool:
    """Whether every word hangs below a root."""
    return all(heads[ancestors(word, heads)[-1]] == ancestors(word, heads)[-1] for word in range(len(heads)))


def is_projective(heads: tuple[int, ...]) -> bool:
    """Whether all words between a head and its child are below that head; a root below none, so none may be covered."""
    return all(
        head in ancestors(word, heads)
        for child, head in enumerate(heads)
        for word in range(min(head, child) + 1, max(head, child))
    )


def dependency_trees(length: int, *, projective: bool, multiroot: bool) -> list[tuple[int, ...]]:
    """Every tree as the heads of its words, where a root is its own head."""
    return [
        heads
        for heads in itertools.product(range(length), repeat=length)
        if is_forest(heads)
        and (multiroot or sum(head == child for child, head in enumerate(heads)) == 1)
        and (not projective or is_projective(heads))
    ]


class DependencyTruth(Truth):
    """All labelled dependency trees with scores `arc [L, L, Lab]`, where `arc[c, c]` is for c as a root.

    With `node [L, N]` every word has a state too, and `transition [N, N]` scores the states of each head and child;
    a root has no head, so no such score. A configuration is (heads, labels, states), with
    `heads[c] = c` for a root and states None without `node`. `words_in_states [C, L, N]` says which states each
    configuration gives to the words.
    """

    def __init__(
        self, arc: Tensor, projective: bool, multiroot: bool, node: Tensor | None = None,
        transition: Tensor | None = None,
    ):  # fmt: skip
        length, _, n_labels = arc.shape
        assert arc.shape == (length, length, n_labels)
        every_states = [None] if node is None else list(itertools.product(range(node.shape[1]), repeat=length))
        configurations = [
            (heads, labels, states)
            for heads in dependency_trees(length, projective=projective, multiroot=multiroot)
            for labels in itertools.product(range(n_labels), repeat=length)
            for states in every_states
        ]
        arcs = [
            [(head, child, label) for child, (head, label) in enumerate(zip(heads, labels, strict=True))]
            for heads, labels, _ in configurations
        ]
        scores = total(arc, arcs)
        self.words_in_states = None
        if node is not None:
            assert len(node) == length
            words = [list(enumerate(states)) for _, _, states in configurations]
            scores = scores + total(node, words)
            self.words_in_states = counts(node.shape, words)
        if transition is not None:
            assert node is not None
            assert transition.shape == (node.shape[1], node.shape[1])
            pairs = [
                [(states[head], states[child]) for child, head in enumerate(heads) if head != child]
                for heads, _, states in configurations
            ]
            scores = scores + total(transition, pairs)
        super().__init__(configurations, scores, counts(arc.shape, arcs))

    @property
    def state_marginals(self) -> Tensor:
        """How probable each state of each word is."""
        assert self.words_in_states is not None
        return self.expected(self.words_in_states)


def tree_count(length: int, projective: bool, multiroot: bool) -> int:
    """How many trees there are."""
    if not projective:
        return (length + 1) ** (length - 1) if multiroot else length ** (length - 1)
    if multiroot:
        return math.comb(3 * length, length) // (2 * length + 1)
    return math.comb(3 * length - 2, length - 1) // length


class DependencyCase(Case):
    """Labels, states and pair scores if given; these by `lead`: shared, "batch", "arc", "head", "child" or "both"."""

    name = "dependencies"
    tuple_type = ts.Dependencies
    LEADS = ("shared", "batch", "arc", "head", "child", "both")
    landmarks = 2
    small = {
        "arcs": {},
        "multiroot": {"multiroot": True},
        "labelled": {"labels": 2},
        "non-projective": {"projective": False},
        "non-projective, multiroot, labelled": {"projective": False, "multiroot": True, "labels": 3},
        "states": {"n": 2},
        "states, multiroot, factored": {"n": 2, "pairs": "factored", "multiroot": True},
        "states, scored": {"n": 2, "pairs": "scored", "lead": "batch"},
        "states, labelled, dense of each arc": {"n": 2, "labels": 2, "lead": "both"},
    }
    few = ("labelled", "non-projective", "states", "states, multiroot, factored")
    large = {
        "states": {"length": 3, "n": 5, "scale": 0.7},
        "states, multiroot": {"length": 3, "n": 5, "multiroot": True, "scale": 0.7},
        "states, dense of each arc": {"length": 3, "n": 5, "lead": "arc", "scale": 0.7},
        "states, factored": {"length": 3, "n": 5, "pairs": "factored", "scale": 0.7},
    }
    embedded = ("states, factored",)

    @classmethod
    def sizes(cls, r: Random) -> Kind:
        n, labels = r.choice([None, None, 1, 2, 3]), r.choice([None, 1, 2, 3])
        kinds = (labels or 1) * (n or 1)
        size = {
            "n": n, "labels": labels, "length": r.randint(1, 4 if kinds <= 2 else 3 if kinds <= 4 else 2),
            "projective": n is not None or r.random() < 0.5, "multiroot": r.random() < 0.5,
        }  # fmt: skip
        return size if n is None else size | {"pairs": r.choice(PAIRS), "lead": r.choice(cls.LEADS)}

    def changes(self, r: Random) -> Kind:
        return {} if self.n is None else {"pairs": r.choice(PAIRS), "lead": r.choice(["shared", "batch"])}

    @classmethod
    def counted(cls, length: int) -> Iterator[Counted]:
        zeros = lambda *shape: torch.zeros(*shape).double()  # noqa: E731
        for projective, multiroot in itertools.product((True, False), repeat=2):
            trees, how = tree_count(length, projective, multiroot), {"projective": projective, "multiroot": multiroot}
            yield Counted(ts.DependencyTree(zeros(length, length), **how), trees, has_states=False)
            labelled = ts.DependencyTree(zeros(length, length, 3), labelled=True, **how)
            yield Counted(labelled, trees * 3**length, has_states=False)
            if projective:
                states = {"node": zeros(length, 2), "transition": zeros(2, 2)}
                yield Counted(ts.DependencyTree(zeros(length, length), **states, **how), trees * 2**length)

    def draw(
        self, projective: bool = True, multiroot: bool = False, labels: int | None = None, n: int | None = None,
        pairs: str = "dense", lead: str = "shared", shared: bool = False,
    ) -> None:  # fmt: skip
        self.projective, self.multiroot, self.labels, self.n = projective, multiroot, labels, n
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
        self.pairs = PairScores(self, pairs, leads.get(lead, (*self.batch, t, t)), n, both)

    @property
    def coupling(self) -> int:
        return 2

    @property
    def carrier(self) -> tuple[int, int]:
        return (0, 2 + (self.labels is not None)) if self.n is None else (1, 2)

    def block(self, b: int) -> None:
        self.banned[0][b, :, 0] = True

    def build(self, *leaves: Tensor) -> ts.DependencyTree:
        arc, *rest = leaves
        more = {}
        if self.n is not None:
            more["node"] = rest[0]
            more["transition"] = self.pairs.potential(rest[1:])
        more["labelled"] = self.labels is not None
        return ts.DependencyTree(arc, self.given, self.projective, self.multiroot, **more)

    def truth(self, b: int, leaves: list[Tensor]) -> Truth:
        (arc, *rest), t, length = leaves, self.length, self.lengths[b]
        arc = self.of_batch(arc if self.labels else arc[..., None], t, t, self.labels or 1)[b, :length, :length]
        if self.n is None:
            return DependencyTruth(arc, self.projective, self.multiroot)
        node = self.of_batch(rest[0], t, self.n)[b, :length]
        truth = DependencyTruth(arc, self.projective, self.multiroot, node)
        table = self.pairs.table(rest[1:])
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

    def configuration(self, row: Row, length: int) -> tuple:
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

    def other_marginals(self, model: Any) -> list[Tensor]:
        return [] if self.n is None else [model.state_marginals()]

    def expected_sums(self, model: Any) -> list[Tensor]:
        return [*super().expected_sums(model), model.marginals()]

    def state_marginals(self, model: Any) -> Tensor:
        return model.state_marginals()

    def more(self, model: Any, truths: list[Weighted]) -> list[tuple[Tensor, Tensor]]:
        if self.n is None:
            return []
        found = self.flat(model.scatter(model.state_marginals()))
        words = [cast("DependencyTruth", truth.truth).words_in_states for truth in truths]
        expected = [truth.expected(states) for truth, states in zip(truths, words, strict=True)]
        return [(x, F.pad(y, (0, 0, 0, self.length - len(y)))) for x, y in zip(found, expected, strict=True)]

    def within(self, length: int) -> tuple[slice, ...]:
        return slice(length), slice(length)

    @property
    def has_states(self) -> bool:
        return self.n is not None
