"""Constituency trees of treebanks: bracket strings, `nltk` trees, and binary `Trees` of span structures and grammars.

A `Node` has any number of children. `Trees` are binary, with one state at each span, so

- a node with a single child is joined with it: `(S (VP ..))` has the label `S+VP`, and a word alone in a phrase `NP+NN`;
- a node with more than two children is split from the left: `(NP a b c)` is `(NP a (NP| b c))`, with an added node `NP|`.

`Node.from_trees` undoes both. So labels must not contain `+` or end with `|`.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from tailsum.formats.names import name_of, number_of
from tailsum.trees.configuration import Trees, names_by_kind

JOIN, ADDED = "+", "|"
Names = Sequence[str] | tuple[Sequence[str], Sequence[str]]


class Node(NamedTuple):
    """A node of a tree, with its label and its children: nodes, or the one word of a part of speech."""

    label: str
    children: "tuple[Node | str, ...]"

    def words(self) -> list[str]:
        """The words below this node, from left to right.

        >>> parse_brackets("(NP (DT the) (NN cat))")[0].words()
        ['the', 'cat']
        """
        words, waiting = list[str](), list[Node | str]([self])
        while waiting:
            node = waiting.pop()
            if isinstance(node, str):
                words.append(node)
            else:
                waiting.extend(reversed(node.children))
        return words

    def brackets(self) -> str:
        """The tree as one line of text.

        >>> Node("NP", (Node("DT", ("the",)), Node("NN", ("cat",)))).brackets()
        '(NP (DT the) (NN cat))'
        """
        text, waiting = "", list[Node | str | None]([self])
        while waiting:
            node = waiting.pop()
            if node is None:
                text += ")"
                continue
            name = node if isinstance(node, str) else node.label
            if not name or re.search(r"[()\s]", name):
                raise ValueError(f"words and labels must not be empty or hold brackets or spaces: got {name!r}")
            text += f" {name}" if isinstance(node, str) else f" ({name}"
            if isinstance(node, Node):
                waiting += [None, *reversed(node.children)]
        return text[1:]

    def to_trees(self, names: Names) -> Trees:
        """The binary tree of one sentence, with labels numbered by their place in `names`.

        `names` is a list, or a pair of lists as from `label_names`: for longer spans and for single words, which a grammar
        numbers separately (nonterminals and preterminals).

        >>> node = parse_brackets("(S (NP (PRP we)) (VP (VBP are)))")[0]
        >>> node.to_trees(["S", "NP+PRP", "VP+VBP"])
        Trees(spans=tensor([[0, 1],
                [0, 0],
                [1, 1]]), states=tensor([0, 1, 2]))
        """
        inner, leaves = names_by_kind(names)
        spans, states = [], []
        for first, last, label in _binary(self):
            spans.append((first, last))
            states.append(number_of(label, leaves if first == last else inner, f"the span from {first} to {last}"))
        return Trees(torch.tensor(spans), torch.tensor(states))

    @classmethod
    def from_trees(cls, tree: Trees, words: Sequence[str], names: Names) -> "Node":
        """The tree of a treebank from one binary tree: joined nodes are split, and added nodes removed.

        A model may give the label of an added node to the whole sentence or to a word; the label then loses its mark.

        >>> names = ["NP", "NP|", "DT", "JJ", "NN"]
        >>> tree = parse_brackets("(NP (DT the) (JJ old) (NN cat))")[0].to_trees(names)
        >>> Node.from_trees(tree, ["the", "old", "cat"], names).brackets()
        '(NP (DT the) (JJ old) (NN cat))'
        """
        if tree.states.dim() != 1:
            raise ValueError(f"tree must be of one sentence, as .at(0) gives: got {list(tree.states.shape)}")
        inner, leaves = names_by_kind(names)
        rows: list[tuple[list[int], int]] = [
            row for row in zip(tree.spans.tolist(), tree.states.tolist(), strict=True) if row[1] >= 0
        ]
        if not rows:
            raise ValueError("tree must have spans: got none, as for a sentence without a possible tree")
        if len(words) != (len(rows) + 1) // 2:
            raise ValueError(f"words must have one for each of {(len(rows) + 1) // 2} positions: got {len(words)}")
        done: list[Node] = []
        for (first, last), state in reversed(rows):  # children before parents, the right one before the left
            label = name_of(state, leaves if first == last else inner, f"the span from {first} to {last}")
            if first == last:
                done.append(_split(cls, label.removesuffix(ADDED), (words[first],)))
                continue
            pair = done.pop(), done.pop()
            children = [part for node in pair for part in (node.children if node.label.endswith(ADDED) else (node,))]
            done.append(cls(label, tuple(children)) if label.endswith(ADDED) else _split(cls, label, tuple(children)))
        (top,) = done
        return cls(top.label.removesuffix(ADDED), top.children)

    @classmethod
    def from_nltk(cls, tree: Any) -> "Node":
        """The same tree as an `nltk.Tree` has."""
        if isinstance(tree, str):
            raise ValueError(f"tree must be an nltk.Tree: got the word {tree!r}")
        return cls(tree.label(), tuple(child if isinstance(child, str) else cls.from_nltk(child) for child in tree))

    def to_nltk(self) -> Any:
        """The same tree as an `nltk.Tree`; needs `nltk`."""
        from nltk.tree import Tree  # noqa: PLC0415  (optional)

        return Tree(self.label, [child if isinstance(child, str) else child.to_nltk() for child in self.children])


def parse_brackets(text: str) -> list[Node]:
    """All trees of a text, each in any number of lines; a ValueError names the line and column of an error.

    Brackets without a label around a whole tree, as in the Penn Treebank, are dropped.

    >>> [node.brackets() for node in parse_brackets("( (S (NP we) (VP are)) ) (X a)")]
    ['(S (NP we) (VP are))', '(X a)']
    """
    trees = list[Node]()
    opened = list[_Open]()
    after_bracket = False
    for token in re.finditer(r"[()]|[^()\s]+", text):
        at, name = token.start(), token.group()
        if name == "(":
            opened.append(_Open(at, [], []))
        elif not opened:
            raise ValueError(f"{_place(text, at)}: {name!r} is outside all brackets")
        elif name == ")":
            node = _closed(text, opened.pop(), outermost=not opened)
            (opened[-1].children if opened else trees).append(node)
        elif after_bracket:
            opened[-1].label.append(name)
        else:
            opened[-1].children.append(name)
        after_bracket = name == "("
    if opened:
        raise ValueError(f"{_place(text, opened[-1].start)}: the bracket is not closed")
    return trees


def label_names(nodes: Iterable[Node]) -> tuple[list[str], list[str]]:
    """The sorted labels that `to_trees` gives to longer spans, and those that it gives to single words.

    >>> label_names(parse_brackets("(S (NP (PRP we)) (VP (VBP are) (ADV not) (JJ sure)))"))
    (['S', 'VP', 'VP|'], ['ADV', 'JJ', 'NP+PRP', 'VBP'])
    """
    inner, leaves = set[str](), set[str]()
    for node in nodes:
        for first, last, label in _binary(node):
            (leaves if first == last else inner).add(label)
    return sorted(inner), sorted(leaves)


def _binary(top: Node) -> Iterator[tuple[int, int, str]]:
    """The spans and labels of the binary tree, parents before children and left before right."""
    waiting = [(top.label, top.children, 0, "")]
    while waiting:
        label, children, first, mark = waiting.pop()
        joined = [_plain(label)]
        while len(children) == 1 and isinstance(children[0], Node):
            joined.append(_plain(children[0].label))
            children = children[0].children
        if not children:
            raise ValueError(f"a node must have children: got none below {label!r}")
        words = [child for child in children if isinstance(child, str)]
        if words and len(children) > 1:
            raise ValueError(
                f"a word must have a part of speech of its own: got {words[0]!r} with others below {label!r}"
            )
        sizes = [1 if isinstance(child, str) else len(child.words()) for child in children]
        yield first, first + sum(sizes) - 1, JOIN.join(joined) + mark
        if words:
            continue
        left, *rest = (child for child in children if isinstance(child, Node))
        after = first + sizes[0]
        if len(rest) == 1:
            waiting.append((rest[0].label, rest[0].children, after, ""))
        else:
            waiting.append((joined[-1], tuple(rest), after, ADDED))
        waiting.append((left.label, left.children, first, ""))


def _plain(label: str) -> str:
    if JOIN in label or label.endswith(ADDED) or not label:
        raise ValueError(
            f"labels must not be empty, hold {JOIN!r} or end with {ADDED!r}, which mark changes: got {label!r}"
        )
    return label


def _split(kind: type[Node], label: str, children: "tuple[Node | str, ...]") -> Node:
    *above, lowest = label.split(JOIN)
    node = kind(lowest, children)
    for name in reversed(above):
        node = kind(name, (node,))
    return node


class _Open(NamedTuple):
    """A bracket that is not closed yet: its place, its label if it has one, and its children so far."""

    start: int
    label: list[str]
    children: list[Any]


def _closed(text: str, bracket: _Open, *, outermost: bool) -> Node:
    start, label, children = bracket
    if not children:
        raise ValueError(f"{_place(text, start)}: the bracket must have a label and something below it")
    if label:
        return Node(label[0], tuple(children))
    if outermost and len(children) == 1 and isinstance(children[0], Node):
        return children[0]
    raise ValueError(f"{_place(text, start)}: the bracket must have a label")


def _place(text: str, at: int) -> str:
    return f"line {text.count(chr(10), 0, at) + 1}, column {at - text.rfind(chr(10), 0, at)}"
