"""Samples without replacement of every structure, against enumeration."""

import math

import pytest
import torch

import tailsum as ts
from harness.agree import close
from harness.registry import BOTH, FEW, STATEFUL, possible, small
from harness.statistics import z_score

SOME = [(name, way) for name, way in BOTH if name in FEW]


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def found_in(case, model, distinct, b):
    """The ids of the drawn configurations of sentence b in the list of the truth, in order."""
    truth = case.truths(model)[b]
    rows = [case.read(row, b) for row in case.rows(distinct.configurations)[:, b]]
    return truth, [truth.index_of(row) for row in rows if row is not None]


@pytest.mark.parametrize(("name", "way"), BOTH)
def test_all_that_exist_once_each(name, way):
    """With forbidden parts and ragged lengths, and repeated states in the restricted models."""
    case, model = possible(name, way, forbidden=0.2)
    counts = [int((truth.scores > -math.inf).sum()) for truth in case.truths(model)]
    k = min(12, max(counts) + 2)
    result = model.sample_distinct(k, generator=seeded(0))
    assert result.log_probs.shape == result.perturbed.shape == (min(k, max(counts)), *case.batch)
    assert result.threshold.shape == case.batch
    assert (result.perturbed[:-1] >= result.perturbed[1:]).all()
    assert (result.threshold <= result.perturbed.amin(0)).all()
    for b, count in enumerate(counts):
        truth, places = found_in(case, model, result, b)
        assert len(places) == len(set(places)) == min(count, k)
        close(result.log_probs[: len(places), b].exp(), truth.probability[places])
        assert (result.log_probs[len(places) :, b] == -math.inf).all()
        assert (result.perturbed[len(places) :, b] == -math.inf).all()
        assert (result.threshold[b] == -math.inf) == (count <= k)
        if count <= k:
            close(result.weights()[: len(places), b], truth.probability[places])


def drawn_pairs(name, way, count):
    """The first two configurations from many copies of a model of one sentence, and the truth for the sentence."""
    case, model = possible(name, way, ragged=False, batch=(1,), scale=0.7, k=3, least=2)
    if name.startswith("ring"):  # a user's structure, whose terms are not broadcast
        many = case.many(count) if model.kept is None else case.many(count).restrict(model.kept)
    else:
        many = model.in_batch((count, 1))
    result = many.sample_distinct(2, generator=seeded(1))
    flat = case.rows(result.configurations).reshape(2, count, -1)
    kinds, which = flat.flatten(0, 1).unique(dim=0, return_inverse=True)
    truth = case.truths(model)[0]
    places = torch.tensor([truth.index_of(case.read(row, 0)) for row in kinds])[which].reshape(2, count)
    return truth.probability, places, result


def deviations(p, places):
    """The largest distance of frequencies of ordered pairs from `p_i p_j / (1 - p_i)`, in standard errors."""
    count = places.shape[1]
    expected = p[:, None] * p / (1 - p[:, None])
    expected.fill_diagonal_(0.0)
    seen = torch.zeros_like(expected).index_put(tuple(places), torch.ones(count).double(), accumulate=True) / count
    assert seen.diagonal().eq(0).all()
    assert seen[expected == 0].eq(0).all()
    often = expected * count >= 30
    expected, seen = (torch.cat((x[often], x[~often].sum()[None])) for x in (expected, seen))
    first = torch.bincount(places[0], minlength=len(p)).double() / count
    common = p * count >= 30
    off = [(seen - expected) / (expected * (1 - expected) / count + 1e-12).sqrt()]
    off.append(((first - p) / (p * (1 - p) / count + 1e-12).sqrt())[common])
    return torch.cat(off).abs().max().item()


@pytest.mark.parametrize(("name", "way"), SOME)
def test_order_of_draws(name, way):
    p, places, result = drawn_pairs(name, way, 1500)
    assert deviations(p, places) < 5
    weights = result.weights()[..., 0]
    values = torch.randn(len(p), generator=seeded(2), dtype=torch.float64)
    assert z_score((weights * values[places]).sum(0), p @ values) < 5
    assert z_score(weights.sum(0), 1.0) < 5


@pytest.mark.parametrize("broken", ["values that may exceed the bound", "classes of equal mass"])
def test_a_wrong_draw_is_noticed(monkeypatch, broken):
    if broken == "classes of equal mass":
        monkeypatch.setattr("tailsum.structure.distinct.gumbel", lambda x, g: ts.numerics.noise.gumbel(x.sign(), g))
    else:
        monkeypatch.setattr("tailsum.structure.distinct._below", lambda values, _: values)
    p, places, result = drawn_pairs("spans-dense", "whole", 4000)
    weights = result.weights()[..., 0]
    assert deviations(p, places) > 8 or z_score(weights.sum(0), 1.0) > 8


@pytest.mark.parametrize("name", FEW)
def test_gradients_are_those_of_log_prob(name):
    case, model = possible(name, "restricted" if name in STATEFUL else "whole", k=2)
    leaves = [x.clone().requires_grad_() for x in case.leaves]
    whole = case.model(*leaves)
    fresh = whole if model.kept is None else whole.restrict(model.kept)
    result = fresh.sample_distinct(2, generator=seeded(3))
    finite = result.log_probs > -math.inf
    expected = fresh.sample_log_prob(result.configurations)
    close(result.log_probs, expected)
    assert not result.perturbed.requires_grad
    how = {"retain_graph": True, "materialize_grads": True}
    for one, other in zip(
        torch.autograd.grad(result.log_probs[finite].sum(), leaves, **how),
        torch.autograd.grad(expected[finite].sum(), leaves, **how),
        strict=True,
    ):
        close(one, other)


@pytest.mark.parametrize("name", [name for name in FEW if small(name).can_block])
def test_nothing_where_nothing_is_possible(name):
    case = small(name, seed=5)
    case.block(0)
    result = case.model().sample_distinct(2, generator=seeded(0))
    assert (result.log_probs[:, 0] == -math.inf).all()
    assert (result.weights()[:, 0] == 0).all()
    assert all(case.read(row, 0) is None for row in case.rows(result.configurations)[:, 0])
    for b in range(case.size):
        case.block(b)
    none = case.model().sample_distinct(2)
    assert none.log_probs.shape == none.weights().shape == (0, *case.batch)
    assert case.rows(none.configurations).numel() == 0


def test_the_same_generator_gives_the_same():
    _, model = possible("chain-dense")
    one, other = (model.sample_distinct(3, generator=seeded(7)) for _ in range(2))
    assert torch.equal(one.configurations, other.configurations)
    assert torch.equal(one.perturbed, other.perturbed)
    assert not torch.equal(model.sample_distinct(3, generator=seeded(8)).perturbed, one.perturbed)


def test_saved_and_loaded(tmp_path):
    _, model = possible("spans-dense")
    result = model.sample_distinct(3)
    torch.save(result, tmp_path / "found.pt")
    loaded = torch.load(tmp_path / "found.pt", weights_only=True)
    assert torch.equal(loaded.configurations.spans, result.configurations.spans)
    assert torch.equal(loaded.weights(), result.weights())


def test_too_few_rivals_are_an_error(monkeypatch):
    """A user's structure that does not say which parts exclude one another."""
    _, model = possible("ring-shared")
    monkeypatch.setattr(type(model), "exclusions", lambda _, demanded: [torch.zeros_like(x) for x in demanded])
    with pytest.raises(ValueError, match="exclusions names too few parts"):
        model.sample_distinct(8, generator=seeded(0))


def test_weights_of_improbable_configurations():
    """There are 10^60 paths: probabilities underflow in float32, weights do not."""
    result = ts.LinearChain(torch.zeros(60, 10), torch.zeros(10, 10)).sample_distinct(3)
    assert (result.weights() > 0).all()
    torch.testing.assert_close(result.weights(), result.threshold.exp().expand(3))
