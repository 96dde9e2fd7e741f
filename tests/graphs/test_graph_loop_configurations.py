"""Graphs with loops: best configurations, samples and divergences."""

import math

import numpy as np
import pytest
import torch

from harness.loopy import ALL, Enumerated, Loopy, LoopyCase, close, joint_beliefs


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", ALL)
def test_argmax_equals_enumeration_for_weak_couplings(name, seed):
    case = LoopyCase(name, 0.2, seed=seed, n=2 if name in ("grid", "apart") else 3)
    (instance,) = case.instances()
    assert tuple(case.model().argmax().tolist()) == Enumerated(*instance).best


@pytest.mark.filterwarnings("ignore::tailsum.ConvergenceWarning")
@pytest.mark.parametrize(
    "name", ["triangle", pytest.param("complete", marks=pytest.mark.slow), "ring of triples", "four at once"]
)
def test_argmax_never_scores_above_the_best(name):
    for seed in range(12):
        case = LoopyCase(name, 1.5, forbidden=0.1 * (seed % 2), seed=seed, n=2)
        (instance,) = case.instances()
        model, truth = case.model(iterations=50), Enumerated(*instance)
        found = model.argmax()
        score = model.score(found)
        assert score <= truth.scores.max() + 1e-9
        if found[0] >= 0:
            close(score, truth.score(found.tolist(), *instance))


@pytest.mark.parametrize("name", ["square", "two in common"])
def test_scores_of_all_configurations_equal_explicit_sums(name):
    case = LoopyCase(name, 1.0, forbidden=0.1, seed=1)
    (instance,) = case.instances()
    truth, model = Enumerated(*instance), case.model()
    close(model.score(torch.tensor(truth.all)), truth.scores)
    close(model.log_prob(torch.tensor(truth.all)), truth.scores - Loopy(*instance).log_partition)


@pytest.mark.filterwarnings("ignore::tailsum.ConvergenceWarning")
@pytest.mark.parametrize("name", ["grid", "complete", "ring of triples", "triples and pairs"])
def test_samples_never_have_a_forbidden_state(name, generator):
    case = LoopyCase(name, 1.0, batch=(2,), seed=1)
    case.unary[:, ::2, 0] = case.unary[0, 1, 1:] = -math.inf
    model = case.model(iterations=50)
    samples = model.sample((3000,), generator=generator)
    assert samples.shape == (3000, 2, case.n_nodes)
    scores = torch.tensor(case.unary).expand(3000, -1, -1, -1).gather(-1, samples[..., None])
    assert (scores > -math.inf).all()
    assert samples[:, 0, 1].eq(0).all()
    assert model.score(samples).isfinite().all()


@pytest.mark.parametrize("name", ALL)
def test_frequencies_of_samples_are_close_to_the_beliefs(name, generator):
    model = LoopyCase(name, 0.2, batch=(2,), seed=2).model()
    samples = model.sample((20_000,), generator=generator)
    frequency = torch.nn.functional.one_hot(samples, 3).double().mean(0)
    close(frequency, model.marginals(), rtol=0, atol=0.02)


@pytest.mark.parametrize("name", ["triangle", "two in common"])
def test_frequencies_of_joint_states_are_close_to_the_beliefs_of_factors(name, generator):
    case = LoopyCase(name, 0.2, seed=2)
    model = case.model()
    samples = model.sample((20_000,), generator=generator)
    for scope, found in zip(case.scopes, joint_beliefs(model, case), strict=True):
        place = torch.zeros(20_000, dtype=torch.long)
        for v in scope:
            place = 3 * place + samples[:, v]
        frequency = torch.bincount(place, minlength=3 ** len(scope)).double() / 20_000
        close(frequency, found.flatten(), rtol=0, atol=0.02)


# Divergences.


@pytest.mark.parametrize("forbidden", [0.0, 0.15])
@pytest.mark.parametrize("name", ["triangle", "grid", "triples and pairs"])
def test_the_divergence_from_itself_is_zero(name, forbidden):
    model = LoopyCase(name, 0.6, forbidden, batch=(2,)).model(damping=0.2)
    close(model.kl(model), np.zeros(2), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ALL)
def test_divergences_equal_the_reference(name):
    p, q = LoopyCase(name, 0.5, batch=(2,), seed=1), LoopyCase(name, 0.5, batch=(2,), seed=2)
    cross = []
    for mine, theirs, instance in zip(p.loopy(), q.loopy(), q.instances(), strict=True):
        cross.append(theirs.log_partition - mine.expected(*instance))
    entropy = [t.entropy for t in p.loopy()]
    close(p.model().cross_entropy(q.model()), cross)
    close(p.model().kl(q.model()), np.array(cross) - entropy)


def test_the_divergence_is_infinite_where_the_other_forbids_what_has_a_chance():
    case = LoopyCase("triangle", 0.5)
    model = case.model()
    case.tables[1][0, 2] = -math.inf
    assert model.kl(case.model()) == math.inf
    assert case.model().kl(model).isfinite()
