"""What dependency trees have of their own: what is no tree, and how precise padded sentences are."""

import math

import pytest
import torch

import tailsum as ts
from harness.agree import close
from harness.dependencies import DependencyCase


@pytest.mark.parametrize("length", [3, 4])
@pytest.mark.parametrize("multiroot", [False, True])
@pytest.mark.parametrize("projective", [False, True])
def test_what_is_no_tree_scores_minus_infinity(projective, multiroot, length):
    case = DependencyCase((2,), 4, lengths=[length, 4], projective=projective, multiroot=multiroot, seed=3)
    heads = torch.cartesian_prod(*[torch.arange(length)] * length)
    given = torch.nn.functional.pad(heads, (0, 4 - length), value=-1)
    score = case.model().score(ts.Dependencies(given[:, None].expand(-1, 2, -1)))[:, 0]
    truth = case.whole_truths[0]
    trees = {tree: score for (tree, _, _), score in zip(truth.configurations, truth.scores.tolist(), strict=True)}
    expected = [trees.get(tuple(row), -math.inf) for row in heads.tolist()]
    close(score, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("projective", [False, True])
def test_padding_costs_dependency_trees_no_digits(projective):
    """The same sentence, of 20 words, alone and padded to 30, with an offset, in float32."""
    arc = torch.randn(30, 30) - 1000
    alone, padded = (
        ts.DependencyTree(x, lengths, projective) for x, lengths in ((arc[:20, :20], None), (arc, torch.tensor(20)))
    )
    exact = ts.DependencyTree(arc[:20, :20].double(), projective=projective).entropy()
    error = [(x.entropy().double() - exact).abs().item() for x in (alone, padded)]
    assert error[1] <= 2 * error[0] + 1e-5
