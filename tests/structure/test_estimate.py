"""Estimates with error bars for every structure: values, intervals and warnings."""

import math
import warnings

import pytest
import torch

import tailsum as ts
from harness.registry import ONE_EACH, large
from tailsum.structure import sketches as module
from tailsum.structure.replicates import combine, student

WHAT = ["log_partition", "entropy", "marginals"]


def exactly(model, what):
    return getattr(model, what)()


def quiet(model, what, **how):
    return ts.estimate(model, what, check=False, **how)


@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize("name", ONE_EACH)
def test_of_every_structure(name, what, generator):
    """For two sentences: near the truth by the standard error, and exact if all states are kept."""
    model = large(name, batch=(2,)).model()
    truth = exactly(model, what)
    result = quiet(model, what, k=3, replicates=400, generator=generator)
    assert result.value.shape == result.low.shape == result.standard_error.shape == truth.shape
    assert result.replicates.shape == (400, *truth.shape)
    assert ((result.value - truth).abs() <= 6 * result.standard_error + 1e-3).all()
    assert (result.low <= result.value).all()
    assert (result.value <= result.high).all()
    whole = quiet(model, what, k=model.n_states, replicates=2, generator=generator)
    torch.testing.assert_close(whole.value, truth)
    assert whole.standard_error.max() < 1e-9


@pytest.mark.parametrize("what", WHAT)
def test_chunks_say_the_same(what, generator, monkeypatch):
    """All sketches in one batch, or one by one: right in either way."""
    chain = ts.LinearChain(torch.randn(2, 4, 30).double(), torch.randn(30, 30).double())
    monkeypatch.setattr(module, "tile_size", lambda device: 1)
    result = quiet(chain, what, k=8, replicates=30, generator=generator)
    # A state that no sketch keeps has marginal zero, and no error.
    assert ((result.value - exactly(chain, what)).abs() <= 6 * result.standard_error + 0.05).all()


def test_a_function_of_the_sketch(generator):
    """An average under the model: the number of positions in the first ten states."""
    chain = ts.LinearChain(torch.randn(2, 4, 40).double(), torch.randn(40, 40).double())

    def low(small):
        return small.scatter(small.marginals())[..., :10].sum((-2, -1))

    result = quiet(chain, low, k=5, proposal=ts.Uniform(), replicates=500, generator=generator)
    assert ((result.value - low(chain)).abs() <= 5 * result.standard_error).all()
    assert (result.standard_error < 0.2).all()


def test_a_users_proposal_sees_the_model_that_was_given(generator):
    chain = ts.LinearChain(torch.randn(2, 4, 40), torch.randn(40, 40))
    log_q = chain.node_scores()
    result = ts.estimate(chain, "log_partition", k=20, proposal=lambda _: log_q, check=False, generator=generator)
    assert ((result.value - chain.log_partition()).abs() <= 6 * result.standard_error).all()


def test_replicates_come_closer_than_one(generator):
    chain = ts.LinearChain(torch.randn(3, 4, 40).double(), torch.randn(40, 40).double())
    for what in ("log_partition", "entropy"):
        result = quiet(chain, what, k=4, proposal=ts.Uniform(), replicates=200, generator=generator)
        assert ((result.value - exactly(chain, what)).abs() < 5 * result.standard_error).all()
        assert (result.standard_error < result.replicates.std(0)).all()


def test_the_bias_of_one_sketch_vanishes(generator):
    """The mean of single entropies is far off; the entropy of all sketches together is not."""
    chain = ts.LinearChain(torch.randn(6, 60).double(), torch.randn(60, 60).double())
    result = quiet(chain, "entropy", k=3, proposal=ts.Uniform(), replicates=20_000, generator=generator)
    alone = result.replicates.mean() - chain.entropy()
    assert abs(alone) > 0.3
    assert abs(result.value - chain.entropy()) < abs(alone) / 5


def test_one_replicate_has_no_error_bar():
    result = quiet(ts.LinearChain(torch.randn(3, 9), torch.randn(9, 9)), "entropy", k=4, replicates=1)
    assert result.standard_error == math.inf
    assert (result.low, result.high) == (-math.inf, math.inf)


def test_an_impossible_model(generator):
    chain = ts.LinearChain(torch.randn(2, 3, 9), torch.full((9, 9), -math.inf))
    for what in ("log_partition", "entropy"):
        result = ts.estimate(chain, what, k=4, generator=generator)
        assert (result.value == -math.inf).all()
        assert (result.standard_error == 0).all()
    assert (ts.estimate(chain, "marginals", k=4, generator=generator).value == 0).all()


def test_all_rests_on_one_replicate():
    """Then the error is as large as the difference to the value of the others."""
    log_z = torch.tensor([20.0, 0.0, 0.0, 0.0])
    result = combine(log_z, log_z, logarithm=True, confidence=0.95)
    assert result.standard_error > 10
    assert result.value == pytest.approx(20 - math.log(4), abs=1e-6)
    alone = torch.tensor([0.0, -math.inf, -math.inf])
    assert combine(alone, alone, logarithm=True, confidence=0.95).standard_error == math.inf


@pytest.mark.parametrize(
    ("confidence", "freedom", "t"), [(0.95, 4, 2.776), (0.99, 3, 5.841), (0.9, 1, 6.314), (0.5, 9, 0.703)]
)
def test_quantiles_of_student(confidence, freedom, t):
    assert student(confidence, freedom) == pytest.approx(t, rel=0.01)


@pytest.mark.parametrize("what", ["log_partition", "entropy"])
def test_intervals_cover(what, generator):
    """Two hundred models in a batch, whose sketches vary."""
    chain = ts.LinearChain(torch.randn(200, 5, 50), torch.randn(200, 4, 50, 50))
    result = quiet(chain, what, k=10, proposal=ts.Lookahead(4), generator=generator)
    inside = (result.low <= exactly(chain, what)) & (exactly(chain, what) <= result.high)
    assert 0.88 <= inside.float().mean() <= 0.995
    wider = quiet(chain, what, k=10, proposal=ts.Lookahead(4), confidence=0.999, generator=generator)
    assert (wider.high - wider.low).mean() > 1.5 * (result.high - result.low).mean()


# What it warns of.


def sticky(n, generator, length=8, size=16):
    states = 1.5 * torch.randn(n, size, generator=generator) / size**0.25
    return ts.LinearChain(torch.randn(length, n, generator=generator), ts.Factored(states, states))


def warned(model, **how):
    with pytest.warns(ts.SketchWarning) as seen:
        result = ts.estimate(model, "log_partition", **how)
    texts = [str(one.message) for one in seen]
    assert texts == result.warnings
    return " ".join(texts)


def test_sketches_that_miss_the_mass_are_warned_of(generator):
    chain = sticky(600, generator)
    text = warned(chain, selection=ts.TopK(50), proposal=ts.Local(), generator=generator)
    assert "another proposal" in text
    assert "nats above the estimate" in text
    assert "Raise k or landmarks" in text
    assert "make up the sum" in warned(chain, k=20, proposal=ts.Uniform(), generator=generator)


def test_a_good_estimate_is_not(generator):
    for seed in range(3):
        chain = sticky(600, torch.Generator().manual_seed(seed))
        result = ts.estimate(chain, "entropy", k=50, proposal=ts.Lookahead(neighbours=32), generator=generator)
        assert result.warnings == []


def random_chain(seed, scale, length=16, n=60):
    """With scores of a large scale its log-partition is easy and its entropy is not: sketches keep few of the good paths."""
    generator = torch.Generator().manual_seed(seed)
    emission, table = (scale * torch.randn(shape, generator=generator) for shape in ((length, n), (n, n)))
    return ts.LinearChain(emission, table)


def first_ten(small):
    return small.scatter(small.marginals())[..., :10].sum((-2, -1))


def estimated(model, what, **how):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ts.SketchWarning)
        return ts.estimate(model, what, **how)


def test_wide_intervals_of_the_entropy_are_warned_of(generator):
    """The interval of the log-partition is narrow here. Without a warning, the entropy is near the truth."""
    off = said = 0
    for seed in range(8):
        chain = random_chain(seed, 2.0)
        easy = estimated(chain, "log_partition", k=4, replicates=8, check=seed == 0, generator=generator)
        assert easy.high - easy.low < 0.1
        assert easy.warnings == []
        result = estimated(chain, "entropy", k=4, replicates=8, generator=generator)
        warned, far = bool(result.warnings), abs(result.value - chain.entropy()) > 1
        assert warned == (result.high - result.low > 2)
        assert warned or not far
        off, said = off + far, said + ("the interval of the entropy, in nats, is" in " ".join(result.warnings))
    assert off >= 2
    assert said >= 4


def test_wide_intervals_of_other_averages_are_warned_of(generator):
    chain = random_chain(0, 2.0)
    for what, text in (("marginals", "of a marginal is"), (first_ten, "of the function is")):
        result = estimated(chain, what, k=2, replicates=3, proposal=ts.Uniform(), generator=generator)
        assert any(f"the interval {text}" in one for one in result.warnings)
        alone = estimated(chain, what, k=2, replicates=1, generator=generator)
        assert not any("the interval" in one for one in alone.warnings)  # one has none at all


@pytest.mark.parametrize("what", ["entropy", "marginals", first_ten, lambda small: 0.0 * small.entropy()])
def test_nothing_is_said_of_easy_models(what, generator):
    for seed, scale in enumerate((0.1, 0.5, 1.0, 1.0)):
        assert estimated(random_chain(seed, scale), what, k=30, replicates=8, generator=generator).warnings == []


def test_instances_are_counted(generator):
    flat, peaked = torch.zeros(300, 300), 30 * torch.eye(300)
    chain = ts.LinearChain(torch.zeros(2, 6, 300), torch.stack((flat, peaked))[:, None])
    assert "in 1 of 2 instances" in warned(chain, k=10, proposal=ts.Uniform(), generator=generator)
    emission, transition = 2 * torch.randn(16, 60), 2 * torch.randn(60, 60)
    scale = torch.tensor([1.0, 0.01])[:, None, None]
    chain = ts.LinearChain(emission * scale, (transition * scale)[:, None])
    (text,) = estimated(chain, "entropy", k=4, replicates=6, generator=generator).warnings
    assert "wide in 1 of 2 instances" in text


@pytest.mark.parametrize("name", ONE_EACH)
def test_checks_of_every_structure(name, generator):
    """There is no warning for a sketch that keeps all states, and no error for one that keeps a single state."""
    model = large(name, batch=(2,)).model()
    assert ts.check_sketch(model.sketch(model.n_states), generator) == []
    assert isinstance(ts.check_sketch(model.sketch(1, proposal=ts.Uniform()), generator), list)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ts.SketchWarning)
        assert isinstance(ts.estimate(model, "log_partition", k=2, generator=generator).warnings, list)


def test_a_sketch_is_checked(generator):
    chain = sticky(600, generator)
    low = chain.sketch(selection=ts.TopK(50), proposal=ts.Local())
    assert any("nats more" in text for text in ts.check_sketch(low, generator))
    high = chain.restrict(ts.Subset(low.states, low.log_weight + 50))
    assert any("nats less" in text for text in ts.check_sketch(high, generator))
    assert (
        ts.check_sketch(chain.sketch(100, proposal=ts.Lookahead(neighbours=32), generator=generator), generator) == []
    )


def test_one_state_of_large_weight_is_noticed(generator):
    chain = ts.LinearChain(torch.zeros(2, 100), torch.zeros(100, 100))
    weight = torch.zeros(2, 20)
    weight[0, 0] = 8.0
    small = chain.restrict(ts.Subset(torch.arange(20).expand(2, 20), weight))
    assert any("kept by chance" in text for text in ts.check_sketch(small, generator))


@pytest.mark.parametrize("what", WHAT)
def test_an_empty_batch(what, generator):
    chain = ts.LinearChain(torch.randn(0, 5, 4), torch.randn(4, 4))
    result = ts.estimate(chain, what, k=2, replicates=3, generator=generator)
    assert result.value.shape == exactly(chain, what).shape
    assert result.warnings == ts.check_sketch(chain.sketch(2, generator=generator), generator) == []


def attracting(strength):
    """A grid whose messages have two fixed points if they attract each other: all in one state, or all in the other."""
    unary, pairs = torch.tensor([0.05, 0.0]).expand(16, 2), strength * torch.eye(2)
    return ts.PairwiseGraph(unary, ts.grid_edges(4, 4), pairs, method="propagation")


def test_other_fixed_points_are_noticed(generator):
    assert any("another fixed point" in text for text in attracting(2.0).diagnostics())
    assert "another fixed point" in warned(attracting(2.0), k=2, replicates=4, generator=generator)
    assert attracting(0.2).diagnostics() == []


def test_messages_that_do_not_converge_are_noticed():
    graph = ts.PairwiseGraph(
        torch.randn(9, 3), ts.grid_edges(3, 3), 3 * torch.randn(3, 3), method="propagation", iterations=2
    )
    assert any("did not converge in 2 iterations" in text for text in graph.diagnostics())
