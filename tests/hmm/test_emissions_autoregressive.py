"""Linear recursions: densities, what lies before a sequence, least squares, digits, recovery and errors."""

import math

import numpy as np
import pytest
import torch
from torch.distributions import MultivariateNormal

from harness.emissions import D, N
from tailsum.hmm import Autoregressive, Gaussian, HiddenMarkov, Independent, Mixture

KINDS = ["diagonal", "full", "tied", "spherical"]
pytestmark = pytest.mark.usefixtures("one_thread")


def matrices(emission):
    found, d = emission.covariances.detach(), emission.d
    if emission.kind == "spherical":
        return found[:, None, None] * torch.eye(d)
    return torch.diag_embed(found) if emission.kind == "diagonal" else found.expand(emission.n_states, d, d)


def random_emission(kind="full", lags=2, **more):
    root = torch.randn(N, D, D) * 0.3 + torch.eye(D)
    full = root @ root.mT
    diagonal = full.diagonal(dim1=-2, dim2=-1)
    given = {"full": full, "tied": full[0], "diagonal": diagonal, "spherical": diagonal[:, 0]}[kind]
    tables, offsets = 0.3 * torch.randn(N, lags, D, D), torch.randn(N, D)
    return Autoregressive(D, lags, kind, coefficients=tables, intercepts=offsets, covariances=given, **more).of(N)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lags", [1, 2])
def test_densities(kind, lags):
    emission, data = random_emission(kind, lags), torch.randn(3, 7, D)
    emission.centre = torch.randn(D)  # of no effect
    density = emission(data)
    assert density[:, :lags].eq(0).all()
    for t in range(lags, 7):
        mean = emission.intercepts + sum(
            torch.einsum("nde,be->bnd", emission.coefficients[:, lag], data[:, t - lag - 1]) for lag in range(lags)
        )
        expected = MultivariateNormal(mean, matrices(emission)).log_prob(data[:, t, None])
        torch.testing.assert_close(density[:, t], expected)


def test_what_follows_a_missing_vector_is_not_counted():
    emission, data = random_emission(), torch.randn(9, D)
    data[4, 1] = torch.nan
    kept = emission(data).ne(0).all(-1)
    assert kept.nonzero()[:, 0].tolist() == [2, 3, 7, 8]
    counts = emission.statistics(data, torch.ones(9, N))[0][:, -1, -1]
    assert counts.tolist() == [4.0] * N


def test_sequences_shorter_than_the_lags():
    model = HiddenMarkov(N, random_emission(lags=3))
    data = torch.randn(2, 3, D)
    torch.testing.assert_close(model.log_likelihood(data, [3, 1]), torch.zeros(2))
    before = {name: x.clone() for name, x in model.emission.state_dict().items()}
    model.maximise(model.counts(data, [3, 1]))
    for name, x in model.emission.state_dict().items():
        torch.testing.assert_close(x, before[name])


def test_padding_has_no_effect():
    model = HiddenMarkov(N, random_emission())
    data = torch.randn(2, 8, D)
    alone = [model.counts(data[:1]), model.counts(data[1:, :5])]
    for x, y in zip(model.counts(data, [8, 5]).tensors(), (alone[0] + alone[1]).tensors(), strict=True):
        torch.testing.assert_close(x, y)


@pytest.mark.parametrize("ridge", [0.0, 2.0])
def test_weighted_least_squares(ridge):
    emission = random_emission(ridge=ridge, covariance_prior=0.0).double()
    data, weight = torch.randn(60, D).double() + 5.0, torch.rand(60, N).double()
    emission.maximise(emission.statistics(data, weight))
    past = np.concatenate((data[1:-1], data[:-2], np.ones((58, 1))), 1)
    penalty = np.diag([ridge] * 4 + [0.0])
    for n in range(N):
        w = weight[2:, n].numpy()[:, None]
        found = np.linalg.solve(past.T @ (w * past) + penalty, past.T @ (w * data[2:].numpy()))
        np.testing.assert_allclose(emission.coefficients[n, 0].detach(), found[:2].T, atol=1e-9)
        np.testing.assert_allclose(emission.coefficients[n, 1].detach(), found[2:4].T, atol=1e-9)
        np.testing.assert_allclose(emission.intercepts[n].detach(), found[4], atol=1e-9)
        error = data[2:].numpy() - past @ found
        matrix = ((w * error).T @ error + found.T @ penalty @ found) / w.sum()
        np.testing.assert_allclose(emission.covariances[n].detach(), matrix, atol=1e-9)


def test_data_that_determine_no_recursion():
    """A constant sequence: any coefficients fit, and the shortest are taken."""
    emission = Autoregressive(D, 2, ridge=0.0).of(N)
    data = torch.full((20, D), 3.0)
    emission.maximise(emission.statistics(data, torch.rand(20, N)))
    assert emission(data).isfinite().all()
    assert all(x.isfinite().all() for x in emission.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_offsets_cost_no_digits(kind):
    truth = two_regimes()
    high = truth.sample(10, 100, torch.Generator().manual_seed(0)).data + 1e4
    low = high.double() - 1e4
    one, other = (HiddenMarkov(2, Autoregressive(D, covariance=kind)) for _ in range(2))
    one = one.double()
    one.start(one.sequences(low), torch.Generator().manual_seed(0))
    other.load_state_dict(one.state_dict())
    other.emission.centre += 1e4
    table = one.emission.coefficients.detach().sum(1)
    other.emission.intercepts.data = (one.emission.intercepts + 1e4 - 1e4 * table.sum(-1)).detach().float()
    for model, data in ((one, low), (other, high)):
        model.fit(data, steps=8, start="keep", tolerance=-math.inf, progress=False)
    a, b = one.emission, other.emission
    torch.testing.assert_close(b.coefficients.double(), a.coefficients, rtol=0, atol=0.01)
    torch.testing.assert_close(matrices(b).double(), matrices(a).double(), rtol=0.01, atol=0.01)


def two_regimes(kind="diagonal"):
    """One state turns, the other one decays, to a centre elsewhere."""
    turn = 0.95 * torch.tensor([[math.cos(0.7), -math.sin(0.7)], [math.sin(0.7), math.cos(0.7)]])
    tables = torch.stack((turn, 0.3 * torch.eye(2)))[:, None]
    spread = {"diagonal": torch.tensor([[0.2, 0.3], [0.5, 0.1]]), "full": torch.tensor([[0.4, 0.2], [0.2, 0.3]])}[kind]
    spread = spread if kind == "diagonal" else torch.stack((spread, 0.5 * torch.eye(2)))
    offsets = torch.tensor([[0.0, 0.0], [1.0, -1.0]])
    emission = Autoregressive(2, 1, kind, coefficients=tables, intercepts=offsets, covariances=spread)
    return HiddenMarkov(2, emission, transition=torch.eye(2) * 3.5)


@pytest.mark.parametrize("kind", ["diagonal", "full"])
def test_recovers_the_model_that_data_came_from(kind):
    truth = two_regimes(kind)
    drawn = truth.sample(20, 200, torch.Generator().manual_seed(1))
    model = HiddenMarkov(2, Autoregressive(2, 1, kind))
    model.fit(drawn.data, steps=30, progress=False, generator=torch.Generator().manual_seed(0))
    order = model.emission.coefficients[:, 0, 0, 1].abs().argsort(descending=True)  # the one that turns is first
    own, true = model.emission, truth.emission
    torch.testing.assert_close(own.coefficients[order], true.coefficients, rtol=0, atol=0.06)
    torch.testing.assert_close(own.intercepts[order], true.intercepts, rtol=0, atol=0.08)
    torch.testing.assert_close(own.covariances[order], true.covariances, rtol=0.15, atol=0.05)
    decoded = order.argsort()[model.decode(drawn.data[:, :200].flatten(0, -3))]
    assert (decoded == drawn.states.view_as(decoded)).float().mean() > 0.9


def test_draws_follow_from_the_past():
    emission = random_emission(covariance_prior=0.0, lags=2)
    emission.spread.factors.data = -20.0 * torch.eye(D).expand(N, D, D)  # next to no noise
    states = torch.tensor([0, 2, 1])
    past = torch.randn(3, 2, D)
    expected = emission.intercepts[states] + torch.einsum("ride,rie->rd", emission.coefficients[states], past.flip(1))
    torch.testing.assert_close(emission.draw(states, None, past), expected.detach())
    emission.centre = torch.tensor([1.0, -2.0])
    whole = emission.draw(states, None, torch.stack((emission.centre.expand(3, -1), past[:, 1]), 1))
    torch.testing.assert_close(emission.draw(states, None, past[:, 1:]), whole)
    lost = past.clone()
    lost[:, 0] = torch.nan
    torch.testing.assert_close(emission.draw(states, None, lost), whole)
    one = emission.draw(torch.tensor(2), None, past[1])
    torch.testing.assert_close(one, emission.draw(states, None, past)[1])


def test_parts_of_several_lags():
    emission = Independent(random_emission(lags=2), Gaussian(1), random_emission(lags=1)).of(N)
    assert emission.lags == 2
    states, past = torch.tensor([0, 2]), torch.randn(2, 2, 2 * D + 1)
    drawn = emission.draw(states, torch.Generator().manual_seed(0), past)
    again = torch.Generator().manual_seed(0)
    first, _, last = emission.parts
    torch.testing.assert_close(drawn[:, :D], first.draw(states, again, past[..., :D]))
    emission.parts[1].draw(states, again)
    torch.testing.assert_close(drawn[:, -D:], last.draw(states, again, past[:, 1:, -D:]))
    assert emission.draw(states, None, past[:, :1]).shape == (2, 2 * D + 1)
    data = HiddenMarkov(N, emission).sample(2, 5).data
    assert data.shape[-2:] == (5, 2 * D + 1)
    assert Mixture(2, Autoregressive(D, 3)).lags == 3


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Autoregressive(2, 0), "lags must be a whole number of at least 1: got 0"),
        (lambda: Autoregressive(2, 1, "round"), "covariance must be"),
        (lambda: Autoregressive(2, ridge=-1.0), "ridge must be at least 0: got -1.0"),
        (lambda: Autoregressive(2, floor=-1.0), "floor must be above 0: got -1.0"),
        (
            lambda: Autoregressive(2, coefficients=torch.zeros(3, 2, 2)).of(3),
            r"coefficients must be \[3, 1, 2, 2\]: got \[3, 2, 2\]",
        ),
        (lambda: Autoregressive(2, intercepts=torch.zeros(3)).of(3), r"intercepts must be \[3, 2\]: got \[3\]"),
        (lambda: Autoregressive(2).of(3).checked(torch.zeros(4, 3)), r"data must have 2 features, .* got \[4, 3\]"),
    ],
)
def test_errors(make, text):
    with pytest.raises(ValueError, match=text):
        make()
