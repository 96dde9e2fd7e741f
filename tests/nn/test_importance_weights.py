"""Importance weights, against the probability of the words by every path of states."""

import itertools
import math

import pytest
import torch
from nn_cases import FULL, LENGTHS, WORDS, Enumerated, Heard, close, mean_is, vae

from tailsum import LocalGlobal, TopK
from tailsum.nn.estimator import Estimator


def test_importance_weights_are_those_of_their_paths():
    """So that, weighted by the chance of each path, they add up to the probability of the words."""
    model, lengths = vae(3, sure=0.3), torch.tensor([3, 2])
    heard = Heard(model.decoder)
    weighed = model.weigh(WORDS[:2], lengths, FULL, 3000)
    assert weighed.log_weights.shape == (3000, 2)
    for b, row in enumerate(lengths.tolist()):
        truth = Enumerated(model, WORDS[b, :row])
        place = truth.place(heard.sample.hard[:, b, :row])
        close(weighed.log_weights[:, b], (truth.log_joint - truth.log_q)[place], 1e-5)
        found = torch.full_like(truth.log_q, math.nan).scatter(0, place, weighed.log_weights[:, b])
        assert not found.isnan().any()
        close((found + truth.log_q).logsumexp(0), truth.log_p, 1e-5)
        counts = place.bincount(minlength=len(found)) / 3000
        q = truth.log_q.exp()
        assert ((counts - q).abs() < 5 * (q * (1 - q) / 3000).sqrt()).all()
        expected = [x[place].mean() for x in (truth.words, truth.states, -truth.log_q)]
        close(torch.stack([x[b] for x in weighed.bound]), torch.stack(expected), 1e-5)
    assert not weighed.log_weights.requires_grad


def test_importance_weights_in_double_precision_are_as_precise():
    """A rounding to single precision in between would show."""
    model = vae(3)
    heard = Heard(model.decoder)
    weighed = model.weigh(WORDS[:1], LENGTHS[:1], FULL, 20)
    truth = Enumerated(model, WORDS[0])
    close(weighed.log_weights[:, 0], (truth.log_joint - truth.log_q)[truth.place(heard.sample.hard[:, 0])], 1e-11)


SKETCHED = [Estimator("rdp", 2), Estimator("rdp", 3), Estimator("rdp", 4, drawn=1), Estimator("tailsum", 2, 2)]


@pytest.mark.parametrize(("drawn", "expected"), [(None, 3), (1, 1), (4, 4), (5, 5)])
def test_so_many_states_are_drawn_and_the_others_are_the_best(drawn, expected):
    model = vae(12)
    chain = model.posterior(WORDS[:1], LENGTHS[:1])
    best = chain.sketch(proposal=LocalGlobal(), selection=TopK(5)).states[0]
    sketch = Estimator("rdp", 5, drawn=drawn).sketch(chain)
    top = 5 - expected
    assert torch.equal(sketch.states[0, :, :top], best[:, :top])
    assert (sketch.log_weight[0, :, :top] == 0).all()
    assert not (sketch.states[0, :, top:, None] == best[:, None, :top]).any()
    assert (sketch.log_weight[0, :, top:] != 0).all()


@pytest.mark.parametrize("estimator", SKETCHED, ids=str)
@pytest.mark.parametrize("row", [1, 3])
def test_importance_weights_from_a_sketch_have_the_probability_of_the_words_as_mean(estimator, row):
    model, count = vae(5, sure=0.3), 20_000
    truth = Enumerated(model, WORDS[0, :row])
    weighed = model.weigh(WORDS[0].expand(count, -1), torch.full((count,), row), estimator, 1)
    mean_is((weighed.log_weights[0] - truth.log_p).exp(), 1.0)


def test_importance_weights_from_the_best_states_miss_the_others():
    model, estimator = vae(5, sure=0.3), Estimator("topk", 3)
    truth = Enumerated(model, WORDS[0])
    small = estimator.sketch(model.posterior(WORDS[:1], LENGTHS[:1]))
    kept = [row.tolist() for row in small.states[0]]
    reached = torch.tensor(list(itertools.product(*kept)))
    part = (truth.log_joint[truth.place(reached)].logsumexp(0) - truth.log_p).exp()
    assert part < 0.95
    weighed = model.weigh(WORDS[0].expand(5000, -1), torch.full((5000,), 3), estimator, 1)
    mean_is((weighed.log_weights[0] - truth.log_p).exp(), part)
