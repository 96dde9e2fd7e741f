"""Acyclic automata in the text formats of OpenFst and of k2, to and from `Lattice`.

Both have a line for each arc. In OpenFst it is `from to label weight` or, for transducers, `from to input output weight`;
weights are costs and may be left out, the first state of the file is the start, and lines `state weight` name final states. In k2
it is `from to label score`; state 0 is the start, the last line is the only final state, and the arcs into it, and only
they, have the label -1. A source is a text, or the path of a file: a string is always a text.
"""

import math
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.chains.lattice import Lattice
from tailsum.formats.names import name_of

Source = str | PathLike[str]


class Automaton(NamedTuple):
    """The arcs `[2, E]` of an automaton from node 0 to the last one, their scores and labels `[E]`, and the number of nodes.

    A transducer has labels of its output too.
    """

    arcs: Int[Tensor, "2 E"]
    scores: Float[Tensor, " E"]
    labels: Int[Tensor, " E"]
    n_nodes: int
    output_labels: Int[Tensor, " E"] | None = None

    def to_lattice(self) -> Lattice:
        r"""The distribution over its paths.

        >>> parse_openfst("0 1 5 0.5\n0 1 6 1.5\n1").to_lattice().argmax()
        tensor([0])
        """
        return Lattice(self.arcs, self.scores, self.n_nodes, self.labels)

    @classmethod
    def from_lattice(cls, lattice: Lattice) -> "Automaton":
        """The automaton of a lattice without a batch, as `lattice[0]` is one; without labels, they are 0."""
        if lattice.batch_shape:
            raise ValueError(f"lattice must have no batch, as lattice[0] has none: got {list(lattice.batch_shape)}")
        real = lattice.arcs[0] >= 0
        labels = torch.zeros_like(lattice.arcs[0]) if lattice.labels is None else lattice.labels
        scores = lattice.scores.detach().reshape(-1)
        return cls(lattice.arcs[:, real], scores[real], labels[real], int(lattice.n_nodes))


def stack_automata(automata: Sequence[Automaton]) -> Lattice:
    r"""One lattice for a batch of automata.

    >>> stack_automata([parse_k2("0 1 -1 0.5\n1"), parse_k2("0 1 7 0.5\n1 2 -1 0\n2")])
    Lattice(batch=[2], L=2, E=2)
    """
    if not automata:
        raise ValueError("automata must be at least one: got none")
    width = max(len(x.scores) for x in automata)

    def padded(rows: list[Tensor], value: int) -> Tensor:
        return torch.stack([torch.nn.functional.pad(x, (0, width - x.shape[-1]), value=value) for x in rows])

    arcs = padded([x.arcs for x in automata], -1)
    scores, labels = padded([x.scores for x in automata], 0), padded([x.labels for x in automata], -1)
    return Lattice(arcs, scores, [x.n_nodes for x in automata], labels)


def parse_openfst(
    source: Source, names: Sequence[str] | None = None, acceptor: bool = True, dtype: torch.dtype = torch.float32
) -> Automaton:
    r"""The automaton of a text or a file of OpenFst; a ValueError names the first invalid line.

    Labels are numbers or, with `names`, the names of these. Not an `acceptor` is what has labels of its output. Scores are
    minus the weights. If there are several final states, or one with a weight or with arcs that leave it, arcs with the label 0
    lead from them to one more node.

    >>> automaton = parse_openfst("3 1 5 0.5\n1 2 6\n2")
    >>> automaton.arcs.tolist(), automaton.scores.tolist(), automaton.n_nodes
    ([[0, 1], [1, 2]], [-0.5, 0.0], 3)
    """
    lines, rows, finals = _Lines(source, names), list[tuple[int, ...]](), dict[int, float]()
    scores, columns, start = list[float](), 2 if acceptor else 3, None
    for line in lines.read(*range(1, columns + 3)):
        state = line.state(0)
        start = state if start is None else start
        if len(line.words) < 3:
            if state in finals:
                raise line.error("each final state must be named once", line.words[0])
            finals[state] = 0.0 - line.number(1, cost=True)
            continue
        if len(line.words) <= columns:
            raise line.error(f"an arc must have {columns + 1} or {columns + 2} columns", str(len(line.words)))
        rows.append((state, line.state(1), *(line.label(i) for i in range(2, columns + 1))))
        scores.append(0.0 - line.number(columns + 1, cost=True))
    if start is None or not finals:
        raise ValueError(f"{lines.where}an automaton must have a final state: got none")
    last = next(iter(finals))
    if len(finals) > 1 or finals[last] or last == start or any(row[0] == last for row in rows):
        last = max([*finals, *(max(row[:2]) for row in rows)]) + 1
        rows += [(state, last, *[0] * (columns - 1)) for state in finals]
        scores += finals.values()
    return _automaton(lines.where, rows, scores, (start, last), dtype)


def write_openfst(automaton: Automaton | Lattice, names: Sequence[str] | None = None) -> str:
    r"""The text of an automaton, an arc of node 0 first; of a lattice without a batch too.

    >>> write_openfst(parse_openfst("0 1 5 0.5\n1"))
    '0\t1\t5\t0.5\n1\n'
    """
    automaton = automaton if isinstance(automaton, Automaton) else Automaton.from_lattice(automaton)
    rows = [*zip(*automaton.arcs.tolist(), *(_named(x, names) for x in _labels(automaton)), strict=True)]
    weights = ["Infinity" if x == -math.inf else _text(-x) for x in automaton.scores.tolist()]
    lines = ["\t".join(map(str, (*row, weight))) for row, weight in zip(rows, weights, strict=True)]
    lines.sort(key=lambda line: not line.startswith("0\t"))  # the file begins with the start
    return "\n".join([*lines, str(automaton.n_nodes - 1)]) + "\n"


def parse_k2(source: Source, dtype: torch.dtype = torch.float32) -> Automaton:
    r"""The automaton of a text or a file of k2; a ValueError names the first invalid line.

    >>> parse_k2("0 1 7 0.5\n1 2 -1 0\n2").labels
    tensor([ 7, -1])
    """
    lines, rows, scores, final = _Lines(source, None), list[tuple[int, ...]](), list[float](), None
    read = list(lines.read(1, 4))
    for line in read:
        if final is not None:
            raise line.error("nothing must follow the line of the final state", " ".join(line.words))
        if len(line.words) == 1:
            final = line.state(0)
            continue
        rows.append((line.state(0), line.state(1), line.label(2)))
        scores.append(line.number(3))
    if final is None:
        raise ValueError(f"{lines.where}an automaton must end with its final state: got none")
    for line, row in zip(read, rows, strict=False):
        if (row[1] == final) != (row[2] == -1):
            raise line.error(f"label -1 must be that of the arcs into the final state, {final}, alone", line.words[2])
    return _automaton(lines.where, rows, scores, (0, final), dtype)


def write_k2(automaton: Automaton | Lattice) -> str:
    r"""The text of an automaton, or of a lattice without a batch.

    If an arc into the last node has another label than -1, one more node follows, with an arc of this label and of score 0.

    >>> write_k2(parse_k2("0 1 7 0.5\n1 2 -1 0\n2"))
    '0 1 7 0.5\n1 2 -1 0.0\n2\n'
    """
    automaton = automaton if isinstance(automaton, Automaton) else Automaton.from_lattice(automaton)
    end, lines = automaton.n_nodes - 1, list[str]()
    rows = [*zip(*automaton.arcs.tolist(), automaton.labels.tolist(), automaton.scores.tolist(), strict=True)]
    more = any(head == end and label != -1 for _, head, label, _ in rows)
    for tail, head, label, score in rows:
        if label == -1 and (more or head != end):
            raise ValueError(
                f"label -1 must be that of all arcs into the last node, alone: got it from {tail} to {head}"
            )
        lines.append(f"{tail} {head} {label} {_text(score)}")
    lines += [f"{end} {end + 1} -1 0.0", str(end + 1)] if more else [str(end)]
    return "\n".join(lines) + "\n"


def _automaton(
    where: str, rows: list[tuple[int, ...]], scores: list[float], ends: tuple[int, int], dtype: torch.dtype
) -> Automaton:
    """The automaton with the first of the `ends` as node 0, the other as the last one, and the other states in order between."""
    start, last = ends
    if not rows or start == last:
        got = f"start {start}, end {last}, {len(rows)} arcs"
        raise ValueError(f"{where}an automaton must have an arc, and a start that is not its end: got {got}")
    between = sorted({state for row in rows for state in row[:2]} - {start, last})
    node = {state: i for i, state in enumerate([start, *between, last])}
    tails, heads, labels, *more = zip(*rows, strict=True)
    arcs = torch.tensor([[node[x] for x in tails], [node[x] for x in heads]])
    outputs = torch.tensor(more[0]) if more else None
    return Automaton(arcs, torch.tensor(scores, dtype=dtype), torch.tensor(labels), len(node), outputs)


def _labels(automaton: Automaton) -> list[list[int]]:
    outputs = automaton.output_labels
    return [automaton.labels.tolist(), *([] if outputs is None else [outputs.tolist()])]


def _named(labels: list[int], names: Sequence[str] | None) -> list[Any]:
    return list(labels) if names is None else [name_of(label, names, f"arc {e}") for e, label in enumerate(labels)]


def _text(score: float) -> str:
    """A number without a minus before zero."""
    return repr(score + 0.0)


class _Lines:
    """The lines of a source that are not empty, with errors that name the file and the line."""

    def __init__(self, source: Source, names: Sequence[str] | None) -> None:
        self.text = source if isinstance(source, str) else Path(source).read_text(encoding="utf-8-sig")
        self.where = "" if isinstance(source, str) else f"{source}: "
        self.numbers = None if names is None else {name: i for i, name in enumerate(names)}

    def read(self, *columns: int) -> "Sequence[_Line]":
        """The lines, each of one of some numbers of columns."""
        allowed = " or ".join(map(str, columns)) if len(columns) < 3 else f"{columns[0]} to {columns[-1]}"
        split = [(number, line.split()) for number, line in enumerate(self.text.splitlines(), 1)]
        lines = [_Line(f"{self.where}line {number}", words, self.numbers) for number, words in split if words]
        for line in lines:
            if len(line.words) not in columns:
                raise line.error(f"a line must have {allowed} columns", str(len(line.words)))
        return lines


class _Line(NamedTuple):
    where: str
    words: list[str]
    numbers: dict[str, int] | None

    def error(self, expected: str, got: str) -> ValueError:
        return ValueError(f"{self.where}: {expected}: got {got}")

    def state(self, column: int) -> int:
        word = self.words[column]
        if not (word.isascii() and word.isdigit() and len(word) < 19):
            raise self.error("states must be whole numbers from 0 up", word)
        return int(word)

    def label(self, column: int) -> int:
        word = self.words[column]
        if self.numbers is not None:
            if word not in self.numbers:
                raise self.error(f"names must have every label, and has {len(self.numbers)}", repr(word))
            return self.numbers[word]
        digits = word.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) < 19):
            raise self.error("labels must be whole numbers unless names are given", repr(word))
        return int(word)

    def number(self, column: int, cost: bool = False) -> float:
        """A number, zero if it is left out; an infinite one must be that of an impossible arc."""
        word = self.words[column] if column < len(self.words) else "0"
        try:
            value = float(word)
        except ValueError:
            value = math.nan
        if math.isnan(value) or value == (-math.inf if cost else math.inf):
            raise self.error("weights and scores must be numbers", repr(word))
        return value
