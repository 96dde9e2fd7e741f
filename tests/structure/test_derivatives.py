"""Derivatives of every structure against finite differences in float64 and against enumeration."""

import math
from random import Random

import pytest
import torch

import tailsum as ts
from harness.agree import close
from harness.derivatives import check
from harness.registry import (
    BOTH,
    CASES,
    FEW,
    SEQUENCES,
    SMALL,
    STATEFUL,
    STRUCTURES,
    made,
    possible,
    random_subset,
    small,
)

# Derivatives of graphs take long: here a few of them, and more among the graphs.
SOME = [name for name in SMALL if name in SEQUENCES or name in FEW]
KINDS = {
    "full": ("whole", SOME, {"ragged": False, "forbidden": 0.2}),
    "ragged": ("whole", SEQUENCES, {}),
    "restricted": ("restricted", [name for name in SOME if name in STATEFUL], {"forbidden": 0.1}),
}


def same_states(case, model):
    """A function that makes a model from leaves, restricted to the states that the given model keeps."""
    return lambda *leaves: case.model(*leaves) if model.kept is None else case.model(*leaves).restrict(model.kept)


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for kind, (_, names, _) in KINDS.items() for name in names])
def test_log_partition_and_entropy(name, kind):
    way, _, how = KINDS[kind]
    case, model = possible(name, way, **how)
    make = same_states(case, model)

    def run(*leaves):
        model = make(*leaves)
        return model.log_partition(), model.entropy()

    check(run, case.leaves, twice=name in SEQUENCES and (kind != "ragged" or name in FEW))


@pytest.mark.parametrize("seeds", [range(start, start + 5) for start in range(0, 20, 5)], ids=str)
@pytest.mark.parametrize("structure", [kind.name for kind in CASES])
def test_gradients_equal_those_of_enumeration(structure, seeds):
    """Derivatives in all parameters are finite if something is forbidden, and zero if nothing is possible."""
    for seed in seeds:
        r = Random(seed)
        case, way = STRUCTURES[structure].random(r), r.choice(["whole", "restricted"])
        gradients_agree(case, same_states(case, made(case, way, seed)))


def gradients_agree(case, make):
    leaves = [x.requires_grad_() for x in case.leaves]
    model = make(*leaves)
    truths = case.truths(model, *leaves)
    live = torch.tensor([truth.possible for truth in truths])
    marginals = case.marginals(model)
    mix = torch.randn(marginals.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def mixed(b, truth):
        return (truth.marginals * mix[b][case.within(case.lengths[b])]).sum()

    result = {
        "log_partition": (case.flat(model.log_partition()), lambda _, truth: truth.log_partition),
        "entropy": (case.flat(model.entropy()), lambda _, truth: truth.entropy),
        "marginals": ((marginals * mix).flatten(1).sum(-1), mixed),
    }
    how = {"allow_unused": True, "materialize_grads": True, "retain_graph": True}
    for value, truth_of in result.values():
        # Through impossible ones too: they must give zero, not NaN.
        total = torch.where(live, value, 0.0).sum() + value.nan_to_num(neginf=0.0).sum()
        expected = sum((2 * truth_of(b, x) for b, x in enumerate(truths) if x.possible), torch.zeros(()).double())
        if not total.requires_grad:  # nothing is summed
            assert not expected.requires_grad
            continue
        gradients = torch.autograd.grad(total, leaves, **how)
        if not expected.requires_grad:
            assert all(x.eq(0).all() for x in gradients)
            continue
        for a, b in zip(gradients, torch.autograd.grad(expected, leaves, **how), strict=True):
            close(a, b, rtol=1e-8, atol=1e-8)


TILED = ["numerics.reduce", "trees.rules.vector_rule"]
CHARTS = ("segments", "spans", "pcfg", "dependencies")  # chains and graphs have tiles of their own, tested there


@pytest.mark.parametrize(
    ("name", "way"), [(name, way) for name, way in BOTH if name in FEW and name.startswith(CHARTS)]
)
def test_log_space_in_tiles(name, way, monkeypatch):
    """Forces the path for scores beyond the range of exp, and tiles of a few entries."""
    for module in TILED:
        monkeypatch.setattr(f"tailsum.{module}.tile_size", lambda *_: 16)
    case, model = possible(name, way)
    expected = model.log_partition(), model.entropy()
    monkeypatch.setattr("tailsum.numerics.reduce.LogProduct._lost", lambda *_: True)
    make = same_states(case, model)

    def run(*leaves):
        model = make(*leaves)
        with ts.table_budget(0):
            return model.log_partition(), model.entropy()

    for result, value in zip(run(*case.leaves), expected, strict=True):
        torch.testing.assert_close(result, value, rtol=1e-10, atol=1e-10)
    check(run, case.leaves, twice=False)


@pytest.mark.parametrize("name", STATEFUL)
def test_weights_of_a_subset(name):
    _, model = possible(name, "restricted")
    index, log_weight = model.states, model.log_weight
    empty = log_weight == -math.inf

    def run(x):
        restricted = model.whole.restrict(ts.Subset(index, x.masked_fill(empty, -math.inf)))
        return restricted.log_partition(), restricted.entropy()

    check(run, [log_weight.masked_fill(empty, 0.0)], twice=False)


OTHERS = [(name, way) for name, way in BOTH if name in SEQUENCES and (way == "whole" or name in FEW)]


@pytest.mark.parametrize(("name", "way"), OTHERS)
def test_other_operations(name, way):
    case, model = possible(name, way)
    make, other = same_states(case, model), same_states(case.sibling(seed=50), model)()

    def run(*leaves):
        model = make(*leaves)
        result = [model.marginals(), model.kl(other), other.kl(model), model.cross_entropy(other)]
        return [*result, other.cross_entropy(model), *case.other_marginals(model)]

    check(run, case.leaves, twice=False)


@pytest.mark.parametrize("name", SMALL)
def test_scores_of_configurations(name):
    case, model = possible(name)
    configurations = model.sample((2,))
    check(lambda *leaves: [case.model(*leaves).log_prob(configurations)], case.leaves, twice=False)


def relaxed(case, model, **how):
    sample = model.rsample(0.8, generator=torch.Generator().manual_seed(1), sample_shape=(2,), **how)
    return case.weights(model, sample)


@pytest.mark.parametrize(("name", "way"), BOTH)
def test_relaxed_samples(name, way):
    case, model = possible(name, "whole" if way == "whole" else "restricted, shared")
    make = same_states(case, model)
    check(lambda *leaves: relaxed(case, make(*leaves)), case.leaves, twice=False)


@pytest.mark.parametrize(("name", "way"), BOTH)
def test_straight_through_has_the_relaxed_gradient(name, way):
    case, model = possible(name, way, k=3)  # of a single state there would be nothing to relax
    leaves = [x.requires_grad_() for x in case.leaves]
    model = same_states(case, model)(*leaves)
    soft, hard = (relaxed(case, model, hard=hard) for hard in (False, True))
    assert all(((x - x.round()).abs() < 1e-9).all() for x in hard)
    assert not all(((x - x.round()).abs() < 1e-9).all() for x in soft)
    weights = [torch.randn(x.shape).double() for x in soft]
    gradients = [
        torch.autograd.grad(
            sum((x * w).sum() for x, w in zip(result, weights, strict=True)),
            leaves,
            retain_graph=True,
            materialize_grads=True,
        )
        for result in (soft, hard)
    ]
    assert any(x.abs().max() > 0.01 for x in gradients[0])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(("name", "way"), [(name, way) for name, way in BOTH if small(name).can_block])
def test_impossible_sentences_have_finite_gradients(name, way):
    """The second of five sentences is impossible: it lacks something that every configuration has."""
    lengths = [3, 3, 2, 2, 3] if small(name).has_lengths else None
    case = small(name, batch=(5,), lengths=lengths, seed=3)
    case.block(1)
    leaves = [x.requires_grad_() for x in case.leaves]
    model = case.model(*leaves)
    if way == "restricted":
        model = model.restrict(random_subset(case, model, seed=1))
    sums, parts = [model.log_partition(), model.entropy()], [model.marginals(), *case.other_marginals(model)]
    weights = relaxed(case, model)
    assert sums[0][1] == sums[1][1] == -math.inf
    assert all(x[1].eq(0).all() for x in parts)
    assert all(x[:, 1].eq(0).all() for x in weights)
    for value in (sums[0], *(x[x > -math.inf].square() for x in (*sums, *parts, *weights))):
        assert not value.isnan().any()
        if not value.requires_grad:
            continue
        gradients = torch.autograd.grad(value.sum(), leaves, retain_graph=True, materialize_grads=True)
        for leaf, gradient in zip(leaves, gradients, strict=True):
            assert gradient.isfinite().all()
            if leaf.shape[0] == 5:  # then it belongs to the sentences
                assert gradient[1].eq(0).all()
