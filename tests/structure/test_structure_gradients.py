"""Derivatives of every structure, of every kind, against finite differences in float64."""

import math

import pytest
import torch

import tailsum as ts
from harness.cases import BOTH, FEW, STATEFUL, ZOO, DependencyCase, GrammarCase, possible, random_subset, zoo
from harness.derivatives import check

KINDS = {
    "full": ("whole", {"lengths": None, "forbidden": 0.2}),
    "ragged": ("whole", {}),
    "restricted": ("restricted", {"forbidden": 0.1}),
}


@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for name in ZOO for kind in KINDS if kind != "restricted" or name in STATEFUL]
)
def test_log_partition_and_entropy(name, kind):
    way, how = KINDS[kind]
    case, model = possible(name, way, **how)
    subset = model.kept

    def run(*leaves):
        model = case.model(*leaves)
        model = model if subset is None else model.restrict(subset)
        return model.log_partition(), model.entropy()

    check(run, case.leaves, twice=kind != "ragged" or name in FEW)


@pytest.mark.parametrize(("name", "way"), [(name, way) for name, way in BOTH if name in FEW])
def test_log_space_in_tiles(name, way, monkeypatch):
    """The path for scores beyond the range of exp, forced, and tiles of a few entries."""
    for module in ("numerics.reduce", "trees.rules.factors", "trees.rules.spans"):
        monkeypatch.setattr(f"tailsum.{module}.tile_size", lambda *_: 16)
    case, model = possible(name, way)
    expected = model.log_partition(), model.entropy()
    monkeypatch.setattr("tailsum.numerics.reduce.LogProduct._lost", lambda *_: True)
    subset = model.kept

    def run(*leaves):
        model = case.model(*leaves)
        model = model if subset is None else model.restrict(subset)
        with ts.table_budget(0):
            return model.log_partition(), model.entropy()

    for found, value in zip(run(*case.leaves), expected, strict=True):
        torch.testing.assert_close(found, value, rtol=1e-10, atol=1e-10)
    check(run, case.leaves, twice=False)


@pytest.mark.parametrize("name", STATEFUL)
def test_weights_of_a_subset(name):
    _, model = possible(name, "restricted")
    index, log_weight = model.states, model.log_weight
    empty = log_weight == -math.inf

    def run(x):
        small = model.whole.restrict(ts.Subset(index, x.masked_fill(empty, -math.inf)))
        return small.log_partition(), small.entropy()

    check(run, [log_weight.masked_fill(empty, 0.0)], twice=False)


@pytest.mark.parametrize(("name", "way"), [(name, way) for name, way in BOTH if way == "whole" or name in FEW])
def test_other_operations(name, way):
    case, model = possible(name, way)
    subset, other = model.kept, case.sibling(seed=50).model()

    def run(*leaves):
        model, theirs = case.model(*leaves), other
        if subset is not None:
            model, theirs = model.restrict(subset), other.restrict(subset)
        found = [model.marginals(), model.kl(theirs), theirs.kl(model), model.cross_entropy(theirs)]
        found += [theirs.cross_entropy(model)]
        if isinstance(case, GrammarCase) and subset is None:
            found.append(model.rule_marginals())
        if isinstance(case, DependencyCase) and case.has_states:
            found.append(model.state_marginals())
        return found

    check(run, case.leaves, twice=False)


@pytest.mark.parametrize("name", ["grammar, own dense", "grammar, low rank"])
def test_rule_marginals_of_a_restricted_grammar(name):
    """They can be differentiated as those of the whole grammar can."""
    case, model = possible(name, "restricted")
    subset = model.kept
    leaves = [x.requires_grad_() for x in case.leaves]
    assert case.model(*leaves).rule_marginals().requires_grad
    assert case.model(*leaves).restrict(subset).rule_marginals().requires_grad
    check(lambda *leaves: [case.model(*leaves).restrict(subset).rule_marginals()], leaves, twice=False)


@pytest.mark.parametrize("name", ZOO)
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
    subset = model.kept

    def run(*leaves):
        model = case.model(*leaves)
        return relaxed(case, model if subset is None else model.restrict(subset))

    check(run, case.leaves, twice=False)


@pytest.mark.parametrize(("name", "way"), BOTH)
def test_straight_through_has_the_relaxed_gradient(name, way):
    case, model = possible(name, way)
    leaves = [x.requires_grad_() for x in case.leaves]
    small = case.model(*leaves) if model.kept is None else case.model(*leaves).restrict(model.kept)
    soft, hard = (relaxed(case, small, hard=hard) for hard in (False, True))
    assert all(((x - x.round()).abs() < 1e-9).all() for x in hard)
    assert not all(((x - x.round()).abs() < 1e-9).all() for x in soft)
    weights = [torch.randn(x.shape).double() for x in soft]
    gradients = [
        torch.autograd.grad(
            sum((x * w).sum() for x, w in zip(found, weights, strict=True)),
            leaves,
            retain_graph=True,
            materialize_grads=True,
        )
        for found in (soft, hard)
    ]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(("name", "way"), BOTH)
def test_impossible_sentences_have_finite_gradients(name, way):
    """The second of five sentences is impossible, for want of something that every configuration has."""
    case = zoo(name, batch=(5,), lengths=[3, 3, 2, 2, 3], seed=3)
    case.block(1)
    leaves = [x.requires_grad_() for x in case.leaves]
    model = case.model(*leaves)
    if way == "restricted":
        model = model.restrict(random_subset(case, model, seed=1))
    sums, parts = [model.log_partition(), model.entropy()], [model.marginals(), *(relaxed(case, model))]
    if isinstance(case, GrammarCase):
        parts.append(model.rule_marginals())
    assert sums[0][1] == sums[1][1] == -math.inf
    for x in parts:
        assert x.movedim(0, -1)[1].eq(0).all() if x.shape[:2] == (2, 5) else x[1].eq(0).all()
    for value in (sums[0], *(x[x > -math.inf].square() for x in (*sums, *parts))):
        assert not value.isnan().any()
        if not value.requires_grad:
            continue
        gradients = torch.autograd.grad(value.sum(), leaves, retain_graph=True, materialize_grads=True)
        for leaf, gradient in zip(leaves, gradients, strict=True):
            assert gradient.isfinite().all()
            if leaf.shape[0] == 5:  # then it belongs to the sentences
                assert gradient[1].eq(0).all()
