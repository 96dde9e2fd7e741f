"""Trees of treebanks, bracket strings, `nltk` trees and binary trees, there and back."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tailsum as ts
from harness.misuse import fails
from tailsum.formats import Node, label_names, parse_brackets, stack

TEXT = """
( (S (NP (DT the) (JJ old)
         (NN cat))
     (VP (VBZ sleeps)) (. .)) )
(FRAG (UH no))
"""
LABELS = st.sampled_from(["S", "NP", "VP", "A|B", "NP-SBJ=2"])
WORDS = st.text(st.characters(exclude_characters="()", exclude_categories=["Z", "C"]), min_size=1, max_size=3)


def nodes():
    tags = st.builds(lambda label, word: Node(label, (word,)), LABELS, WORDS)
    return st.recursive(
        tags, lambda below: st.builds(Node, LABELS, st.lists(below, min_size=1, max_size=4).map(tuple)), max_leaves=8
    )


def test_a_file():
    first, second = parse_brackets(TEXT)
    assert first.brackets() == "(S (NP (DT the) (JJ old) (NN cat)) (VP (VBZ sleeps)) (. .))"
    assert first.words() == ["the", "old", "cat", "sleeps", "."]
    names = label_names([first, second])
    assert names == (["NP", "NP|", "S", "S|"], [".", "DT", "FRAG+UH", "JJ", "NN", "VP+VBZ"])
    trees, lengths = stack([first.to_trees(names), second.to_trees(names)])
    assert lengths.tolist() == [5, 1]
    expected = "(S (NP (DT the) (NP| (JJ old) (NN cat))) (S| (VP+VBZ sleeps) (. .)))"
    assert trees.at(0).brackets(first.words(), names) == expected
    for b, node in enumerate((first, second)):
        assert Node.from_trees(trees.at(b), node.words(), names) == node
    model = ts.PCFG(torch.zeros(1, 4), torch.zeros(4, 10, 10), torch.zeros(5, 6), lengths=[5])
    assert model.score(first.to_trees(names)) == 0


@settings(max_examples=50)
@given(nodes())
def test_text_and_trees_and_back(node):
    assert parse_brackets(node.brackets()) == [node]
    pair = label_names([node])
    for names in (pair, sorted({*pair[0], *pair[1]})):
        tree = node.to_trees(names)
        length = len(node.words())
        assert tree.spans.shape == (2 * length - 1, 2)
        shared = ts.SpanTree(torch.zeros(length, length, max(map(len, pair)) if names is pair else len(names)))
        assert shared.score(tree) == 0  # it is a binary tree
        assert Node.from_trees(tree, node.words(), names) == node


@settings(max_examples=10)
@given(nodes())
def test_nltk_and_back(node):
    nltk = pytest.importorskip("nltk")
    tree = node.to_nltk()
    assert tree == nltk.Tree.fromstring(node.brackets())
    assert Node.from_nltk(tree) == node
    assert tree.leaves() == node.words()


def test_the_names_are_those_of_nltk():
    """A chain of single children has the label that `collapse_unary` gives it."""
    nltk = pytest.importorskip("nltk")
    tree = nltk.Tree.fromstring("(S (NP (PRP we)) (VP (VBP are)))")
    tree.collapse_unary(collapsePOS=True)
    assert label_names([Node.from_nltk(nltk.Tree.fromstring("(S (NP (PRP we)) (VP (VBP are)))"))])[1] == [
        child.label() for child in tree
    ]


def test_deep_trees():
    """As deep as a model's trees of long sentences may be: no recursion."""
    length = 1500
    spans = [span for i in range(length - 1) for span in ((i, length - 1), (i, i))] + [(length - 1, length - 1)]
    tree = ts.Trees(torch.tensor(spans), torch.zeros(len(spans), dtype=torch.long))
    node = Node.from_trees(tree, ["w"] * length, ["X"])
    assert node.words() == ["w"] * length
    assert node.brackets() == tree.brackets(["w"] * length, ["X"])


def test_added_nodes_where_none_can_be_removed():
    names = ["NP", "NP|", "VP|"]
    tree = ts.Trees(torch.tensor([[0, 2], [0, 1], [0, 0], [1, 1], [2, 2]]), torch.tensor([1, 2, 1, 0, 0]))
    assert Node.from_trees(tree, ["a", "b", "c"], names).brackets() == "(NP (NP a) (NP b) (NP c))"


BAD = [
    ("(S (NP we)\n  are", "line 1, column 1: the bracket is not closed"),
    ("(S (NP we))\n (S (VP", "line 2, column 5: the bracket is not closed"),
    ("(S (NP we)))", r"line 1, column 12: '\)' is outside all brackets"),
    ("(X a)\nwe (X a)", "line 2, column 1: 'we' is outside all brackets"),
    ("(S\n (NP))", "line 2, column 2: the bracket must have a label and something below it"),
    ("()", "line 1, column 1: the bracket must have a label and something below it"),
    ("(S ((NP we)))", "line 1, column 4: the bracket must have a label"),
    ("((X a) (X b))", "line 1, column 1: the bracket must have a label"),
]


@pytest.mark.parametrize(("text", "words"), BAD)
def test_bad_text(text, words):
    fails(lambda: parse_brackets(text), words)


def test_what_does_not_fit():
    node = parse_brackets("(NP (DT the) (NN cat))")[0]
    tree = node.to_trees(["NP", "DT", "NN"])
    fails(lambda: node.to_trees(["NP", "DT"]), "names must have 'NN', the label of the span from 1 to 1: got 2 others")
    fails(lambda: Node.from_trees(tree, ["the"], ["NP"]), "words must have one for each of 2 positions: got 1")
    fails(
        lambda: Node.from_trees(tree, ["the", "cat"], ["NP"]), "names must have one for label 2 of the span from 1 to 1"
    )
    fails(lambda: Node.from_trees(stack([tree])[0], ["a", "b"], ["NP"]), r"tree must be of one sentence, .*\[1, 3\]")
    none = ts.Trees(torch.full((3, 2), -1), torch.full((3,), -1))
    fails(lambda: Node.from_trees(none, ["a", "b"], ["NP"]), "tree must have spans: got none")
    for text in ("(NP+X a)", "(NP| a)"):
        fails(
            lambda text=text: label_names(parse_brackets(text)), "labels must not be empty, hold .*, which mark changes"
        )
    mixed = parse_brackets("(NP the (NN cat))")[0]
    fails(lambda: mixed.to_trees(["NP", "NN"]), "a word must have a part of speech of its own: got 'the' .* below 'NP'")
    fails(lambda: Node("NP", ()).to_trees(["NP"]), "a node must have children: got none below 'NP'")
    fails(lambda: Node("NP", ("a b",)).brackets(), "must not be empty or hold brackets or spaces: got 'a b'")
    fails(lambda: Node.from_nltk("word"), "tree must be an nltk.Tree: got the word 'word'")
