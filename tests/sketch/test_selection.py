"""Selections: right shapes, no repeats, inclusion probabilities that are optimal, and unbiased sums."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tailsum as ts
from harness.statistics import z_score
from tailsum.sketch.selection import Landmarks, inclusion_probability

SELECTIONS = {
    "optimal 1": ts.Optimal(1),
    "optimal 3": ts.Optimal(3),
    "optimal 6": ts.Optimal(6),
    "landmarks 3": Landmarks(3),
    "top and sample 0+1": ts.TopAndSample(0, 1),
    "top and sample 2+1": ts.TopAndSample(2, 1),
    "top and sample 1+5": ts.TopAndSample(1, 5),
    "top and sample 5+3": ts.TopAndSample(5, 3),
}


def weights(subset, n):
    """The total weight each state got."""
    empty = torch.zeros(*subset.index.shape[:-1], n, dtype=torch.float64)
    return empty.scatter_add(-1, subset.index, subset.log_weight.double().exp())


@pytest.mark.parametrize("spread", [0.0, 0.5, 1.5])
@pytest.mark.parametrize("name", SELECTIONS)
def test_every_state_has_expected_weight_one(name, spread, generator):
    log_q = torch.randn(7, generator=generator, dtype=torch.float64) * spread
    subset = SELECTIONS[name](log_q.expand(100_000, 7), generator)
    assert z_score(weights(subset, 7), 1.0) < 4.5


@pytest.mark.parametrize("factor", [0.97, 1.03])
def test_the_test_above_sees_a_wrong_weight(factor, generator):
    log_q = torch.randn(7, generator=generator, dtype=torch.float64)
    subset = ts.Optimal(3)(log_q.expand(100_000, 7), generator)
    kept_for_certain = subset.log_weight == 0
    broken = dataclasses.replace(subset, log_weight=subset.log_weight + math.log(factor) * ~kept_for_certain)
    assert z_score(weights(broken, 7), 1.0) > 6


def scores(n):
    return st.lists(st.one_of(st.floats(-500, 500), st.just(-math.inf)), min_size=n, max_size=n)


@given(st.integers(1, 12).flatmap(lambda n: st.tuples(scores(n), st.integers(1, 13))), st.integers(0, 1000))
def test_optimal(drawn, seed):
    log_q, k = torch.tensor(drawn[0], dtype=torch.float64), drawn[1]
    possible = int((log_q > -math.inf).sum())
    p = inclusion_probability(log_q, k)
    assert p.sum().item() == pytest.approx(min(k, possible), abs=1e-8)
    assert ((p >= 0) & (p <= 1)).all()
    free = (p < 1) & (p > 0) & (log_q > log_q.max() - 600)
    if free.any():  # where not certain, in proportion to q
        torch.testing.assert_close(p[free].log() - p[free].log()[0], log_q[free] - log_q[free][0])
        assert (log_q[p == 1] >= log_q[free].max() - 1e-9).all()
    for select in (ts.Optimal(k), Landmarks(k)):
        subset = select(log_q, torch.Generator().manual_seed(seed))
        filled = subset.log_weight > -math.inf
        if k < len(log_q):
            assert subset.index.shape == (k,)
            assert filled.sum() == min(k, possible)
            torch.testing.assert_close(subset.log_weight[filled], -p[subset.index[filled]].log())
        else:
            assert torch.equal(subset.index, torch.arange(len(log_q)))
            assert subset.log_weight.eq(0).all()
        assert len(subset.index[filled].unique()) == filled.sum()


def test_optimal_spreads_the_kept_states_over_the_magnitudes(generator):
    """Sums of a function of the magnitude scatter less than under independent draws: what the ordering is for."""
    log_q = torch.randn(1000, generator=generator, dtype=torch.float64) * 2
    q = log_q.softmax(-1)
    truth = (q * log_q).sum()

    def spread(subset):
        return ((q * log_q)[subset.index] * subset.log_weight.exp()).sum(-1).sub(truth).square().mean().sqrt()

    rows = log_q.expand(2000, 1000)
    ours, independent = spread(ts.Optimal(50)(rows, generator)), spread(ts.TopAndSample(0, 50)(rows, generator))
    assert ours < independent / 5


def test_top_k_and_top_and_sample_keep_the_top(generator):
    log_q = torch.randn(3, 5, 20, generator=generator)
    top = ts.TopK(4)(log_q).index
    assert torch.equal(top, log_q.topk(4).indices)
    both = ts.TopAndSample(4, 3)(log_q, generator)
    assert torch.equal(both.index[..., :4], top)
    assert both.log_weight[..., :4].eq(0).all()
    assert not (both.index[..., 4:, None] == top[..., None, :]).any()  # never drawn again
    rest = log_q.double().scatter(-1, top, -math.inf).log_softmax(-1)
    expected = -rest.gather(-1, both.index[..., 4:]) - math.log(3)
    torch.testing.assert_close(both.log_weight[..., 4:].double(), expected, rtol=1e-5, atol=1e-5)
    assert ts.TopK(40)(log_q).index.shape == (3, 5, 20)


def test_nothing_left_to_draw_gives_empty_places(generator):
    subset = ts.TopAndSample(3, 2)(torch.zeros(3), generator)
    assert subset.index.shape == (5,)
    assert subset.log_weight.tolist() == [0, 0, 0, -math.inf, -math.inf]
    subset = ts.TopAndSample(1, 4)(torch.tensor([1.0, -math.inf, 0.5]), generator)
    assert (subset.index[1:] == 2).all()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ts.TopK(0), "k must be a whole number of at least 1: got 0"),
        (lambda: ts.Optimal(-2), "k must be a whole number of at least 1: got -2"),
        (lambda: ts.TopAndSample(-1, 1), "top must be a whole number of at least 0: got -1"),
        (lambda: ts.TopAndSample(3, 0), "sampled must be a whole number of at least 1: got 0"),
    ],
)
def test_bad_settings(make, words):
    with pytest.raises(ValueError, match=words):
        make()
