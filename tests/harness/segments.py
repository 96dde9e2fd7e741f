"""Segmentations: their truth and their cases."""

import itertools
import math
from collections.abc import Iterator
from random import Random
from typing import Any

import torch
from torch import Tensor

import tailsum as ts
from harness.case import Case, Counted, Kind, Row, pad
from harness.pair_scores import PAIRS, PairScores
from harness.truth import Truth, Weighted, counts, total

FORMS = ("table", "durations")


def segmentations(start: int, length: int, longest: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """Every way to cut positions start..length-1 into segments (start, duration)."""
    if start == length:
        yield ()
    for duration in range(1, min(longest, length - start) + 1):
        for rest in segmentations(start + duration, length, longest):
            yield ((start, duration), *rest)


class SegmentTruth(Truth):
    """All labelled segmentations with scores `segment [L, D, N]` and `transition [L-1, N, N]` or `[L-1, D, N, N]`.

    A configuration is a tuple of (start, duration, state). Where a segment of state b starts at t behind one of
    state a, `transition[t-1, a, b]` is added, or, with its duration d, `transition[t-1, d-1, a, b]`.
    """

    def __init__(self, segment: Tensor, transition: Tensor):
        length, longest, n = segment.shape
        assert transition.shape in {(length - 1, n, n), (length - 1, longest, n, n)}
        transition = (transition if transition.dim() == 4 else transition[:, None]).expand(-1, longest, -1, -1)
        configurations = [
            tuple((*cut, state) for cut, state in zip(cuts, states, strict=True))
            for cuts in segmentations(0, length, longest)
            for states in itertools.product(range(n), repeat=len(cuts))
        ]
        segments = [[(start, duration - 1, state) for start, duration, state in c] for c in configurations]
        boundaries = [[(t - 1, d - 1, a, b) for (_, d, a), (t, _, b) in itertools.pairwise(c)] for c in configurations]
        scores = total(segment, segments) + total(transition, boundaries)
        super().__init__(configurations, scores, counts(segment.shape, segments))


def added_up(emission: Tensor, duration: Tensor) -> Tensor:
    """The table `[L, D, N]` of sums of emissions, none beyond the end, and the score of the duration."""
    length, longest = len(emission), len(duration)
    rows = [
        torch.stack([emission[t : t + d].sum(0) + duration[d - 1] for d in range(1, longest + 1)])
        for t in range(length)
    ]
    return torch.stack(rows)


def cut(segment: Tensor) -> Tensor:
    """The table `[L, D, N]` where the last segment counts all durations that reach to the end or beyond."""
    length, longest, _ = segment.shape

    def score(t: int, d: int) -> Tensor:
        if t + d != length:
            return segment[t, d - 1]
        reaching = segment[t, d - 1 :]
        none = (reaching == -math.inf).all(0)  # which has a gradient of zero, not NaN
        return reaching.masked_fill(none, 0.0).logsumexp(0).masked_fill(none, -math.inf)

    return torch.stack([torch.stack([score(t, d) for d in range(1, longest + 1)]) for t in range(length)])


class SegmentCase(Case):
    """`longest` durations of `n` states; pair scores shared, by boundary ("time"), by sentence ("batch"), or by both.

    They may also differ `by_duration` of the segment before.
    """

    name = "segments"
    tuple_type = ts.Segments
    small = {
        "dense": {"longest": 2, "n": 2},
        "dense of each boundary": {"longest": 3, "n": 2, "lead": "time"},
        "factored": {"longest": 3, "n": 3, "pairs": "factored"},
        "half factored": {"longest": 2, "n": 2, "pairs": "half factored", "lead": "time"},
        "scored": {"longest": 2, "n": 2, "pairs": "scored", "lead": "both"},
        "durations": {"longest": 3, "n": 2, "form": "durations"},
        "censored": {"longest": 2, "n": 2, "lead": "time", "censored": True},
        "censored durations": {"longest": 3, "n": 2, "form": "durations", "censored": True},
        "dense by duration": {"longest": 2, "n": 2, "lead": "both", "by_duration": True},
        "half factored by duration": {"longest": 3, "n": 2, "pairs": "half factored", "by_duration": True},
        "scored by duration": {"longest": 2, "n": 2, "pairs": "scored", "lead": "time", "by_duration": True},
    }
    few = ("half factored", "scored", "dense by duration")
    large = {
        "dense": {"length": 4, "longest": 3, "n": 6, "scale": 0.7},
        "dense of each boundary": {"length": 4, "longest": 3, "n": 6, "lead": "time", "scale": 0.7},
        "factored": {"length": 4, "longest": 3, "n": 6, "pairs": "factored", "scale": 0.7},
        "dense by duration": {"length": 4, "longest": 3, "n": 6, "lead": "time", "by_duration": True, "scale": 0.7},
    }
    embedded = ("factored",)

    @classmethod
    def sizes(cls, r: Random) -> Kind:
        n = r.randint(1, 3)
        length = r.randint(1, {1: 6, 2: 5, 3: 4}[n])
        return {
            "n": n, "length": length, "longest": r.randint(1, length), "pairs": r.choice(PAIRS),
            "lead": r.choice(["shared", "time", "batch", "both"]), "form": r.choice(FORMS), "censored": r.random() < 0.3,
            "by_duration": r.random() < 0.4,
        }  # fmt: skip

    def changes(self, r: Random) -> Kind:
        lead, form = r.choice(["shared", "batch"]), r.choice(FORMS)
        return {"pairs": r.choice(PAIRS), "lead": lead, "form": form, "by_duration": r.random() < 0.4}

    @classmethod
    def counted(cls, length: int) -> Iterator[Counted]:
        for longest, n in ((1, 1), (2, 1), (length, 1), (3, 3)):
            count = [1]  # of the first positions, by the duration of the last segment
            for t in range(1, length + 1):
                count.append(n * sum(count[max(t - longest, 0) :]))
            yield Counted(
                ts.SemiMarkov(torch.zeros(length, longest, n).double(), torch.zeros(n, n).double()), count[-1]
            )

    def draw(
        self, longest: int, n: int, pairs: str = "dense", lead: str = "shared", shared: bool = False,
        form: str = "table", censored: bool = False, by_duration: bool = False,
    ) -> None:  # fmt: skip
        assert form in FORMS
        self.longest, self.n, self.form, self.censored, self.by_duration = longest, n, form, censored, by_duration
        steps = {"shared": (), "time": (self.length - 1,), "batch": (*self.batch, 1)}
        own = () if shared else self.batch
        if form == "durations":
            self.leaf(*own, self.length, n, used=self.inside()[..., None].expand(*self.batch, -1, n))
            self.leaf(longest, n)
        else:
            last = torch.arange(self.length)[:, None] + torch.arange(longest) * (not censored)
            used = last < torch.tensor(self.lengths)[:, None, None]
            used = used.reshape(*self.batch, self.length, longest, 1).expand(*self.batch, -1, -1, n)
            self.leaf(*own, self.length, longest, n, used=used)
        self.own = len(self.leaves)
        steps, between = steps.get(lead, (*self.batch, self.length - 1)), self.inside()[..., 1:]
        if by_duration:  # a segment before a boundary does not start before the sentence
            steps = (*steps, longest)
            between = between[..., None] & (torch.arange(longest) < torch.arange(1, self.length)[:, None])
        self.pairs = PairScores(self, pairs, steps, n, between)
        self.fields = dict.fromkeys(ts.Segments._fields, (self.length,))

    def build(self, *leaves: Tensor) -> ts.SemiMarkov:
        own, pairs = leaves[: self.own], self.pairs.potential(list(leaves[self.own :]))
        segment = ts.Durations(*own) if self.form == "durations" else own[0]
        pairs = ts.ByDuration(pairs) if self.by_duration else pairs
        return ts.SemiMarkov(segment, pairs, self.given, censored=self.censored)

    def truth(self, b: int, leaves: list[Tensor]) -> Truth:
        own, pairs, length = leaves[: self.own], leaves[self.own :], self.lengths[b]
        if self.form == "durations":
            emission = self.of_batch(own[0], self.length, self.n)[b, :length]
            segment = added_up(emission, own[1])
        else:
            segment = self.of_batch(own[0], self.length, self.longest, self.n)[b, :length]
        shape = (self.length - 1, *[self.longest] * self.by_duration, self.n, self.n)
        table = self.of_batch(self.pairs.table(pairs), *shape)[b, : length - 1]
        return SegmentTruth(cut(segment) if self.censored else segment, table)

    def more(self, model: Any, truths: list[Weighted]) -> list[tuple[Tensor, Tensor]]:
        found = self.flat(model.label_marginals())
        assert found.shape == (self.size, self.length, self.n)
        both = []
        for b, truth in enumerate(truths):
            covered = [[(t, i) for start, d, i in c for t in range(start, start + d)] for c in truth.configurations]
            both.append((found[b], truth.expected(counts((self.length, self.n), covered))))
        return both

    @property
    def coupling(self) -> int:
        return self.own

    def block(self, b: int) -> None:
        self.banned[0][b, 0] = True

    @property
    def carrier(self) -> tuple[int, int]:
        return 0, 2 if self.form == "durations" else 3

    def state_chances(self, model: Any) -> Tensor:
        return model.marginals().sum(-2)

    def nodes(self, truth: Truth) -> list[list[tuple[int, ...]]]:
        return [[(start, state) for start, _, state in c] for c in truth.configurations]

    def row(self, configuration: tuple) -> Row:
        starts, durations, states = (list(x) for x in zip(*configuration, strict=True))
        return pad(starts, self.length) + pad(durations, self.length, 0) + pad(states, self.length)

    def configuration(self, row: Row, length: int) -> tuple:
        starts, durations, states = (row[i * self.length : (i + 1) * self.length] for i in range(3))
        return tuple(x for x in zip(starts, durations, states, strict=True) if x[0] >= 0)

    @property
    def none(self) -> Row:
        return [-1] * self.length + [0] * self.length + [-1] * self.length
