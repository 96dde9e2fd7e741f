"""Copies of models, and configurations written to files."""

import copy
import io
import pickle

import pytest
import torch

import tailsum as ts
from harness.agree import close
from harness.registry import BOTH, FEW, made, small


@pytest.mark.parametrize(("name", "way"), BOTH)
def test_deep_copies_of_scores_that_require_gradients(name, way):
    case = small(name, seed=3)
    leaves = [x.clone().requires_grad_() for x in case.leaves]
    kept = made(case, way).kept
    model = case.model(*leaves) if kept is None else case.model(*leaves).restrict(kept)
    twin = copy.deepcopy(model)
    assert type(twin) is type(model)
    assert repr(twin) == repr(model)
    assert (twin.kept is None) == (model.kept is None)
    close(twin.log_partition(), model.log_partition())
    assert twin.log_partition().requires_grad
    with torch.no_grad():
        for term in twin.terms():
            assert not any(a.data_ptr() == b.data_ptr() for a in term.tensors for b in leaves if a.numel())


@pytest.mark.parametrize("name", FEW)
def test_configurations_load_as_weights_only(name):
    model = small(name, seed=3).model()
    for value in (model.sample((2,)), model.topk(2), model.rsample()):
        file = io.BytesIO()
        torch.save(value, file)
        file.seek(0)
        assert type(torch.load(file, weights_only=True)) is type(value)


@pytest.mark.parametrize(
    "name", [name for name in FEW if "scored" not in name and "ring" not in name]
)  # neither can be imported
def test_models_can_be_pickled(name):
    model = small(name, seed=3).model()
    close(pickle.loads(pickle.dumps(model)).log_partition(), model.log_partition())


def test_one_segmentation_of_many():
    segments = ts.SemiMarkov(torch.randn(2, 4, 3, 3), torch.randn(3, 3)).sample((5,))
    one = segments.at((3, 1))
    assert isinstance(one, ts.Segments)
    assert torch.equal(one.states, segments.states[3, 1])


def test_one_dependency_tree_of_many():
    trees = ts.DependencyTree(torch.randn(2, 4, 4, 3), labelled=True).sample((5,))
    one = trees.at((3, 1))
    assert isinstance(one, ts.Dependencies)
    assert torch.equal(one.heads, trees.heads[3, 1])
    assert one.labels is not None
    assert one.states is None
    with pytest.raises(ValueError, match="index must be of the 2 dimensions of samples and batch"):
        trees.at((3, 1, 0))
