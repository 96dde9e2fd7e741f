"""Counts and booleans: densities, missing values, priors, starts and errors."""

import pytest
import torch
from torch.distributions import Bernoulli as TorchBernoulli
from torch.distributions import Poisson as TorchPoisson

from tailsum.hmm import Bernoulli, HiddenMarkov, Poisson

N = 3
pytestmark = pytest.mark.usefixtures("one_thread")


def with_missing(data):
    """Floating-point, whole and negative forms of the same data, and where they are missing."""
    lost = torch.rand(data.shape) < 0.3
    whole = data.long().masked_fill(lost, -1)
    return [data.float().masked_fill(lost, torch.nan), whole, whole.int(), whole.double()], lost


@pytest.mark.parametrize("d", [None, 2])
@pytest.mark.parametrize("kind", [Poisson, Bernoulli])
def test_densities(kind, d):
    shape = (4, 6) if d is None else (4, 6, d)
    emission = kind(d).of(N)
    truth = TorchPoisson(emission.rates) if kind is Poisson else TorchBernoulli(emission.probabilities)
    data = torch.randint(9 if kind is Poisson else 2, shape)
    forms, lost = with_missing(data)
    each = truth.log_prob(data[..., None].float() if d is None else data[..., None, :].float())
    each = each.masked_fill(lost[..., None] if d is None else lost[..., None, :], 0.0)
    for x in forms:
        torch.testing.assert_close(emission(emission.checked(x)), each if d is None else each.sum(-1))
        torch.testing.assert_close(emission(x), each if d is None else each.sum(-1))
        torch.testing.assert_close(emission.missing(x), lost if d is None else lost.all(-1))


@pytest.mark.parametrize("kind", [Poisson, Bernoulli])
def test_missing_features_are_left_out(kind):
    emission, data = kind(2).of(N), torch.randint(2, (50, 2))
    (x, *_), lost = with_missing(data)
    weight = torch.rand(50, N)
    emission.maximise(emission.statistics(x, weight))
    means = (weight.mT @ (data * ~lost).float()) / (weight.mT @ (~lost).float())
    torch.testing.assert_close(emission.rates if kind is Poisson else emission.probabilities, means)


def test_priors():
    weight = torch.ones(10, 1)
    poisson = Poisson(rate_prior=6.0, rate_weight=2.0).of(1)
    poisson.maximise(poisson.statistics(torch.full((10,), 3), weight))
    assert poisson.rates.item() == pytest.approx(36 / 12)
    bernoulli = Bernoulli(prior=2.0).of(1)
    bernoulli.maximise(bernoulli.statistics(torch.ones(10).bool(), weight))
    assert bernoulli.probabilities.item() == pytest.approx(11 / 12)


@pytest.mark.parametrize("kind", [Poisson, Bernoulli])
def test_zeros_alone_stay_finite(kind):
    emission = kind().of(N)
    emission.maximise(emission.statistics(torch.zeros(9), torch.rand(9, N)))
    density = emission(torch.tensor([0, 1]))
    assert density.isfinite().all()
    torch.testing.assert_close(density[0], torch.zeros(N), rtol=0, atol=1e-6)


def test_recovers_rates():
    stay = torch.eye(N) * 3.0
    truth = HiddenMarkov(N, Poisson(rates=torch.tensor([1.0, 6.0, 20.0])), transition=stay)
    data = truth.sample(30, 80, torch.Generator().manual_seed(0)).data
    model = HiddenMarkov(N, Poisson()).fit(data, steps=30, progress=False, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(model.emission.rates.sort().values, truth.emission.rates, rtol=0.08, atol=0.1)


def test_recovers_probabilities():
    chances = torch.tensor([[0.1, 0.8, 0.9, 0.2], [0.9, 0.2, 0.1, 0.7], [0.1, 0.1, 0.9, 0.9]])
    truth = HiddenMarkov(N, Bernoulli(4, logits=chances.logit()), transition=torch.eye(N) * 3.0)
    data = truth.sample(40, 80, torch.Generator().manual_seed(0)).data
    assert data.dtype == torch.bool
    model = HiddenMarkov(N, Bernoulli(4)).fit(
        data, steps=60, restarts=3, progress=False, generator=torch.Generator().manual_seed(0)
    )
    found = model.emission.probabilities
    nearest = torch.cdist(found, chances).argmin(0)
    torch.testing.assert_close(found[nearest], chances, rtol=0, atol=0.08)


def test_one_observation_at_a_time():
    model = HiddenMarkov(N, Poisson())
    data = torch.tensor([3, 0, -1, 7])
    online = model.online()
    for x in data:
        online.update(x)
    torch.testing.assert_close(online.log_likelihood.float(), model.log_likelihood(data)[0])


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Poisson(0), "d must be a whole number of at least 1: got 0"),
        (lambda: Poisson(rate_prior=-1.0), "rate_prior must be at least 0: got -1.0"),
        (lambda: Poisson(rates=torch.zeros(3)).of(3), "rates must be above 0: got 0.0"),
        (lambda: Poisson(rates=torch.ones(2)).of(3), r"rates must be \[3\]: got \[2\]"),
        (lambda: Poisson().of(3).checked(torch.tensor([0.5])), "data must be whole numbers"),
        (lambda: Poisson().of(3).checked(torch.tensor([torch.inf])), "data must be whole numbers"),
        (
            lambda: Poisson(2).of(3).checked(torch.ones(4, 3)),
            r"data must have 2 numbers in its last dimension: got \[4, 3\]",
        ),
        (lambda: Bernoulli(prior=0.5), "prior must be at least 1: got 0.5"),
        (lambda: Bernoulli().of(3).checked(torch.tensor([0, 2])), "data must be booleans, or zeros and ones: got 2"),
        (lambda: Bernoulli(logits=torch.ones(2, 2)).of(2), r"logits must be \[2\]: got \[2, 2\]"),
    ],
)
def test_errors(make, text):
    with pytest.raises(ValueError, match=text):
        make()
