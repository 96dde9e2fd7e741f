"""Bad input: a ValueError that names the argument, what it was and what was expected."""

import math

import pytest
import torch

import tailsum as ts
from harness.misuse import with_value

pytestmark = pytest.mark.usefixtures("unchecked")

NODES, PAIRS = torch.zeros(2, 4, 3), torch.zeros(3, 3)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([[0.0]], PAIRS), "emission must be a tensor or Factored: got list"),
        ((ts.Dense(NODES), PAIRS), "emission must be a tensor or Factored: got Dense"),
        ((torch.zeros(3), PAIRS), r"emission must be \[\*batch, T, N\]: got \[3\]"),
        ((torch.zeros(2, 0, 3), PAIRS), "emission must have at least one position and one state"),
        ((NODES.long(), PAIRS), "emission must be floating-point: got torch.int64"),
        ((NODES, PAIRS.bool()), "transition must be floating-point: got torch.bool"),
        ((with_value(NODES, math.nan), PAIRS), r"emission must not hold NaN or \+inf .* got one at \[1, 3, 2\]"),
        (
            (ts.Factored(with_value(torch.zeros(2, 4, 5), math.nan), torch.zeros(3, 5)), PAIRS),
            r"emission must not hold NaN or \+inf .* got one at \[1, 3, 4\]",
        ),
        ((with_value(NODES, math.inf), PAIRS), r"emission must not hold NaN or \+inf"),
        ((NODES, with_value(PAIRS, math.nan)), r"transition must not hold NaN or \+inf .* got one at \[2, 2\]"),
        (
            (NODES, torch.zeros(3)),
            r"transition must be a potential or a tensor \[N, N\] or \[\*batch, 3, N, N\]: got \[3\]",
        ),
        ((NODES, torch.zeros(4, 4)), "transition must join 3 states with 3, as emission has: got 4 with 4"),
        ((NODES, torch.zeros(2, 3, 3)), r"transition must have 1 or 3 steps in dimension -3: got 2"),
        ((NODES, torch.zeros(5, 3, 3, 3)), r"transition has batch shape \[5\], which does not match emission's \[2\]"),
        ((NODES, PAIRS.to("meta")), "transition must be on cpu, where the other scores are: got meta"),
        ((NODES, PAIRS, [1, 2, 3]), r"lengths has batch shape \[3\], which does not match that of the scores, \[2\]"),
        ((NODES, PAIRS, [0, 2]), "lengths must lie between 1 and 4, the number of positions: got 0"),
        ((NODES, PAIRS, [1, 5]), "lengths must lie between 1 and 4, the number of positions: got 5"),
        ((NODES, PAIRS, torch.tensor([1.0, 2.0])), "lengths must be integers: got torch.float32"),
        (
            (NODES, ts.Factored(with_value(torch.zeros(3, 2), -math.inf), torch.zeros(3, 2))),
            r"transition must have finite factors: got -inf at \[2, 1\]",
        ),
    ],
)
def test_construction(arguments, words):
    with pytest.raises(ValueError, match=words):
        ts.LinearChain(*arguments)


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (
            lambda c: c.score(torch.zeros(2, 3).long()),
            r"states must be \[..., T\] with T = 4: got \[2, 3\]",
        ),
        (lambda c: c.score(torch.zeros(2, 4)), "states must be integers: got torch.float32"),
        (lambda c: c.score(torch.full((2, 4), 3)), "states must lie between 0 and N-1 = 2: got one outside"),
        (lambda c: c.score(torch.zeros(5, 3, 4).long()), r"states has batch shape \[5, 3\]"),
        (lambda c: c.kl(ts.LinearChain(torch.zeros(2, 5, 3), PAIRS)), "other must have the same positions and states"),
        (lambda c: c.kl(c.sketch(2)), "other must have the same positions and states"),
        (lambda c: c.kl(ts.LinearChain(NODES, PAIRS, [4, 2])), "other must have the same lengths"),
        (
            lambda c: ts.LinearChain(NODES[0], PAIRS).kl(c),
            r"other must have a batch shape within \[\]: got \[2\]",
        ),
        (lambda c: c.sketch(2).kl(ts.LinearChain(torch.zeros(2, 4, 5), torch.zeros(5, 5))), "other must have the same"),
    ],
)
def test_use(use, words):
    with pytest.raises(ValueError, match=words):
        use(ts.LinearChain(NODES, PAIRS))


def test_padding_may_hold_anything():
    nodes, pairs = torch.randn(2, 4, 3), torch.randn(2, 3, 3, 3)
    clean = ts.LinearChain(nodes, pairs, [4, 2])
    nodes, pairs = nodes.clone(), pairs.clone()
    nodes[1, 2:], pairs[1, 1:] = math.nan, math.inf
    dirty = ts.LinearChain(nodes, pairs, [4, 2])
    assert torch.equal(clean.log_partition(), dirty.log_partition())
    assert torch.equal(clean.marginals(), dirty.marginals())
    assert torch.equal(clean.entropy(), dirty.entropy())
