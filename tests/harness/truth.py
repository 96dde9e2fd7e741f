"""The truth for small structured models: every configuration of one sentence is written down and its score added up."""

import itertools
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

Uses = Sequence[Sequence[tuple[int, ...]]]  # for each configuration, the entries of a table that it uses


def total(table: Tensor, uses: Uses) -> Tensor:
    """For each configuration the sum `[C]` of the entries it uses."""
    owner, index = listed(uses, table.dim())
    values = table.double()[tuple(index.T)]
    return torch.zeros(len(uses)).double().index_add(0, owner, values)


def counts(shape: tuple[int, ...], uses: Uses) -> Tensor:
    """For each configuration how often it uses each entry, `[C, *shape]`."""
    owner, index = listed(uses, len(shape))
    ones = torch.ones(len(owner)).double()
    return torch.zeros(len(uses), *shape).double().index_put((owner, *index.T), ones, accumulate=True)


def listed(uses: Uses, dim: int) -> tuple[Tensor, Tensor]:
    """All uses in one list: whose `[U]` and of what `[U, dim]`."""
    owner = [c for c, used in enumerate(uses) for _ in used]
    index = [entry for used in uses for entry in used]
    return torch.tensor(owner, dtype=torch.long), torch.tensor(index, dtype=torch.long).reshape(-1, dim)


class Truth:
    """All configurations of one sentence, their scores `[C]` and the parts `[C, *part_shape]` that they use."""

    def __init__(self, configurations: list[tuple], scores: Tensor, parts: Tensor):
        self.configurations = configurations
        self.scores = scores
        self.parts = parts
        self._index = {configuration: c for c, configuration in enumerate(configurations)}
        assert len(self._index) == len(configurations) == len(scores) == len(parts)

    @property
    def possible(self) -> bool:
        return bool((self.scores > -math.inf).any())

    @property
    def log_partition(self) -> Tensor:
        return self.scores.logsumexp(0)

    @property
    def probability(self) -> Tensor:
        return self.scores.softmax(0) if self.possible else torch.zeros_like(self.scores)

    @property
    def entropy(self) -> Tensor:
        return self.cross_entropy(self)

    @property
    def marginals(self) -> Tensor:
        return self.expected(self.parts)

    def expected(self, values: Tensor) -> Tensor:
        """The mean over configurations of values `[C, ...]`."""
        return torch.tensordot(self.probability, values, 1)

    def cross_entropy(self, other: "Truth") -> Tensor:
        """Zero where this is impossible; infinite where it allows what the other does not."""
        assert self.configurations == other.configurations
        probability = self.probability
        allowed = probability > 0
        scores = other.scores[allowed]
        log_q = scores - other.log_partition if other.possible else scores  # then all minus infinity
        return -(probability[allowed] * log_q).sum()

    def best(self, k: int) -> Tensor:
        """The scores of the k best configurations, minus infinity where there are fewer."""
        found = self.scores.sort(descending=True).values[:k]
        return torch.nn.functional.pad(found, (0, k - len(found)), value=-math.inf)

    def index_of(self, configuration: tuple) -> int:
        """Where a configuration stands in the list; a KeyError if it is none."""
        return self._index[configuration]


def segmentations(start: int, length: int, longest: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """Every way to cut positions start..length-1 into segments (start, duration)."""
    if start == length:
        yield ()
    for duration in range(1, min(longest, length - start) + 1):
        for rest in segmentations(start + duration, length, longest):
            yield ((start, duration), *rest)


class SegmentTruth(Truth):
    """All labelled segmentations with scores `segment [L, D, N]` and `transition [L-1, N, N]`.

    A configuration is a tuple of (start, duration, state). Where a segment of state b starts at t behind one of
    state a, `transition[t-1, a, b]` is added.
    """

    def __init__(self, segment: Tensor, transition: Tensor):
        length, longest, n = segment.shape
        assert transition.shape == (length - 1, n, n)
        configurations = [
            tuple((*cut, state) for cut, state in zip(cuts, states, strict=True))
            for cuts in segmentations(0, length, longest)
            for states in itertools.product(range(n), repeat=len(cuts))
        ]
        segments = [[(start, duration - 1, state) for start, duration, state in c] for c in configurations]
        boundaries = [[(t - 1, a, b) for (_, _, a), (t, _, b) in itertools.pairwise(c)] for c in configurations]
        scores = total(segment, segments) + total(transition, boundaries)
        super().__init__(configurations, scores, counts(segment.shape, segments))


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
