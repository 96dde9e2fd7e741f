"""Padding is masked when an operation runs: a model records nothing by itself, and sees changes of its scores."""

import pytest
import torch

from harness.agree import close
from harness.registry import SEQUENCES, small

LATE = [name for name in SEQUENCES if not name.startswith("hmm")]  # whose case normalises its leaves


@pytest.mark.parametrize("name", LATE)
def test_backward_twice_on_one_model(name):
    case = small(name, ragged=True, seed=1)
    leaves = [x.requires_grad_() for x in case.leaves]
    model = case.build(*leaves)
    result = []
    for _ in range(2):
        total = model.log_partition()
        result.append(torch.autograd.grad(total[total.isfinite()].sum(), leaves, materialize_grads=True))
    for a, b in zip(*result, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", LATE)
def test_changes_of_scores_are_seen(name):
    case = small(name, ragged=True, seed=1)
    leaves = case.leaves
    model = case.build(*leaves)
    before = model.log_partition()
    for x in leaves:
        x.mul_(0.5)
    after = case.build(*leaves).log_partition()
    assert not torch.equal(before[before.isfinite()], after[after.isfinite()])
    close(model.log_partition(), after)
