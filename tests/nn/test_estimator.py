"""Estimators in training: lists of neighbours that are made once for many steps."""

import pytest
import torch

import tailsum as ts
from tailsum.nn import Estimator


def chain(n, generator):
    states = torch.randn(n, 8, generator=generator)
    return ts.LinearChain(torch.randn(2, 5, n, generator=generator), ts.Factored(states, states))


def test_the_states_are_chosen_by_the_lists_it_was_given(generator):
    model = chain(60, generator)
    fresh = Estimator("tailsum", 6, landmarks=5)
    made = fresh.with_neighbours(model.transition)
    assert isinstance(made.neighbours, ts.Neighbours)
    torch.manual_seed(0)
    wanted = fresh.sketch(model).states
    torch.manual_seed(0)
    assert torch.equal(made.sketch(model).states, wanted)
    stale = made.with_neighbours(ts.Factored(*torch.randn(2, 60, 8, generator=generator)))
    torch.manual_seed(0)
    assert not torch.equal(stale.sketch(model).states, wanted)


@pytest.mark.parametrize(
    "estimator", [Estimator("full", 6), Estimator("topk", 6), Estimator("tailsum", 60), Estimator("tailsum", 6, 60)]
)
def test_no_lists_where_none_are_needed(estimator, generator):
    assert estimator.with_neighbours(chain(60, generator).transition) is estimator
