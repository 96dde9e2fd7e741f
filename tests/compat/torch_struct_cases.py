"""Small instances of every class of the drop-in for torch-struct, and all events of each, listed by brute force.

A part is an index into the log-potentials of one sequence; those of a grammar are a tuple, and are written one after the
other. An event is the list of its parts.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

import tailsum.compat.torch_struct as ours

LENGTHS = [4, 2, 1]
Parts = list[tuple[int, ...]]


@dataclass(frozen=True)
class Case:
    """`make(name of the class in a module, potentials, lengths)`; `shapes` of the potentials of one sequence."""

    build: Callable
    shapes: tuple[tuple[int, ...], ...]
    events: Callable[[int], Iterator[Parts]]
    has_states: bool = False
    works_there: bool = True  # whether torch-struct has this class, and it runs on the CPU

    def potentials(self, seed: int, forbid: float = 0.0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(seed)
        drawn = []
        for shape in self.shapes:
            x = torch.randn(len(LENGTHS), *shape, generator=generator, dtype=torch.float64)
            x[torch.rand(x.shape, generator=generator) < forbid] = -math.inf
            drawn.append(x.to(dtype))
        return tuple(drawn)

    def model(self, *potentials: Tensor, lengths=LENGTHS, module=ours):
        return self.build(module, potentials[0] if len(potentials) == 1 else potentials, lengths)


@dataclass(frozen=True)
class Truth:
    """All events of one sequence `[M, P]`, flat, and their scores `[M]`."""

    events: Tensor
    scores: Tensor

    @property
    def log_z(self) -> Tensor:
        return self.scores.logsumexp(0) if len(self.scores) else torch.tensor(-math.inf).double()

    @property
    def chances(self) -> Tensor:
        return (self.scores - self.log_z).exp() if self.log_z > -math.inf else torch.zeros_like(self.scores)

    def mean(self, values: Tensor) -> Tensor:
        """The mean of `values [M]`, of those that have a chance."""
        return torch.where(self.chances > 0, self.chances * values, 0.0).sum()


def flattened(case: Case, event) -> Tensor:
    """Events as `[*sample, B, P]`, those of a grammar without their spans, which have no potentials."""
    tensors = (event,) if isinstance(event, Tensor) else event[: len(case.shapes)]
    return torch.cat([x.flatten(x.dim() - len(s)) for x, s in zip(tensors, case.shapes, strict=True)], -1)


def truths(case: Case, potentials: tuple[Tensor, ...]) -> list[Truth]:
    found, sizes = [], [math.prod(shape) for shape in case.shapes]
    scores = torch.cat([x.flatten(1) for x in potentials], -1).double()
    for row, length in zip(scores, LENGTHS, strict=True):
        listed = list(case.events(length))
        events = torch.zeros(len(listed), sum(sizes), dtype=torch.float64)
        for m, parts in enumerate(listed):
            for which, *part in parts:
                place = sum(sizes[:which])
                for index, size in zip(part, case.shapes[which], strict=True):
                    assert 0 <= index < size
                place += sum(i * math.prod(case.shapes[which][d + 1 :]) for d, i in enumerate(part))
                events[m, place] += 1
        found.append(Truth(events, torch.where(events > 0, row * events, 0.0).sum(-1)))
    return found


# All events.


def chains(length: int, size: int = 2) -> Iterator[Parts]:
    for states in itertools.product(range(size), repeat=length):
        yield [(0, n, b, a) for n, (a, b) in enumerate(itertools.pairwise(states))]


def segmentations(length: int, longest: int = 3, size: int = 2) -> Iterator[Parts]:
    for count in range(1, length + 1):
        for inner in itertools.combinations(range(1, length - 1), max(0, count - 2)):
            bounds = [0] if length == 1 else [0, *inner, length - 1]
            if len(bounds) != count or any(b - a >= longest for a, b in itertools.pairwise(bounds)):
                continue
            for states in itertools.product(range(size), repeat=count):
                ends = itertools.pairwise(zip(bounds, states, strict=True))
                yield [(0, n, m - n, b, a) for (n, a), (m, b) in ends]


def dependencies(length: int, projective: bool, multiroot: bool, labels: int | None = None) -> Iterator[Parts]:
    for heads in itertools.product(range(-1, length), repeat=length):

        def above(word: int, heads: tuple[int, ...] = heads) -> list[int]:
            chain = [word]
            while chain[-1] >= 0 and len(chain) <= length + 1:
                chain.append(heads[chain[-1]])
            return chain

        if any(above(word)[-1] >= 0 for word in range(length)) or (heads.count(-1) > 1 and not multiroot):
            continue
        between = ((h, w) for c, h in enumerate(heads) if h >= 0 for w in range(min(h, c) + 1, max(h, c)))
        if projective and any(h not in above(w) for h, w in between):
            continue
        arcs = [(c if h < 0 else h, c) for c, h in enumerate(heads)]
        for given in itertools.product(*[range(labels)] * length) if labels else [()]:
            yield [(0, *arc, *given[c : c + 1]) for c, arc in enumerate(arcs)]


def binary(first: int, last: int) -> Iterator[list[tuple[int, int]]]:
    if first == last:
        yield [(first, last)]
    for middle in range(first, last):
        for left, right in itertools.product(binary(first, middle), binary(middle + 1, last)):
            yield [(first, last), *left, *right]


def trees(length: int, size: int = 2) -> Iterator[Parts]:
    for spans in binary(0, length - 1):
        for labels in itertools.product(range(size), repeat=len(spans)):
            yield [(0, *span, label) for span, label in zip(spans, labels, strict=True)]


def grammars(length: int, heads: int = 2, leaves: int = 2) -> Iterator[Parts]:
    for spans in binary(0, length - 1) if length > 1 else []:
        for labels in itertools.product(range(2), repeat=len(spans)):
            label = dict(zip(spans, labels, strict=True))
            parts = [(0, i, x) for (i, j), x in label.items() if i == j] + [(2, labels[0])]
            for (i, j), x in label.items():
                for k in range(i, j):
                    left, right = (i, k), (k + 1, j)
                    if left in label and right in label:
                        of = [label[s] + heads * (s[0] == s[1]) for s in (left, right)]
                        parts.append((1, x, *of))
            yield parts


def alignments(length: int, width: int = 3) -> Iterator[Parts]:
    def onward(i: int, j: int) -> Iterator[Parts]:
        if (i, j) == (length - 1, width - 1):
            yield []
        for op, (a, b) in enumerate([(i, j + 1), (i + 1, j + 1), (i + 1, j)]):
            if a < length and b < width:
                for rest in onward(a, b):
                    yield [(0, a, b, op), *rest]

    for rest in onward(0, 0):
        yield [(0, 0, 0, 1), *rest]


def labellings(length: int, size: int = 3, target: tuple[int, ...] = (1, 2)) -> Iterator[Parts]:
    for labels in itertools.product(range(size), repeat=length):
        if tuple(x for x, _ in itertools.groupby(labels) if x) == target:
            yield [(0, t, x) for t, x in enumerate(labels)]


def parser(name: str, **how) -> Callable:
    return lambda module, x, lengths: getattr(module, name)(x, lengths, **how)


CASES = {
    "chain": Case(parser("LinearChainCRF"), ((3, 2, 2),), chains, has_states=True),
    "segments": Case(parser("SemiMarkovCRF"), ((3, 3, 2, 2),), segmentations, has_states=True, works_there=False),
    "dependencies": Case(parser("DependencyCRF"), ((4, 4),), lambda n: dependencies(n, True, True)),
    "one root": Case(parser("DependencyCRF", multiroot=False), ((4, 4),), lambda n: dependencies(n, True, False)),
    "labelled": Case(parser("DependencyCRF"), ((4, 4, 2),), lambda n: dependencies(n, True, True, 2)),
    "crossing": Case(
        parser("NonProjectiveDependencyCRF"), ((4, 4),), lambda n: dependencies(n, False, False), works_there=False
    ),
    "crossing, any roots": Case(
        parser("NonProjectiveDependencyCRF", multiroot=True),
        ((4, 4),),
        lambda n: dependencies(n, False, True),
        works_there=False,
    ),
    "trees": Case(parser("TreeCRF"), ((4, 4, 2),), trees, has_states=True),
    "grammar": Case(parser("SentCFG"), ((4, 2), (2, 4, 4), (2,)), grammars, has_states=True),
    "alignment": Case(
        lambda module, x, lengths: module.AlignmentCRF(x, lengths=lengths),
        ((4, 3, 3),),
        alignments,
        works_there=False,
    ),
    "frames": Case(
        lambda module, x, lengths: module.CTC(x, torch.tensor([1, 2]).expand(len(x), 2), lengths),
        ((4, 3),),
        labellings,
        works_there=False,
    ),
}
