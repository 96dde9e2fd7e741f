"""Fits, likelihoods, state probabilities and paths of hmmlearn, from the same start, on sequences of several lengths."""

import numpy as np
import pytest
import torch

from harness.emissions import D, N, agree, begun, like_hmmlearn
from tailsum.hmm import Categorical, Gaussian, Mixture, Poisson

hmm = pytest.importorskip("hmmlearn.hmm")
pytestmark = pytest.mark.usefixtures("one_thread")

LENGTHS = [40, 7, 25, 1, 60]
KINDS = {"diagonal": "diag", "full": "full", "tied": "tied", "spherical": "spherical"}
PRIORS = {"mean_prior": 0.8, "mean_weight": 1.3, "covariance_prior": 0.2, "covariance_weight": 5.0}
OWN = {"means_prior": 0.8, "means_weight": 1.3, "covars_prior": 0.2, "covars_weight": 5.0}
STEPS = {"init_params": "", "tol": -np.inf}


@pytest.fixture(autouse=True)
def _double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def random():
    return np.random.default_rng(3)


def vectors(random):
    means, states = random.normal(size=(N, D)) * 2.0, random.integers(N, size=sum(LENGTHS))
    return means[states] + random.normal(size=(len(states), D)) @ np.array([[1.0, 0.5], [0.0, 0.6]])


def covariances(random, kind):
    root = random.normal(size=(N, D, D)) * 0.4 + np.eye(D)
    full = root @ root.transpose(0, 2, 1)
    diagonal = full[:, range(D), range(D)]
    return {"full": full, "tied": full[0], "diagonal": diagonal, "spherical": diagonal[:, 0]}[kind]


@pytest.mark.parametrize("steps", [1, 12])
@pytest.mark.parametrize(("priors", "own"), [({}, {}), (PRIORS, OWN)], ids=["", "priors"])
@pytest.mark.parametrize("kind", KINDS)
def test_gaussian(kind, priors, own, steps, random):
    x = vectors(random)
    theirs = begun(hmm.GaussianHMM(N, KINDS[kind], n_iter=steps, **STEPS, **own))
    theirs.means_, theirs.covars_ = random.normal(size=(N, D)), covariances(random, kind)
    given = {"means": torch.tensor(theirs.means_), "covariances": torch.tensor(covariances_of(theirs, kind))}
    ours = like_hmmlearn(theirs, Gaussian(D, kind, **given, **priors))
    agree(ours, theirs, x, LENGTHS)
    theirs.fit(x, LENGTHS)
    ours.fit(x, LENGTHS, steps=steps, start="keep", tolerance=-np.inf, progress=False)
    agree(ours, theirs, x, LENGTHS)
    np.testing.assert_allclose(ours.emission.means.detach(), theirs.means_, rtol=0, atol=1e-9)
    np.testing.assert_allclose(ours.emission.covariances.detach(), covariances_of(theirs, kind), rtol=0, atol=1e-9)
    own = (hmm.GaussianHMM(N, KINDS[kind]), theirs)[1]._get_n_fit_scalars_per_param()
    assert ours.n_free == sum(own.values())


def covariances_of(theirs, kind):
    """In the shape of ours; hmmlearn repeats a spherical one for every feature."""
    found = theirs._covars_
    return found[:, 0] if kind == "spherical" and found.ndim == 2 else found


@pytest.mark.parametrize("d", [None, 2])
def test_poisson(d, random):
    x = random.poisson(np.array([1.0, 5.0, 11.0])[random.integers(N, size=(sum(LENGTHS), d or 1))])
    theirs = begun(hmm.PoissonHMM(N, n_iter=10, **STEPS))
    theirs.lambdas_ = random.uniform(1.0, 9.0, size=(N, d or 1))
    rates = torch.tensor(theirs.lambdas_ if d else theirs.lambdas_[:, 0])
    ours = like_hmmlearn(theirs, Poisson(d, rates=rates))
    theirs.fit(x, LENGTHS)
    ours.fit(x if d else x[:, 0], LENGTHS, steps=10, start="keep", tolerance=-np.inf, progress=False)
    agree(ours, theirs, x, LENGTHS)
    np.testing.assert_allclose(ours.emission.rates.detach().reshape(N, -1), theirs.lambdas_, rtol=0, atol=1e-9)
    own = theirs._get_n_fit_scalars_per_param()
    assert ours.n_free == sum(own.values())


def test_poisson_prior_with_one_state(random):
    """hmmlearn weighs its prior by the observations of all states: with one state, that is the same."""
    x = random.poisson(4.0, size=(50, 2))
    theirs = begun(hmm.PoissonHMM(1, n_iter=1, lambdas_prior=3.0, lambdas_weight=2.0, **STEPS), n=1)
    theirs.lambdas_ = np.ones((1, 2))
    theirs.fit(x)
    ours = like_hmmlearn(theirs, Poisson(2, rate_prior=3.0, rate_weight=2.0))
    ours.fit(x, steps=1, start="keep", progress=False)
    np.testing.assert_allclose(ours.emission.rates.detach(), theirs.lambdas_, rtol=0, atol=1e-9)


@pytest.mark.parametrize("prior", [1.0, 1.6])
def test_categorical(prior, random):
    x = random.integers(4, size=(sum(LENGTHS), 1))
    theirs = begun(hmm.CategoricalHMM(N, n_iter=10, emissionprob_prior=prior, n_features=4, **STEPS))
    theirs.emissionprob_ = random.dirichlet(np.ones(4), N)
    ours = like_hmmlearn(theirs, Categorical(4, logits=torch.tensor(np.log(theirs.emissionprob_)), prior=prior))
    theirs.fit(x, LENGTHS)
    ours.fit(x[:, 0], LENGTHS, steps=10, start="keep", tolerance=-np.inf, progress=False)
    agree(ours, theirs, x, LENGTHS)
    np.testing.assert_allclose(ours.emission.logits.detach().softmax(-1), theirs.emissionprob_, rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", ["diagonal", "full", "spherical"])
def test_mixtures_of_gaussians(kind, random):
    """hmmlearn takes covariances about the old means: its weights and means are those of EM, its covariances are not."""
    k, x = 2, vectors(random)
    theirs = begun(hmm.GMMHMM(N, k, covariance_type=KINDS[kind], n_iter=1, **STEPS))
    theirs.weights_, theirs.means_ = random.dirichlet(np.ones(k), N), random.normal(size=(N, k, D))
    start = np.stack([covariances(random, kind) for _ in range(k)], 1)
    theirs.covars_ = start.copy()
    given = {"means": torch.tensor(theirs.means_).flatten(0, 1), "covariances": torch.tensor(start).flatten(0, 1)}
    emission = Mixture(k, Gaussian(D, kind, covariance_prior=0.0, **given), logits=torch.tensor(theirs.weights_).log())
    ours = like_hmmlearn(theirs, emission)
    agree(ours, theirs, x, LENGTHS)
    new = by_hand(x, ours.smooth(x, LENGTHS), theirs, kind)
    theirs.fit(x, LENGTHS)
    ours.fit(x, LENGTHS, steps=1, start="keep", progress=False)
    own = ours.emission
    np.testing.assert_allclose(own.logits.detach().softmax(-1), theirs.weights_, rtol=0, atol=1e-9)
    np.testing.assert_allclose(own.emission.means.detach().view(N, k, D), theirs.means_, rtol=0, atol=1e-9)
    np.testing.assert_allclose(own.emission.covariances.detach().view(new.shape), new, rtol=0, atol=1e-9)
    assert np.abs(new - theirs.covars_).max() > 1e-2


def by_hand(x, smoothed, theirs, kind):
    """The covariances of a step of EM: weighted by state and component, about the new means."""
    chances = smoothed[torch.arange(smoothed.shape[1]) < torch.tensor(LENGTHS)[:, None]].numpy()
    new = np.empty_like(theirs.covars_)
    for n in range(N):
        logs = theirs._compute_log_weighted_gaussian_densities(x, n)
        shares = np.exp(logs - logs.max(1, keepdims=True))
        shares *= chances[:, n, None] / shares.sum(1, keepdims=True)
        for c in range(theirs.n_mix):
            mean = shares[:, c] @ x / shares[:, c].sum()
            matrix = (shares[:, c, None] * (x - mean)).T @ (x - mean) / shares[:, c].sum()
            diagonal = np.diag(matrix)
            new[n, c] = {"full": matrix, "diagonal": diagonal, "spherical": diagonal.mean()}[kind]
    return new
