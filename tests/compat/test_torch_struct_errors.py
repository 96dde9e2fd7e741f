"""Bad input says which argument it was, what it was and what it should be."""

import math

import pytest
import torch

import tailsum.compat.torch_struct as ours
import tailsum.compat.torch_struct.public

zeros = torch.zeros
pytestmark = pytest.mark.usefixtures("unchecked")

WRONG = {
    "a chain that is not square": (
        lambda: ours.LinearChainCRF(zeros(2, 3, 4, 5)),
        r"log_potentials must be \[B, N-1, C, C\]: got \[2, 3, 4, 5\]",
    ),
    "a chain without a batch": (
        lambda: ours.LinearChainCRF(zeros(3, 4, 4)),
        r"must be \[B, N-1, C, C\]: got \[3, 4, 4\]",
    ),
    "integers": (
        lambda: ours.TreeCRF(zeros(2, 3, 3, 1).long()),
        "log_potentials must be floating-point: got torch.int64",
    ),
    "a list": (lambda: ours.TreeCRF([1.0]), "log_potentials must be a tensor: got list"),
    "NaN": (lambda: ours.DependencyCRF(zeros(1, 2, 2) * math.nan), "log_potentials must not hold NaN or .inf"),
    "plus infinity": (lambda: ours.CTC(zeros(1, 2, 3) + math.inf, zeros(1, 1).long() + 1), "must not hold NaN or .inf"),
    "lengths beyond the end": (
        lambda: ours.LinearChainCRF(zeros(2, 3, 2, 2), torch.tensor([5, 4])),
        "lengths must lie between 1 and 4, the number of positions: got 5",
    ),
    "lengths of another batch": (lambda: ours.TreeCRF(zeros(2, 3, 3, 1), [3, 3, 3]), "lengths has batch shape"),
    "segments of no duration": (lambda: ours.SemiMarkovCRF(zeros(1, 3, 1, 2, 2)), "K at least 2: got"),
    "spans that are not square": (lambda: ours.TreeCRF(zeros(1, 3, 4, 2)), r"\[B, N, N, NT\]: got \[1, 3, 4, 2\]"),
    "four ops": (lambda: ours.AlignmentCRF(zeros(1, 3, 4, 4)), r"\[B, N, M, 3\]: got \[1, 3, 4, 4\]"),
    "a gap below zero": (lambda: ours.AlignmentCRF(zeros(1, 3, 4, 3), max_gap=-1), "max_gap must be a whole number"),
    "a grammar of one tensor": (lambda: ours.SentCFG(zeros(1, 3, 4)), r"must be \(terms, rules, roots\): got Tensor"),
    "rules of another size": (
        lambda: ours.SentCFG((zeros(1, 3, 4), zeros(1, 2, 5, 5), zeros(1, 2))),
        r"\[B, NT, NT\+T, NT\+T\] and \[B, NT\]: got",
    ),
    "NaN rules": (
        lambda: ours.SentCFG((zeros(1, 3, 1), zeros(1, 1, 2, 2) * math.nan, zeros(1, 1))),
        r"log_potentials\[1\] \(rules\) must not hold NaN",
    ),
    "observations out of range": (
        lambda: ours.HMM(zeros(2, 2), zeros(3, 2), zeros(2), torch.tensor([[0, 3]])),
        "observations must lie between 0 and 2: got 3",
    ),
    "an init of another size": (
        lambda: ours.HMM(zeros(2, 2), zeros(3, 2), zeros(3), torch.tensor([[0, 1]])),
        r"must be \[C, C\], \[V, C\] and \[C\]: got",
    ),
    "targets that are blank": (lambda: ours.CTC(zeros(1, 3, 4), torch.tensor([[0]])), "targets must lie between"),
    "no best": (
        lambda: ours.LinearChainCRF(zeros(1, 2, 2, 2)).kmax(0),
        "k must be a whole number of at least 1: got 0",
    ),
    "a shape that is none": (lambda: ours.LinearChainCRF(zeros(1, 2, 2, 2)).sample(3), "sample_shape must be a tuple"),
    "a cold temperature": (lambda: ours.TreeCRF(zeros(1, 2, 2, 2)).gumbel_crf(0.0), "temperature must be above 0"),
    "a state too many": (
        lambda: ours.LinearChain.to_parts(torch.tensor([[0, 2]]), 2),
        "sequence must lie between 0 and 1",
    ),
    "a head too far": (
        lambda: ours.DepTree.to_parts(torch.tensor([[0, 3]])),
        "sequence must lie between 0 and 2: got 3",
    ),
    "a long segment": (
        lambda: ours.SemiMarkov.to_parts(torch.tensor([[0, -1, -1, 1]]), (2, 3)),
        "the durations in sequence must lie between 0 and 2: got 3",
    ),
    "no first state": (
        lambda: ours.SemiMarkov.to_parts(torch.tensor([[-1, 0]]), (2, 3)),
        r"sequence\[.., 0\] must lie between 0 and 1: got -1",
    ),
    "a last segment beyond the end": (
        lambda: ours.SemiMarkov.to_parts(torch.tensor([[1, 2, 3, 0, 1, -1, 2]]), (4, 3), lengths=torch.tensor([6])),
        r"sequence\[.., lengths - 1\], where the last segment ends, must lie between 0 and 3: got -1",
    ),
    "an event of another shape": (
        lambda: ours.LinearChainCRF(zeros(2, 3, 4, 4)).log_prob(zeros(2, 2, 4, 4)),
        r"value must be an event \[\.\., 2, 3, 4, 4\]: got \[2, 2, 4, 4\]",
    ),
    "an event of another batch": (
        lambda: ours.TreeCRF(zeros(2, 3, 3, 1)).log_prob(zeros(3, 3, 3, 1)),
        r"value must be an event \[\.\., 2, 3, 3, 1\]: got \[3, 3, 3, 1\]",
    ),
    "a short event": (
        lambda: ours.DependencyCRF(zeros(2, 3, 3)).log_prob(zeros(3)),
        r"value must be an event \[\.\., 2, 3, 3\]: got \[3\]",
    ),
    "an event that is no tensor": (
        lambda: ours.DependencyCRF(zeros(2, 3, 3)).log_prob([0]),
        r"value must be an event \[\.\., 2, 3, 3\]: got list",
    ),
    "an event of a grammar that is one tensor": (
        lambda: ours.SentCFG((zeros(1, 3, 1), zeros(1, 1, 2, 2), zeros(1, 1))).log_prob(zeros(1, 3, 1)),
        r"value must be an event of terms, rules and roots: got Tensor",
    ),
    "rules of an event of another size": (
        lambda: ours.SentCFG((zeros(1, 3, 1), zeros(1, 1, 2, 2), zeros(1, 1))).log_prob(
            (zeros(1, 3, 1), zeros(1, 1, 3, 3), zeros(1, 1))
        ),
        r"value\[1\] \(rules\) must be an event \[\.\., 1, 1, 2, 2\]: got \[1, 1, 3, 3\]",
    ),
    "a tree without spans": (
        lambda: ours.CKY.from_parts((zeros(1, 2, 1),) * 3),
        "must have terms, rules, roots and spans",
    ),
    "labels of another size": (lambda: ours.CKY.to_parts(zeros(1, 2, 2, 3), (1, 1)), r"must be \[B, N, N, 2\]"),
    "other structures": (
        lambda: ours.TreeCRF(zeros(1, 2, 2, 2)).kl(ours.DependencyCRF(zeros(1, 2, 2))),
        "other must be a SpanTree: got DependencyTree",
    ),
    "a larger batch of a sketch": (
        lambda: ours.LinearChainCRF(zeros(1, 2, 2, 2)).sketch(1).expand((3,)),
        "expand the distribution before it is sketched",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_errors(what):
    wrong, text = WRONG[what]
    with pytest.raises(ValueError, match=text):
        wrong()


def test_public_names():
    assert ours.__all__ == tailsum.compat.torch_struct.public.__all__
    assert set(ours.__all__) <= set(dir(ours))
    assert "compat" in dir(tailsum)
    assert tailsum.compat.torch_struct is ours
    with pytest.raises(AttributeError, match=r"module 'tailsum.compat.torch_struct' has no attribute 'Nothing'"):
        ours.Nothing  # noqa: B018
    assert repr(ours.LinearChainCRF(zeros(2, 3, 4, 4))) == "LinearChainCRF(batch_shape=[2], event_shape=[3, 4, 4])"
    assert issubclass(ours.LinearChainCRF, torch.distributions.Distribution)


def test_a_band_of_an_alignment():
    free, band = ours.AlignmentCRF(zeros(1, 3, 3, 3)), ours.AlignmentCRF(zeros(1, 3, 3, 3), max_gap=0)
    assert free.count == 13
    assert band.count == 1
    assert ours.AlignmentCRF(zeros(1, 3, 3, 3), max_gap=2).count == 13
