"""Sentences with dependency trees in CoNLL-U or CoNLL-X: ten columns, a line for each word.

The columns are ID, FORM, LEMMA, UPOS, XPOS, FEATS, HEAD, DEPREL, DEPS and MISC, separated by tabs. Words are numbered from 1,
and a root has head 0. A blank line ends a sentence. Comments, ranges of words (`3-4`) and empty nodes (`3.1`) are
skipped. For heads only, see `Dependencies.from_conll` and `to_conll`.
"""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

from tailsum.dependencies.configuration import Dependencies
from tailsum.formats.names import name_of, number_of

COLUMNS = 10


class Sentence(NamedTuple):
    """Words, the head of each (from 1, or 0 for a root), the label of its arc, and its part of speech (UPOS)."""

    words: list[str]
    heads: list[int]
    labels: list[str]
    tags: list[str]

    def to_dependencies(self, names: Sequence[str] | None = None) -> Dependencies:
        r"""The tree, with labels numbered by their place in `names`; without names, it has no labels.

        >>> text = "1\tDogs\t_\tNOUN\t_\t_\t2\tnsubj\t_\t_\n2\tbark\t_\tVERB\t_\t_\t0\troot\t_\t_\n"
        >>> parse_conll(text)[0].to_dependencies(["root", "nsubj"])
        Dependencies(heads=tensor([1, 1]), labels=tensor([1, 0]), states=None)
        """
        labels = None
        if names is not None:
            labels = [number_of(label, names, f"word {i}") for i, label in enumerate(self.labels, 1)]
        return Dependencies.from_conll(self.heads, None if labels is None else torch.tensor(labels))

    @classmethod
    def from_dependencies(
        cls,
        tree: Dependencies,
        words: Sequence[str],
        names: Sequence[str] | None = None,
        tags: Sequence[str] | None = None,
    ) -> "Sentence":
        """The sentence of one tree, without its padding. Unknown labels and tags are `_`.

        >>> Sentence.from_dependencies(Dependencies(torch.tensor([1, 1])), ["Dogs", "bark"]).heads
        [2, 0]
        """
        if tree.heads.dim() != 1:
            raise ValueError(f"tree must be of one sentence, as .at(0) gives: got {list(tree.heads.shape)}")
        heads = [head for head in tree.to_conll().tolist() if head >= 0]
        for name, values in (("words", words), ("tags", tags)):
            if values is not None and len(values) != len(heads):
                raise ValueError(f"{name} must have one for each of {len(heads)} words: got {len(values)}")
        labels = ["_"] * len(heads)
        if names is not None:
            if tree.labels is None:
                raise ValueError("tree must have labels if names are given: got none")
            numbers = tree.labels.tolist()[: len(heads)]
            labels = [name_of(number, names, f"word {i}") for i, number in enumerate(numbers, 1)]
        return cls(list(words), heads, labels, ["_"] * len(heads) if tags is None else list(tags))


def parse_conll(text: str) -> list[Sentence]:
    r"""The sentences of a text; a ValueError names the first invalid line.

    >>> parse_conll("1\tDogs\t_\tNOUN\t_\t_\t0\troot\t_\t_")
    [Sentence(words=['Dogs'], heads=[0], labels=['root'], tags=['NOUN'])]
    """
    sentences: list[Sentence] = []
    rows: list[tuple[int, list[str]]] = []
    for number, line in enumerate([*text.replace("\r\n", "\n").split("\n"), ""], 1):
        if not line.strip():
            if rows:
                sentences.append(_sentence(rows))
            rows = []
            continue
        if line.startswith("#"):
            continue
        columns = line.split("\t")
        if len(columns) != COLUMNS:
            raise ValueError(f"line {number} must have {COLUMNS} columns, separated by tabs: got {len(columns)}")
        if not re.fullmatch(r"\d+[-.]\d+", columns[0]):
            rows.append((number, columns))
    return sentences


def write_conll(sentences: Iterable[Sentence]) -> str:
    """The sentences as a text, with `_` in the other columns.

    >>> write_conll([Sentence(["Dogs"], [0], ["root"], ["NOUN"])]).split()
    ['1', 'Dogs', '_', 'NOUN', '_', '_', '0', 'root', '_', '_']
    """
    text = ""
    for sentence in sentences:
        for i, (word, head, label, tag) in enumerate(zip(*sentence, strict=True), 1):
            if any(mark in name for name in (word, label, tag) for mark in "\t\n\r") or "" in (word, label, tag):
                raise ValueError(f"words, labels and tags must not be empty or hold tabs: got word {i}, {word!r}")
            text += "\t".join((str(i), word, "_", tag, "_", "_", str(head), label, "_", "_")) + "\n"
        text += "\n"
    return text


def _sentence(rows: Sequence[tuple[int, list[str]]]) -> Sentence:
    heads: list[int] = []
    for place, (number, columns) in enumerate(rows, 1):
        if columns[0] != str(place):
            raise ValueError(f"line {number} must have ID {place}: got {columns[0]!r}")
        head = columns[6]
        if not (head.isascii() and head.isdigit() and int(head) <= len(rows)):
            raise ValueError(f"line {number} must have a HEAD between 0 and {len(rows)}: got {head!r}")
        if int(head) == place:
            raise ValueError(f"line {number} must have a HEAD other than the word itself, 0 for a root: got {head!r}")
        heads.append(int(head))
    words, labels, tags = ([columns[i] for _, columns in rows] for i in (1, 7, 3))
    return Sentence(words, heads, labels, tags)
