"""Sentences of CoNLL files and dependency trees, there and back."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tailsum as ts
from harness.misuse import fails
from tailsum.formats import Sentence, parse_conll, stack, write_conll

TEXT = """# sent_id = 1
1-2\tIt's\t_\t_\t_\t_\t_\t_\t_\t_
1\tIt\tit\tPRON\tPRP\t_\t3\tnsubj\t_\t_
2\t's\tbe\tAUX\tVBZ\t_\t3\tcop\t_\t_
3\tfine\tfine\tADJ\tJJ\t_\t0\troot\t_\tSpaceAfter=No
3.1\tnothing\t_\t_\t_\t_\t_\t_\t_\t_

1\tNo\tno\tINTJ\tUH\t_\t0\troot\t_\t_
"""
NAMES = ["cop", "nsubj", "root"]


def test_a_file():
    first, second = parse_conll(TEXT)
    assert first == (["It", "'s", "fine"], [3, 3, 0], ["nsubj", "cop", "root"], ["PRON", "AUX", "ADJ"])
    assert second.words == ["No"]
    assert parse_conll(TEXT.replace("\n", "\r\n")) == [first, second]
    assert parse_conll("") == parse_conll("\n# nothing\n\n") == []
    trees, lengths = stack([x.to_dependencies(NAMES) for x in (first, second)])
    assert trees.heads.tolist() == [[2, 2, 2], [0, -1, -1]]
    assert trees.labels.tolist() == [[1, 0, 2], [2, -1, -1]]
    model = ts.DependencyTree(torch.zeros(2, 3, 3, 3), lengths, labelled=True)
    assert torch.equal(model.score(trees), torch.zeros(2))
    for b, sentence in enumerate((first, second)):
        assert Sentence.from_dependencies(trees.at(b), sentence.words, NAMES, sentence.tags) == sentence
    assert first.to_dependencies().labels is None


WORDS = st.text(st.characters(exclude_characters="\t\n\r", exclude_categories=["Cs"]), min_size=1, max_size=4)


@st.composite
def sentences(draw):
    length = draw(st.integers(1, 4))
    several = lambda of: draw(st.lists(of, min_size=length, max_size=length))  # noqa: E731
    heads = [draw(st.integers(0, length).filter(lambda head, i=i: head != i)) for i in range(1, length + 1)]
    return Sentence(several(WORDS), heads, several(st.sampled_from(NAMES)), several(WORDS))


@given(st.lists(sentences(), max_size=3))
def test_text_and_trees_and_back(given):
    assert parse_conll(write_conll(given)) == given
    for words, heads, labels, tags in given:
        tree = Sentence(words, heads, labels, tags).to_dependencies(NAMES)
        assert Sentence.from_dependencies(tree, words, NAMES, tags) == (words, heads, labels, tags)


def test_trees_of_a_model():
    model = ts.DependencyTree(torch.randn(1, 5, 5), lengths=[3])
    sentence = Sentence.from_dependencies(model.argmax().at(0), ["a", "b", "c"])
    assert sentence.labels == sentence.tags == ["_"] * 3
    assert torch.equal(sentence.to_dependencies().heads, model.argmax().heads[0, :3])


def row(number, head, columns=10):
    return "\t".join([str(number), "w", *["_"] * 4, str(head), "dep", "_", "_"][:columns])


BAD = [
    (row(1, 0) + "\n" + row(2, 1, 8), "line 2 must have 10 columns, separated by tabs: got 8"),
    ("1 w _ _ _ _ 0 root _ _", "line 1 must have 10 columns, separated by tabs: got 1"),
    ("# x\n" + row(2, 0), "line 2 must have ID 1: got '2'"),
    (row("x-y", 0), "line 1 must have ID 1: got 'x-y'"),
    ("\n\n" + row(1, 2), "line 3 must have a HEAD between 0 and 1: got '2'"),
    (row(1, "_"), "line 1 must have a HEAD between 0 and 1: got '_'"),
    (row(1, 0) + "\n" + row(2, 2), "line 2 must have a HEAD other than the word itself, 0 for a root: got '2'"),
    (row(1, -1), "line 1 must have a HEAD between 0 and 1: got '-1'"),
]


@pytest.mark.parametrize(("text", "words"), BAD)
def test_bad_lines(text, words):
    fails(lambda: parse_conll(text), words)


def test_what_does_not_fit():
    sentence = parse_conll(TEXT)[0]
    tree = sentence.to_dependencies(NAMES)
    fails(lambda: sentence.to_dependencies(["root"]), "names must have 'nsubj', the label of word 1: got 1 others")
    fails(lambda: Sentence.from_dependencies(tree, ["a"]), "words must have one for each of 3 words: got 1")
    fails(
        lambda: Sentence.from_dependencies(tree, sentence.words, tags=["a"]), "tags must have one for each of 3 words"
    )
    fails(lambda: Sentence.from_dependencies(tree, sentence.words, ["x"]), "names must have one for label 1 of word 1")
    bare = tree._replace(labels=None)
    fails(lambda: Sentence.from_dependencies(bare, sentence.words, NAMES), "tree must have labels if names")
    fails(
        lambda: Sentence.from_dependencies(stack([tree])[0], sentence.words),
        r"tree must be of one sentence, .*\[1, 3\]",
    )
    fails(lambda: write_conll([Sentence(["a\tb"], [0], ["root"], ["X"])]), "must not be empty or hold tabs: got word 1")
