"""Automata in the text formats of OpenFst and k2, there and back, and the errors of texts and files."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tailsum as ts
from harness.misuse import fails
from tailsum.formats import Automaton, parse_k2, parse_openfst, stack_automata, write_k2, write_openfst

OPENFST = """\
0 1 1 0.5
0 1 2 1.5

1 2 3
1 3 4 Infinity
2 3.5
3
"""


def test_a_text_of_openfst():
    automaton = parse_openfst(OPENFST, dtype=torch.float64)
    assert automaton.arcs.tolist() == [[0, 0, 1, 1, 2, 3], [1, 1, 2, 3, 4, 4]]
    assert automaton.scores.tolist() == [-0.5, -1.5, 0.0, -math.inf, -3.5, 0.0]
    assert automaton.labels.tolist() == [1, 2, 3, 4, 0, 0]
    assert automaton.n_nodes == 5
    lattice = automaton.to_lattice()
    assert lattice.labels_of(lattice.argmax()).tolist() == [1, 3, 0]
    torch.testing.assert_close(lattice.log_partition(), torch.tensor([-4.0, -5.0]).double().logsumexp(0))
    assert parse_openfst(OPENFST.replace("\n", "\r\n").replace(" ", "\t")).arcs.tolist() == automaton.arcs.tolist()


def test_the_start_is_the_first_state_and_labels_may_have_names():
    text = "7 2 you 1\n2 5 see 2\n5\n"
    automaton = parse_openfst(text, ["<eps>", "see", "you"])
    assert automaton[:1][0].tolist() == [[0, 1], [1, 2]]
    assert automaton.labels.tolist() == [2, 1]
    assert write_openfst(automaton, ["<eps>", "see", "you"]) == "0\t1\tyou\t1.0\n1\t2\tsee\t2.0\n2\n"
    transducer = parse_openfst("0 1 5 6 0.5\n0 1 7 8\n1\n", acceptor=False)
    assert transducer.labels.tolist() == [5, 7]
    assert transducer.output_labels.tolist() == [6, 8]
    assert write_openfst(transducer) == "0\t1\t5\t6\t0.5\n0\t1\t7\t8\t0.0\n1\n"
    loose = parse_openfst("0 1 1\n0\n1\n")  # the start is final too
    assert loose.to_lattice().log_partition() == torch.tensor(2.0).log()


def test_a_text_of_k2(tmp_path):
    text = "0 1 5 0.25\n0 2 6 -inf\n1 2 7 1e-3\n2 3 -1 0\n3\n"
    automaton = parse_k2(text)
    assert automaton.arcs.tolist() == [[0, 0, 1, 2], [1, 2, 2, 3]]
    assert automaton.labels.tolist() == [5, 6, 7, -1]
    torch.testing.assert_close(automaton.scores, torch.tensor([0.25, -math.inf, 1e-3, 0.0]))
    path = tmp_path / "lattice.txt"
    path.write_text(text)
    assert parse_k2(path).arcs.tolist() == automaton.arcs.tolist()
    lattice = ts.Lattice(torch.tensor([[0, 0], [1, 1]]), torch.tensor([0.5, 2.0]), labels=[8, 9])
    assert write_k2(lattice) == "0 1 8 0.5\n0 1 9 2.0\n1 2 -1 0.0\n2\n"
    assert parse_k2(write_k2(lattice)).to_lattice().log_partition() == lattice.log_partition()


@st.composite
def automata(draw):
    n = draw(st.integers(2, 5))
    rows = [(i, i + 1) for i in range(n - 1)]
    rows += draw(
        st.lists(st.integers(0, n - 2).flatmap(lambda i: st.tuples(st.just(i), st.integers(i + 1, n - 1))), max_size=6)
    )
    number = st.floats(-5, 5, width=32) | st.just(-math.inf)
    scores = draw(st.lists(number, min_size=len(rows), max_size=len(rows)))
    labels = draw(st.lists(st.integers(0, 9), min_size=len(rows), max_size=len(rows)))
    return Automaton(torch.tensor(rows).T, torch.tensor(scores), torch.tensor(labels), n)


@given(automata())
def test_there_and_back(automaton):
    for written in (automaton, automaton.to_lattice()):
        back = parse_openfst(write_openfst(written))
        assert back.n_nodes == automaton.n_nodes
        rows = [
            sorted(zip(*x.arcs.tolist(), x.labels.tolist(), x.scores.tolist(), strict=True)) for x in (back, automaton)
        ]
        assert rows[0] == rows[1]
        again = parse_k2(write_k2(written))
        torch.testing.assert_close(again.to_lattice().log_partition(), automaton.to_lattice().log_partition())
        torch.testing.assert_close(parse_k2(write_k2(again)).scores, again.scores)


def test_a_batch():
    first, second = parse_k2("0 1 7 0.5\n1 2 -1 0\n2"), parse_k2("0 1 3 1\n0 2 4 2\n1 2 5 1.5\n2 3 -1 0.5\n3")
    batch = stack_automata([first, second])
    for b, automaton in enumerate((first, second)):
        one = automaton.to_lattice()
        assert batch.log_partition()[b] == one.log_partition()
        assert batch.labels_of(batch.argmax())[b].tolist()[: one.event_shape[0]] == one.labels_of(one.argmax()).tolist()
        assert write_k2(batch[b]) == write_k2(automaton)
    fails(lambda: write_k2(batch), "lattice must have no batch, .*: got .2.")
    fails(lambda: stack_automata([]), "automata must be at least one: got none")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0 1 1\n0 x 1\n1", "line 2: states must be whole numbers from 0 up: got x"),
        ("0 1 a\n1", "line 1: labels must be whole numbers unless names are given: got 'a'"),
        ("0 1 1 high\n1", "line 1: weights and scores must be numbers: got 'high'"),
        ("0 1 1 nan\n1", "line 1: weights and scores must be numbers: got 'nan'"),
        ("0 1 1 -Infinity\n1", "line 1: weights and scores must be numbers: got '-Infinity'"),
        ("\n0 1 1 2 0.5\n1", "line 2: a line must have 1 to 4 columns: got 5"),
        ("0 1 1\n1\n1 2", "line 3: each final state must be named once: got 1"),
        ("0 1 1\n", "an automaton must have a final state: got none"),
        ("", "an automaton must have a final state: got none"),
    ],
)
def test_errors_of_openfst(text, words, tmp_path):
    fails(lambda: parse_openfst(text), f"^{words}")
    path = tmp_path / "automaton.txt"
    path.write_text(text)
    fails(lambda: parse_openfst(path), f"automaton.txt: {words}")


def test_errors_of_names_and_columns():
    fails(lambda: parse_openfst("0 1 b 1\n1", ["a"]), "line 1: names must have every label, and has 1: got 'b'")
    fails(lambda: parse_openfst("0 1 1\n1", acceptor=False), "line 1: an arc must have 4 or 5 columns: got 3")
    fails(lambda: write_openfst(parse_openfst("0 1 3\n1"), ["a"]), "names must have one for label 3 of arc 0: got 1")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0 1 -1 0.5", "an automaton must end with its final state: got none"),
        ("0 1 -1 0.5\n1\n0 1 -1 2\n", "line 3: nothing must follow the line of the final state: got 0 1 -1 2"),
        ("0 1 2 0.5\n1", "line 1: label -1 must be that of the arcs into the final state, 1, alone: got 2"),
        ("0 1 -1 0.5\n1 2 -1 0\n2", "line 1: label -1 must be that of the arcs into the final state, 2, alone: got -1"),
        ("0 1 -1\n1", "line 1: a line must have 1 or 4 columns: got 3"),
        ("0 1 -1 inf\n1", "line 1: weights and scores must be numbers: got 'inf'"),
        ("0", "an automaton must have an arc, and a start that is not its end: got start 0, end 0, 0 arcs"),
    ],
)
def test_errors_of_k2(text, words):
    fails(lambda: parse_k2(text), words)


def test_minus_one_elsewhere_is_not_written():
    lattice = ts.Lattice(torch.tensor([[0, 1], [1, 2]]), torch.zeros(2), labels=[-1, -1])
    fails(lambda: write_k2(lattice), "label -1 must be that of all arcs into the last node, alone: got it from 0 to 1")
