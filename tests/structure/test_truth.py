"""The enumerations themselves: numbers of configurations, and scores worked out by hand."""

import itertools
import math

import pytest
import torch

from harness.chains import ChainTruth
from harness.dependencies import DependencyTruth, is_projective, tree_count
from harness.graphs import GraphTruth
from harness.segments import SegmentTruth
from harness.trees import GrammarTruth, SpanTruth, catalan


def zeros(*shape):
    return torch.zeros(*shape).double()


def digits(*shape):
    """Every entry is a different power of two, so that a sum shows which entries it has."""
    return (2.0 ** torch.arange(math.prod(shape)).double()).reshape(shape)


def rand(*shape):
    return torch.randn(*shape).double().requires_grad_()


def check_count(truth, count):
    assert len(truth.configurations) == len(set(truth.configurations)) == count
    torch.testing.assert_close(truth.log_partition, torch.tensor(math.log(count)).double())
    torch.testing.assert_close(truth.entropy, torch.tensor(math.log(count)).double())


def check_gradients(truth, *pairs):
    """The gradient of the log-partition function is how often each score is used."""
    gradients = torch.autograd.grad(truth.log_partition, [scores for scores, _ in pairs])
    for gradient, (_, expected) in zip(gradients, pairs, strict=True):
        torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize(("length", "longest", "n"), itertools.product([1, 2, 3, 4, 5], [1, 2, 3, 6], [1, 2]))
def test_segmentations_are_counted(length, longest, n):
    count = [1]  # of the first positions, by the duration of the last segment
    for t in range(1, length + 1):
        count.append(n * sum(count[max(t - longest, 0) :]))
    check_count(SegmentTruth(zeros(length, longest, n), zeros(length - 1, n, n)), count[-1])


@pytest.mark.parametrize(("length", "n"), [(1, 1), (1, 3), (2, 3), (3, 1), (3, 3), (4, 2), (6, 1)])
def test_trees_of_spans_are_counted(length, n):
    check_count(SpanTruth(zeros(length, length, n)), catalan(length - 1) * n ** (2 * length - 1))


@pytest.mark.parametrize(("length", "n", "p"), [(2, 1, 1), (2, 3, 2), (3, 2, 3), (4, 2, 2), (6, 1, 1)])
def test_derivations_are_counted(length, n, p):
    truth = GrammarTruth(zeros(n), zeros(n, n + p, n + p), zeros(length, p))
    check_count(truth, catalan(length - 1) * n ** (length - 1) * p**length)


@pytest.mark.parametrize(("projective", "multiroot"), itertools.product([True, False], repeat=2))
@pytest.mark.parametrize(
    ("length", "labels", "n"), [(1, 2, 3), (2, 2, 2), (3, 2, 2), (4, 1, 2), (4, 2, None), (5, 1, None)]
)
def test_dependency_trees_are_counted(projective, multiroot, length, labels, n):
    trees = tree_count(length, projective, multiroot)
    arc = zeros(length, length, labels)
    if n is None:
        check_count(DependencyTruth(arc, projective, multiroot), trees * labels**length)
    else:
        truth = DependencyTruth(arc, projective, multiroot, zeros(length, n), zeros(n, n))
        check_count(truth, trees * labels**length * n**length)


@pytest.mark.parametrize(("length", "n"), [(1, 1), (1, 3), (2, 3), (4, 2), (5, 3)])
def test_paths_and_joint_states_are_counted(length, n):
    check_count(ChainTruth(zeros(length, n), zeros(length - 1, n, n)), n**length)
    edges = [((i, i + 1), zeros(n, n)) for i in range(length - 1)]
    check_count(GraphTruth(zeros(length, n), edges), n**length)


def test_a_path_scored_by_hand():
    nodes, pairs = digits(3, 2), digits(2, 2, 2) * 2.0**6
    truth = ChainTruth(nodes, pairs)
    c = truth.index_of((1, 0, 1))
    # the nodes at (0, 1), (1, 0) and (2, 1); the pairs at (0, 1, 0) and (1, 0, 1)
    assert truth.scores[c] == 2**1 + 2**2 + 2**5 + 2**6 * (2**2 + 2**5)
    assert truth.parts[c].nonzero().tolist() == [[0, 1], [1, 0], [2, 1]]


def test_joint_states_scored_by_hand():
    """A factor whose variables are in another order, and one without the last state of a variable."""
    truth = GraphTruth(digits(3, 2), [((2, 0), digits(2, 2) * 2.0**6), ((1,), digits(1) * 2.0**10)])
    c = truth.index_of((1, 0, 1))
    assert truth.scores[c] == 2**1 + 2**2 + 2**5 + 2**6 * 2**3 + 2**10
    assert truth.scores[truth.index_of((1, 1, 1))] == -math.inf
    assert truth.joint(truth.probability, (2, 0)).shape == (2, 2)
    joint = truth.joint(truth.probability, (2, 0))
    torch.testing.assert_close(joint[1, 0], truth.probability[truth.states.eq(torch.tensor([0, 0, 1])).all(-1)].sum())


def test_a_segmentation_scored_by_hand():
    segment, transition = digits(4, 2, 2), digits(3, 2, 2) * 2.0**16
    truth = SegmentTruth(segment, transition)
    c = truth.index_of(((0, 2, 1), (2, 1, 0), (3, 1, 1)))
    # the segments at (0, 1, 1), (2, 0, 0) and (3, 0, 1); the transitions at (1, 1, 0) and (2, 0, 1)
    assert truth.scores[c] == 2**3 + 2**8 + 2**13 + 2**16 * (2**6 + 2**9)
    assert truth.parts[c].nonzero().tolist() == [[0, 1, 1], [2, 0, 0], [3, 0, 1]]


def test_a_tree_of_spans_scored_by_hand():
    truth = SpanTruth(digits(3, 3, 2))
    c = truth.index_of(((0, 2, 1), (0, 0, 0), (1, 2, 0), (1, 1, 1), (2, 2, 0)))
    assert truth.scores[c] == 2**5 + 2**0 + 2**10 + 2**9 + 2**16
    assert truth.parts[c].nonzero().tolist() == [[0, 0, 0], [0, 2, 1], [1, 1, 1], [1, 2, 0], [2, 2, 0]]


def test_a_derivation_scored_by_hand():
    root, rule, emission = digits(2), torch.arange(50).double().reshape(2, 5, 5) / 1024, digits(3, 3) * 4
    truth = GrammarTruth(root, rule, emission)
    c = truth.index_of(((0, 2, 1), (0, 1, 0), (0, 0, 2), (1, 1, 0), (2, 2, 1)))
    # rules 1 -> 0 3 (number 25 + 3) and 0 -> 4 2 (number 20 + 2)
    assert truth.scores[c] == 2**1 + (28 + 22) / 1024 + 4 * (2**2 + 2**3 + 2**7)
    assert truth.parts[c].nonzero().tolist() == [[0, 0, 2], [0, 1, 0], [0, 2, 1], [1, 1, 0], [2, 2, 1]]
    assert truth.uses_of_rules[c].nonzero().tolist() == [[0, 4, 2], [1, 0, 3]]


def test_dependency_trees_scored_by_hand():
    arc, node, transition = digits(3, 3, 2), digits(3, 2) * 2.0**18, digits(2, 2) * 2.0**24
    some = DependencyTruth(arc, projective=True, multiroot=False, node=node, transition=transition)
    every = DependencyTruth(arc, projective=False, multiroot=False, node=node, transition=transition)
    states = 2**18 * (2**1 + 2**2 + 2**5)
    tree = ((1, 1, 1), (0, 1, 0), (1, 0, 1))  # arcs (1, 0, 0), (1, 1, 1) and (1, 2, 0); both times state 1 below 0
    for truth in (some, every):
        c = truth.index_of(tree)
        assert truth.scores[c] == 2**6 + 2**9 + 2**10 + states + 2**24 * (2**1 + 2**1)
        assert truth.parts[c].nonzero().tolist() == [[1, 0, 0], [1, 1, 1], [1, 2, 0]]
    tree = ((1, 1, 0), (0, 1, 0), (1, 0, 1))  # now (0, 2, 0), over the root; state 1 below 0 and 1 below 1
    assert tree not in some.configurations
    assert every.scores[every.index_of(tree)] == 2**6 + 2**9 + 2**4 + states + 2**24 * (2**1 + 2**3)


def test_projectivity():
    assert is_projective((1, 1, 1, 2))
    assert is_projective((0, 1, 1))
    assert not is_projective((2, 1, 2))  # a root below an arc
    assert not is_projective((2, 3, 2, 2))  # crossing arcs
    assert is_projective((2, 0, 2))


def test_gradients_are_expected_uses():
    segment, transition = rand(4, 3, 2), rand(3, 2, 2)
    truth = SegmentTruth(segment, transition)
    check_gradients(truth, (segment, truth.marginals))
    span = rand(3, 3, 2)
    truth = SpanTruth(span)
    check_gradients(truth, (span, truth.marginals))
    root, rule, emission = rand(2), rand(2, 5, 5), rand(3, 3)
    truth = GrammarTruth(root, rule, emission)
    words = truth.marginals.diagonal().T
    check_gradients(truth, (root, truth.marginals[0, 2, :2]), (rule, truth.rule_marginals), (emission, words))
    arc, node = rand(3, 3, 2), rand(3, 2)
    truth = DependencyTruth(arc, projective=True, multiroot=True, node=node, transition=rand(2, 2))
    check_gradients(truth, (arc, truth.marginals), (node, truth.state_marginals))


def test_segments_of_one_position_are_a_chain():
    segment, transition = rand(4, 1, 3), rand(3, 3, 3)
    truth, chain = SegmentTruth(segment, transition), ChainTruth(segment[:, 0], transition)
    torch.testing.assert_close(truth.scores, chain.scores)
    torch.testing.assert_close(truth.marginals[:, 0], chain.marginals)
    torch.testing.assert_close(truth.entropy, chain.entropy)
    torch.testing.assert_close(truth.best(100), chain.best(100))


def test_what_is_impossible():
    nothing = [
        SegmentTruth(zeros(2, 2, 2) - math.inf, zeros(1, 2, 2)),
        SpanTruth(zeros(2, 2, 2) - math.inf),
        GrammarTruth(zeros(2), zeros(2, 4, 4), zeros(1, 2)),
        DependencyTruth(zeros(2, 2, 1) - math.inf, projective=False, multiroot=True),
    ]
    for truth in nothing:
        assert not truth.possible
        assert truth.log_partition == -math.inf
        assert truth.entropy == truth.cross_entropy(truth) == 0
        assert truth.marginals.eq(0).all()
        assert truth.probability.eq(0).all()
        assert truth.best(2).tolist() == [-math.inf] * 2
    assert nothing[2].configurations == []
    assert nothing[2].marginals.shape == (1, 1, 2)
    assert nothing[2].rule_marginals.eq(0).all()
    assert SpanTruth(zeros(2, 2, 2)).cross_entropy(nothing[1]) == math.inf


def test_partly_forbidden():
    span = zeros(2, 2, 2)
    span[0, 0, 1] = -math.inf
    span.requires_grad_()
    truth = SpanTruth(span)
    torch.testing.assert_close(truth.entropy, torch.tensor(math.log(4)).double())
    torch.testing.assert_close(SpanTruth(zeros(2, 2, 2)).entropy, torch.tensor(math.log(8)).double())
    assert SpanTruth(zeros(2, 2, 2)).cross_entropy(truth) == math.inf
    torch.testing.assert_close(truth.cross_entropy(SpanTruth(zeros(2, 2, 2))), torch.tensor(math.log(8)).double())
    assert truth.best(6).tolist() == [0.0] * 4 + [-math.inf] * 2
    (gradient,) = torch.autograd.grad(truth.entropy, span)
    assert gradient.isfinite().all()
