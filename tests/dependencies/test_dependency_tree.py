"""Dependency trees in particular: invalid trees, labels, other conventions for heads, precision, memory."""

import copy
import inspect
import math

import pytest
import torch

import tailsum as ts
from harness.agree import close
from harness.dependencies import DependencyCase
from tailsum.numerics.memory import PeakMemory


@pytest.mark.filterwarnings("ignore:some trees have crossing arcs")
@pytest.mark.parametrize("length", [3, 4])
@pytest.mark.parametrize("multiroot", [False, True])
@pytest.mark.parametrize("projective", [False, True])
def test_what_is_no_tree_scores_minus_infinity(projective, multiroot, length):
    case = DependencyCase((2,), 4, lengths=[length, 4], projective=projective, multiroot=multiroot, seed=3)
    heads = torch.cartesian_prod(*[torch.arange(length)] * length)
    given = torch.nn.functional.pad(heads, (0, 4 - length), value=-1)
    given = torch.stack((given, torch.full_like(given, -1)), 1)  # none for the other sentence
    score = case.model().score(ts.Dependencies(given))[:, 0]
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


def test_labels_are_never_guessed():
    """A batch of T sentences, and T labels for one sentence, have the same shape."""
    arc = torch.randn(4, 4, 4)
    assert ts.DependencyTree(arc).batch_shape == (4,)
    one = ts.DependencyTree(arc, labelled=True)
    assert one.batch_shape == ()
    close(one.log_partition(), ts.DependencyTree(arc.logsumexp(-1)).log_partition(), rtol=1e-5, atol=1e-5)


def test_heads_from_conll_and_back():
    heads = torch.tensor([[2, 0, 2, 3], [0, 1, -1, -1]])
    trees = ts.Dependencies.from_conll(heads)
    assert trees.heads.tolist() == [[1, 1, 1, 2], [0, 0, -1, -1]]
    assert torch.equal(trees.to_conll(), heads)
    assert torch.equal(ts.Dependencies.from_conll(heads.tolist()).heads, trees.heads)
    assert (ts.DependencyTree(torch.randn(2, 4, 4), [4, 2]).score(trees) > -math.inf).all()


@pytest.mark.parametrize("kind", ["plain", "labelled", "states"])
def test_scores_of_many_trees_look_up_only_the_arcs_they_use(kind):
    """Neither pass has a tensor of trees x words x words x labels, or x states."""
    length, labels, count = 20, 15, 200
    arc = torch.randn(length, length, *((labels,) if kind == "labelled" else ()), requires_grad=True)
    states = {"node": torch.randn(length, 50, requires_grad=True), "transition": torch.randn(50, 50)}
    tree = ts.DependencyTree(arc, labelled=kind == "labelled", **(states if kind == "states" else {}))
    trees = tree.sample((count,))
    with PeakMemory() as memory:
        tree.score(trees).sum().backward()
    # 8 bytes for each id of a tree; ancestors are booleans, some at once.
    assert memory.largest <= max(8 * count * length, count * length * length, 4 * arc.numel())
    assert memory.peak < 12 * count * length * length


class Named(ts.DependencyTree):
    """A user's own class."""

    def entropy(self):
        return super().entropy() + 1.0


@pytest.mark.parametrize("kind", [ts.DependencyTree, Named])
def test_trees_with_states_are_of_the_class_that_was_constructed(kind, tmp_path):
    arc, node, transition = torch.randn(2, 4, 4), torch.randn(2, 4, 3), torch.randn(3, 3)
    plain, tree = kind(arc), kind(arc, None, True, False, node, transition)
    assert isinstance(tree, kind)
    assert type(tree) is type(kind(arc, node=node, transition=transition))
    assert type(plain) is kind
    assert str(tree).startswith(f"{kind.__name__}(batch=[2]")
    close(tree.entropy() - float(kind is Named), ts.DependencyTree(arc, node=node, transition=transition).entropy())
    for model in (plain, tree):
        torch.save(model, tmp_path / "model.pt")
        loaded = torch.load(tmp_path / "model.pt", weights_only=False)
        assert type(loaded) is type(model)
        close(loaded.entropy(), model.entropy())
        close(copy.copy(model).entropy(), model.entropy())
    with pytest.raises(ValueError, match=f"other must be a {kind.__name__}: got int"):
        tree.kl(3)
    assert "transition" in inspect.signature(kind).parameters


def test_trees_of_earlier_versions_are_read():
    tree = ts.DependencyTree(torch.randn(4, 4), node=torch.randn(4, 3), transition=torch.randn(3, 3))
    for states, model in ((True, tree), (False, ts.DependencyTree(torch.randn(4, 4)))):
        state = {"_node": torch.zeros(4, 1), **vars(model), "stateful": states}  # as they were written
        read = ts.DependencyTree.__new__(ts.DependencyTree)
        read.__setstate__(state)
        close(read.entropy(), model.entropy())


def test_chances_of_the_one_state():
    with pytest.raises(RuntimeError):
        ts.DependencyTree(torch.randn(3, 3)).state_chances()


@pytest.mark.parametrize("projective", [True, False])
@pytest.mark.parametrize("multiroot", [True, False])
def test_best_trees_of_a_model_made_in_inference_mode(projective, multiroot):
    arc, how = torch.randn(2, 3, 3), {"projective": projective, "multiroot": multiroot}
    with torch.inference_mode():
        heads = ts.DependencyTree(arc + 0, **how).argmax().heads
    assert torch.equal(heads, ts.DependencyTree(arc, **how).argmax().heads)
