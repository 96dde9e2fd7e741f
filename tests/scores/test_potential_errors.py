"""Bad input to potentials: a ValueError that names the argument, what it was and what was expected."""

import math

import pytest
import torch

import tailsum as ts

pytestmark = pytest.mark.usefixtures("unchecked")

NODES = torch.zeros(2, 4, 3)


def test_potentials():
    with pytest.raises(
        ValueError,
        match=r"left and right must have two or more dimensions and the same last one: got \[3, 2\] and \[3, 4\]",
    ):
        ts.Factored(torch.zeros(3, 2), torch.zeros(3, 4))
    with pytest.raises(ValueError, match="left and right must have two or more dimensions"):
        ts.Factored(torch.zeros(3), torch.zeros(3))
    with pytest.raises(ValueError, match="left and right must have leading dimensions that broadcast"):
        ts.Factored(torch.zeros(2, 3, 2), torch.zeros(4, 3, 2))
    with pytest.raises(ValueError, match=r"gate must be \[\*lead, 2\], as wide as left and right: got \[3\]"):
        ts.Gated(torch.zeros(3, 2), torch.zeros(3, 2), torch.zeros(3))
    with pytest.raises(ValueError, match=r"gate must have leading dimensions that broadcast .* \[4\]: got \[5, 2\]"):
        ts.Gated(torch.zeros(4, 3, 2), torch.zeros(3, 2), torch.zeros(5, 2))
    with pytest.raises(ValueError, match="transition must have finite factors: got -inf"):
        ts.LinearChain(NODES, ts.Gated(torch.zeros(3, 2), torch.zeros(3, 2), torch.full((2, 3, 2), -math.inf)))
    with pytest.raises(ValueError, match=r"transition must have factors whose inner products fit torch\.float32"):
        ts.LinearChain(NODES, ts.Gated(*[torch.full((3, 2), 1e20)] * 2, torch.ones(2)))
    broken = ts.LinearChain(NODES, ts.Scored(lambda i, j: (i + j) * math.nan, 3, 3))
    with pytest.raises(ValueError, match="function gave a score that is NaN"):
        broken.log_partition()
    with pytest.raises(ValueError, match="n_from and n_to must be at least 1: got 0 and 3"):
        ts.Scored(lambda i, j: i + j, 0, 3)
    chain = ts.LinearChain(NODES, ts.Scored(lambda i, j: i + j, 3, 3))
    with pytest.raises(ValueError, match=r"function must give one floating-point score for each pair, \[3, 3\]"):
        chain.log_partition()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ts.Dense(torch.zeros(3)), r"scores must be a tensor \[\*lead, n_from, n_to\]: got \[3\]"),
        (lambda: ts.Dense([1.0]), r"scores must be a tensor .*: got list"),
        (lambda: ts.Factored([1.0], torch.zeros(3, 3)), "left must be a tensor: got list"),
        (lambda: ts.Factored(torch.zeros(3, 3), None), "right must be a tensor: got NoneType"),
        (lambda: ts.Gated(torch.zeros(3, 2), torch.zeros(3, 2), [1.0]), "gate must be a tensor: got list"),
        (lambda: ts.Scored(3, 2, 2), "function must be callable with two index tensors: got int"),
        (lambda: ts.Scored(lambda i, j: i, "a", 2), "n_from and n_to must be at least 1: got a and 2"),
        (lambda: ts.DenseRule([1.0]), "scores must be a tensor: got list"),
        (lambda: ts.LowRankRule([1.0], torch.zeros(3, 2), torch.zeros(3, 2)), "head must be a tensor: got list"),
        (lambda: ts.FactoredRule(torch.zeros(1, 2), torch.zeros(3, 2), 3), "right must be a tensor: got int"),
        (lambda: ts.ScoredRule(3, 2, 2), "function must be callable with three index tensors: got int"),
        (lambda: ts.ScoredRule(lambda a, b, c: a, 2, None), "n_heads and n_leaves must be at least 1: got 2 and None"),
    ],
)
def test_scores_of_the_wrong_kind(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_what_scores_are_is_said_without_addresses():
    def closeness(i, j):
        return -(i - j).abs().double()

    def product(a, b, c):
        return (a * b * c).double()

    assert repr(ts.Scored(closeness, 3, 4)) == "Scored(closeness, 3, 4)"
    assert repr(ts.ScoredRule(product, 3, 4)) == "ScoredRule(product, 3, 4)"
    assert repr(ts.Dense(torch.zeros(2, 3))) == "Dense([2, 3])"
    assert repr(ts.Factored(torch.zeros(2, 5), torch.zeros(3, 5))) == "Factored([2, 5], [3, 5])"
