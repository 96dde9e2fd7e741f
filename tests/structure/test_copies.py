"""Copies of models, and configurations written to files."""

import copy
import io
import pickle

import pytest
import torch

import tailsum as ts
from harness.agree import close
from harness.registry import BOTH, FEW, made, possible, small
from harness.ways import ONE_WAY
from tailsum.structure.terms import tensors_in


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
        loaded = torch.load(file, weights_only=True)
        assert type(loaded) is type(value)
        torch.testing.assert_close(list(tensors_in(loaded)), list(tensors_in(value)))


# Neither a function within a function nor the class of a page can be imported.
@pytest.mark.parametrize(("name", "way"), [x for x in ONE_WAY if "scored" not in x[0] and "ring" not in x[0]])
def test_models_can_be_pickled_and_saved(name, way):
    _, model = possible(name, way)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for twin in (pickle.loads(pickle.dumps(model)), torch.load(file, weights_only=False), copy.copy(model)):
        assert repr(twin) == repr(model)
        close(twin.log_partition(), model.log_partition())
        close(twin.whole.entropy(), model.whole.entropy())
        assert torch.equal(twin.states, model.states)


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
