"""Paths through lattices, CTC and alignments among them: their truth and their cases. None of them has states to sketch."""

import itertools
import math
from collections.abc import Iterator
from random import Random
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

import tailsum as ts
from harness.case import Case, Counted, Kind, Row, pad
from harness.truth import Truth, counts, total


def collapsed(labels: tuple[int, ...], blank: int) -> tuple[int, ...]:
    """Repeated labels merged, then blanks removed."""
    return tuple(label for label, _ in itertools.groupby(labels) if label != blank)


class LabelTruth(Truth):
    """All labellings of frames with scores `[L, V]` that collapse to a target."""

    def __init__(self, frames: Tensor, target: tuple[int, ...], blank: int):
        length, v = frames.shape
        every = itertools.product(range(v), repeat=length)
        configurations = [labels for labels in every if collapsed(labels, blank) == target]
        uses = [list(enumerate(labels)) for labels in configurations]
        super().__init__(configurations, total(frames, uses), counts(frames.shape, uses))


class CTCCase(Case):
    """`v` labels; targets of up to `s` of them, drawn by `pattern`, and short enough for their sentence unless `tight`."""

    name = "ctc"
    small = {
        "one label": {"v": 3, "s": 1, "pattern": 0},
        "two labels": {"v": 3, "s": 2, "pattern": 10},
        "last label blank": {"v": 3, "s": 2, "pattern": 10, "blank": 2},
    }
    few = ("two labels",)

    @classmethod
    def sizes(cls, r: Random) -> Kind:
        v = r.randint(2, 4)
        return {
            "v": v, "s": r.randint(0, 3), "length": r.randint(1, {2: 6, 3: 5, 4: 4}[v]), "pattern": r.randint(0, 999),
            "tight": r.random() < 0.5, "blank": r.randrange(v),
        }  # fmt: skip

    @classmethod
    def counted(cls, length: int) -> Iterator[Counted]:
        for s in range(4):  # without repeats: a choice of where the labels and the blanks between them begin
            zeros, target = torch.zeros(length, 5).double(), torch.arange(1, s + 1)
            yield Counted(ts.CTC(zeros, target), math.comb(length + s, 2 * s), has_states=False)

    def draw(self, v: int, s: int, pattern: int, blank: int = 0, tight: bool = False, shared: bool = False) -> None:
        self.v, self.blank = v, blank
        self.targets = [self._target(Random(100 * pattern + length), s, length, tight) for length in self.lengths]
        self.longest = s
        inside = self.inside()[..., None].expand(*self.batch, self.length, v)
        self.leaf(*(() if shared else self.batch), self.length, v, used=inside)
        self.fields = {"states": (self.length,)}

    def _target(self, r: Random, s: int, length: int, tight: bool) -> tuple[int, ...]:
        """A target that sentences of this length have, so that models of several batches agree."""
        labels = [label for label in range(self.v) if label != self.blank]
        count = r.randint(0, s) if tight else r.randint(min(1, s), max(min(1, s), min(s, (length + 1) // 2)))
        return tuple(r.choice(labels) for _ in range(count))

    def build(self, *leaves: Tensor) -> ts.CTC:
        rows = [
            [*target, *[-7] * (self.longest - len(target))] for target in self.targets
        ]  # the padding may be anything
        targets = torch.tensor(rows, dtype=torch.long).reshape(*self.batch, self.longest)
        counts = torch.tensor([len(target) for target in self.targets], dtype=torch.long).reshape(self.batch)
        return ts.CTC(leaves[0], targets, self.given, counts, self.blank)

    def truth(self, b: int, leaves: list[Tensor]) -> LabelTruth:
        frames = self.of_batch(leaves[0], self.length, self.v)[b, : self.lengths[b]]
        return LabelTruth(frames, self.targets[b], self.blank)

    def nodes(self, truth: Truth) -> list[list[tuple[int, ...]]]:
        return [list(enumerate(c)) for c in truth.configurations]

    def row(self, configuration: tuple) -> Row:
        return pad(list(configuration), self.length)

    def configuration(self, row: Row, length: int) -> tuple:
        return tuple(row[:length])

    def block(self, b: int) -> None:
        self.banned[0][b, 0] = True

    @property
    def coupling(self) -> int:
        return 0

    @property
    def has_states(self) -> bool:
        return False


def moves_to(i: int, j: int) -> Iterator[tuple[tuple[int, int, int], ...]]:
    """Every path from (0, 0) to (i, j) as its moves: match 0, delete 1 or insert 2, and the cell that each arrives at."""
    if (i, j) == (0, 0):
        yield ()
    for move, (before, left) in enumerate(((i - 1, j - 1), (i - 1, j), (i, j - 1))):
        if min(before, left) >= 0:
            for path in moves_to(before, left):
                yield (*path, (move, i, j))


class MoveTruth(Truth):
    """All alignments of two sequences with scores of matches `[n, M]`, deletes `[n, M+1]` and inserts `[n+1, M]`."""

    def __init__(self, match: Tensor, delete: Tensor, insert: Tensor, other: int):
        configurations = list(moves_to(len(match), other))
        tables = F.pad(match, (1, 0, 1, 0)), F.pad(delete, (0, 0, 1, 0)), F.pad(insert, (1, 0))
        uses = [[(i, j, move) for move, i, j in path] for path in configurations]
        grid = torch.stack(tables, -1)
        parts = counts(grid.shape, uses)
        super().__init__(configurations, total(grid, uses), parts[:, 1:, 1:, 0])
        self.deletes, self.inserts = parts[:, 1:, :, 1], parts[:, :, 1:, 2]


class AlignmentCase(Case):
    """Sequences of `length` and of up to `m` positions, the latter drawn by `pattern`; gaps score by cell, or by position."""

    name = "alignment"
    small = {"by position": {"m": 2, "pattern": 17}, "by cell": {"m": 2, "pattern": 14, "cells": True}}
    few = ("by cell",)
    examples = {"operations": 45, "divergences": 15, "scores": 15}

    @classmethod
    def sizes(cls, r: Random) -> Kind:
        return {
            "length": r.randint(1, 4), "m": r.randint(1, 3), "pattern": r.randint(0, 999), "cells": r.random() < 0.5
        }  # fmt: skip

    def changes(self, r: Random) -> Kind:
        return {"cells": r.random() < 0.5}

    @classmethod
    def counted(cls, length: int) -> Iterator[Counted]:
        for m in (1, 3):
            zeros = [torch.zeros(*shape).double() for shape in ((length, m), (length,), (m,))]
            delannoy = sum(math.comb(m, k) * math.comb(length, k) * 2**k for k in range(min(m, length) + 1))
            yield Counted(ts.Alignment(*zeros), delannoy, has_states=False)

    def draw(self, m: int, pattern: int, cells: bool = False, shared: bool = False) -> None:
        self.m, self.cells = m, cells
        self.others = [Random(100 * pattern + length).randint(0, m) for length in self.lengths]
        own = () if shared else self.batch
        rows, columns = torch.tensor(self.lengths), torch.tensor(self.others)
        shapes = (self.length, m), (self.length, m + 1), (self.length + 1, m)
        for height, width in shapes:
            i = torch.arange(height) < rows[:, None] + (height > self.length)
            j = torch.arange(width) < columns[:, None] + (width > m)
            used = (i[:, :, None] & j[:, None]).reshape(*self.batch, height, width)
            if cells or (height, width) == (self.length, m):
                self.leaf(*own, height, width, used=used)
            else:
                dim = -1 if width > m else -2
                self.leaf(*own, height if dim == -1 else width, used=used.any(dim))

    @property
    def fields(self) -> dict[str, tuple[int, ...]]:
        return {"states": (self.length + 1, self.m + 1)}

    def build(self, *leaves: Tensor) -> ts.Alignment:
        return ts.Alignment(*leaves, self.given, torch.tensor(self.others, dtype=torch.long).reshape(self.batch))

    def truth(self, b: int, leaves: list[Tensor]) -> MoveTruth:
        match, delete, insert = leaves
        if not self.cells:
            delete, insert = delete[..., None].expand(*delete.shape, self.m + 1), insert[..., None, :]
        n = self.lengths[b]
        return MoveTruth(
            self.of_batch(match, self.length, self.m)[b, :n],
            self.of_batch(delete, self.length, self.m + 1)[b, :n],
            self.of_batch(insert, self.length + 1, self.m)[b, : n + 1],
            self.others[b],
        )

    def nodes(self, truth: Truth) -> list[list[tuple[int, ...]]]:
        return [[(i, j, move) for move, i, j in c] for c in truth.configurations]

    def row(self, configuration: tuple) -> Row:
        grid = [-1] * self.width
        for move, i, j in configuration:
            grid[i * (self.m + 1) + j] = move
        return grid

    def configuration(self, row: Row, length: int) -> tuple:
        cells = [(move, *divmod(place, self.m + 1)) for place, move in enumerate(row) if move >= 0]
        return tuple(sorted(cells, key=lambda cell: cell[1] + cell[2]))

    def weights(self, model: Any, sample: Any) -> list[Tensor]:
        return [sample.weights[..., 1:, 1:, 0]]

    def other_marginals(self, model: Any) -> list[Tensor]:
        return list(model.gap_marginals())

    def more(self, model: Any, truths: list[Any]) -> list[tuple[Tensor, Tensor]]:
        deletes, inserts = (self.flat(x) for x in model.gap_marginals())
        found = []
        for b, truth in enumerate(truths):
            rows = self.length - self.lengths[b]
            for own, uses in ((deletes[b], truth.truth.deletes), (inserts[b], truth.truth.inserts)):
                found.append((own, F.pad(truth.expected(uses), (0, 0, 0, rows))))
        return found

    def block(self, b: int) -> None:
        for leaf, banned in enumerate(self.banned):
            if leaf == 0 or self.cells:
                banned[b, ..., 0, :] = True
                banned[b, ..., :, 0] = True
            else:
                banned[b, ..., 0] = True

    @property
    def coupling(self) -> int:
        return 0

    @property
    def has_states(self) -> bool:
        return False


Arcs = list[tuple[int, int]]


def paths(arcs: Arcs, end: int, node: int = 0) -> Iterator[tuple[int, ...]]:
    """Every path from a node to the end, as the places of its arcs."""
    if node == end:
        yield ()
        return
    for e, (tail, head) in enumerate(arcs):
        if tail == node:
            for path in paths(arcs, end, head):
                yield (e, *path)


def random_graph(r: Random, n: int, extra: int) -> Arcs:
    """An acyclic graph from node 0 to n-1, the nodes between in any order: some parallel arcs, some nodes that lead nowhere."""
    order = [0, *r.sample(range(1, n - 1), n - 2), n - 1]
    through = [node for node in order[1:-1] if r.random() < 0.5]
    arcs = list(itertools.pairwise([0, *through, n - 1]))
    for _ in range(extra):
        i = r.randrange(n - 1)
        arcs.append((order[i], order[r.randrange(i + 1, n)]))
        if r.random() < 0.3:
            arcs.append(arcs[-1])
    r.shuffle(arcs)
    return arcs


class PathTruth(Truth):
    """All paths from node 0 to the end, with scores of arcs `[E]`."""

    def __init__(self, scores: Tensor, arcs: Arcs, end: int):
        configurations = list(paths(arcs, end))
        uses = [[(e,) for e in path] for path in configurations]
        super().__init__(configurations, total(scores, uses), counts(scores.shape, uses))


class LatticeCase(Case):
    """Graphs of `length` nodes beside the ends or, if `own`, of up to so many in each sentence, drawn by `pattern`."""

    name = "lattice"
    small = {"one graph": {"pattern": 29}, "graphs of their own": {"pattern": 9, "own": True}}
    few = ("one graph",)  # graphs of their own are not compared with a single one
    examples = {"operations": 45, "divergences": 15, "scores": 15}
    has_lengths = False

    @classmethod
    def sizes(cls, r: Random) -> Kind:
        return {"length": r.randint(1, 4), "pattern": r.randint(0, 999), "own": r.random() < 0.5}

    @classmethod
    def random(cls, r: Random) -> "LatticeCase":
        return cls(
            batch=r.choice([(), (1,), (3,), (2, 2)]), shared=r.random() < 0.3, forbidden=r.choice([0.0, 0.15, 0.4]),
            scale=r.choice([0.1, 1.0, 5.0]), seed=r.randint(0, 2**32), **cls.sizes(r),
        )  # fmt: skip

    @classmethod
    def counted(cls, length: int) -> Iterator[Counted]:
        every = torch.triu_indices(length + 1, length + 1, 1)
        yield Counted(ts.Lattice(every, torch.zeros(every.shape[1]).double()), 2 ** (length - 1), has_states=False)
        line = torch.arange(length).repeat(3)
        yield Counted(
            ts.Lattice(torch.stack((line, line + 1)), torch.zeros(3 * length).double()), 3**length, has_states=False
        )

    def draw(self, pattern: int, own: bool = False, shared: bool = False) -> None:
        r = Random(pattern)
        sizes = [2 + (r.randint(0, self.length) if own and b else self.length) for b in range(self.size)]
        if own:
            self.graphs = [(random_graph(r, n, 4), n) for n in sizes]
        else:
            self.graphs = [(random_graph(r, 2 + self.length, 5), 2 + self.length)] * self.size
        width = max((len(arcs) for arcs, _ in self.graphs), default=1)
        rows = [[*arcs, *[(-1, -1)] * (width - len(arcs))] for arcs, _ in self.graphs]
        arcs = torch.tensor(rows, dtype=torch.long).reshape(*self.batch, width, 2).mT
        self.arcs = arcs if own or not self.size else arcs.reshape(-1, 2, width)[0]
        used = (arcs[..., 0, :] >= 0).reshape(*self.batch, width)
        self.leaf(*(() if shared else self.batch), width, used=used)
        lengths = [len(path) for arcs, n in self.graphs for path in paths(arcs, n - 1)]
        self.fields = {"states": (max(lengths, default=0),)}

    def build(self, *leaves: Tensor) -> ts.Lattice:
        return ts.Lattice(
            self.arcs, leaves[0], torch.tensor([n for _, n in self.graphs], dtype=torch.long).reshape(self.batch)
        )

    def truth(self, b: int, leaves: list[Tensor]) -> PathTruth:
        arcs, n = self.graphs[b]
        return PathTruth(self.of_batch(leaves[0], leaves[0].shape[-1])[b], arcs, n - 1)

    def nodes(self, truth: Truth) -> list[list[tuple[int, ...]]]:
        return [[(e,) for e in c] for c in truth.configurations]

    def row(self, configuration: tuple) -> Row:
        return pad(list(configuration), self.width)

    def configuration(self, row: Row, length: int) -> tuple:
        return tuple(e for e in row if e >= 0)

    def block(self, b: int) -> None:
        arcs, n = self.graphs[b]
        for e, (_, head) in enumerate(arcs):
            if head == n - 1:
                self.banned[0][b, e] = True

    def within(self, length: int) -> tuple[slice, ...]:
        return (slice(None),)

    @property
    def coupling(self) -> int:
        return 0

    @property
    def has_states(self) -> bool:
        return False
