"""Mixtures and independent parts: densities, parts that are missing, starts and errors."""

import math

import pytest
import torch
from torch.distributions import Categorical as TorchCategorical
from torch.distributions import MixtureSameFamily, MultivariateNormal

from harness.emissions import D, N, joined, vectors
from tailsum.hmm import (
    Autoregressive,
    Bernoulli,
    Categorical,
    Emission,
    Gaussian,
    HiddenMarkov,
    Independent,
    Mixture,
    Poisson,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def test_mixture_densities():
    emission = Mixture(4, Gaussian(D, "full"), logits=torch.randn(N, 4)).of(N)
    normal = MultivariateNormal(emission.emission.means.view(N, 4, D), emission.emission.covariances.view(N, 4, D, D))
    truth = MixtureSameFamily(TorchCategorical(logits=emission.logits), normal)
    data = torch.randn(5, 6, D)
    torch.testing.assert_close(emission(data), truth.log_prob(data[..., None, :]))


def test_components_that_are_not_used():
    logits = torch.zeros(N, 2)
    logits[1, 0] = -math.inf
    model = HiddenMarkov(N, Mixture(2, Gaussian(D), logits=logits)).fit(vectors(5, 20), steps=5, progress=False)
    assert model.emission.logits.softmax(-1)[1].tolist() == [0.0, 1.0]
    assert model.emission.n_free == (N - 1) + 2 * N * D * 2
    assert all(x.isfinite().all() for x in model.emission.emission.parameters())


def test_impossible_observations():
    """Where no component can say a symbol, statistics hold no NaN."""
    logits = torch.zeros(2 * N, 3)
    logits[:2, 0] = -math.inf
    model = HiddenMarkov(N, Mixture(2, Categorical(3, logits=logits)))
    data = torch.randint(3, (4, 10))
    assert model.emission(data)[data == 0][:, 0].eq(-math.inf).all()
    before = model.score(data)
    model.maximise(model.counts(data))
    assert model.score(data) >= before
    model.log_likelihood(data).sum().backward()
    assert all(x.grad is None or not x.grad.isnan().any() for x in model.parameters())


def test_mixture_finds_the_components_of_a_state():
    """States with two centres each, told apart by how long they last."""
    centres = torch.tensor([[[-8.0, 0.0], [-5.0, 0.0]], [[5.0, 0.0], [8.0, 0.0]]])
    given = Gaussian(2, means=centres.flatten(0, 1), covariances=torch.full((4, 2), 0.3))
    truth = HiddenMarkov(2, Mixture(2, given), transition=torch.eye(2) * 3.0)
    data = truth.sample(20, 60, torch.Generator().manual_seed(0)).data
    model = HiddenMarkov(2, Mixture(2, Gaussian(2))).fit(
        data, steps=20, progress=False, generator=torch.Generator().manual_seed(0)
    )
    found = model.emission.emission.means.view(2, 2, 2)[..., 0].sort(-1).values.sort(0).values
    torch.testing.assert_close(found, centres[..., 0], rtol=0, atol=0.15)
    assert model.score(data) > truth.score(data) - 5.0


def test_parts_add_up():
    emission = Independent(Gaussian(D), Categorical(4), Poisson(), Bernoulli()).of(N)
    data = torch.cat((joined(3, 8), torch.randint(2, (3, 8, 1)).float()), -1)
    gaussian, categorical, poisson, bernoulli = emission.parts
    columns = [data[..., :D], data[..., D].long(), data[..., D + 1], data[..., D + 2]]
    expected = [part(x) for part, x in zip((gaussian, categorical, poisson, bernoulli), columns, strict=True)]
    torch.testing.assert_close(emission(emission.checked(data)), sum(expected))
    data[0, 1, D] = torch.nan
    data[0, 2, D] = -1.0
    data[1, 1, :D] = torch.nan
    data[2, 2] = torch.nan
    data = emission.checked(data)
    expected[1][0, 1:3] = 0.0
    expected[0][1, 1] = 0.0
    for part in expected:
        part[2, 2] = 0.0
    torch.testing.assert_close(emission(data), sum(expected))
    assert emission.missing(data).nonzero().tolist() == [[2, 2]]
    weight = torch.rand(3, 8, N)
    given = emission.statistics(data, weight)
    symbols = data[..., D].nan_to_num(-1.0).long()
    torch.testing.assert_close(given[3], categorical.statistics(symbols, weight)[0])


def test_parts_start_and_fit_together():
    """Each part alone cannot tell all three states apart."""
    centres, rates = torch.tensor([[0.0], [6.0], [6.0]]), torch.tensor([2.0, 2.0, 15.0])
    given = Independent(Gaussian(1, means=centres, covariances=torch.full((3, 1), 0.5)), Poisson(rates=rates))
    truth = HiddenMarkov(N, given, transition=torch.eye(N) * 2.0)
    drawn = truth.sample(20, 50, torch.Generator().manual_seed(0))
    model = HiddenMarkov(N, Independent(Gaussian(1), Poisson()))
    model.fit(drawn.data, steps=20, progress=False, generator=torch.Generator().manual_seed(0))
    gaussian, poisson = model.emission.parts
    order = (gaussian.means[:, 0] * 10 + poisson.rates).argsort()
    torch.testing.assert_close(gaussian.means[order].detach(), centres, rtol=0, atol=0.2)
    torch.testing.assert_close(poisson.rates[order].detach(), rates, rtol=0.1, atol=0.1)


class Fixed(Emission):
    """An emission of one's own, without an M-step."""

    def make(self, n_states):
        self.means = torch.nn.Parameter(torch.arange(float(n_states)))

    def forward(self, data):
        return torch.where(data.isnan(), 0.0, data).unsqueeze(-1) * self.means

    def example(self):
        return torch.zeros(1)


def test_parts_without_an_m_step():
    emission = Independent(Fixed(), Categorical(3)).of(2)
    data = torch.tensor([[0.5, 2.0], [torch.nan, 1.0]])
    torch.testing.assert_close(
        emission(data)[0], 0.5 * emission.parts[0].means + emission.parts[1](torch.tensor([2]))[0]
    )
    with pytest.raises(NotImplementedError, match="Fixed has no M-step"):
        emission.statistics(data, torch.ones(2, 2))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Mixture(0, Gaussian(2)), "k must be a whole number of at least 1: got 0"),
        (lambda: Mixture(2, Gaussian(2), logits=torch.zeros(2, 3)).of(3), r"logits must be \[3, 2\]: got \[2, 3\]"),
        (lambda: Mixture(2, Gaussian(2).of(3)).of(3), "emission must be for 6 states: got 3"),
        (Independent, "emissions must be of numbers or vectors, one or more: got 0"),
        (
            lambda: Independent(Gaussian(2), Categorical(3)).of(2).checked(torch.zeros(4, 2)),
            r"data must have 3 columns, \[2, 1\]: got \[4, 2\]",
        ),
        (
            lambda: Independent(Categorical(3)).of(2).checked(torch.tensor([[0.5]])),
            "data of Categorical must be whole numbers",
        ),
        (lambda: Independent(Categorical(3)).of(2).checked(torch.tensor([[3.0]])), "data must lie between 0 and"),
        (lambda: Independent(Autoregressive(1)).of(2).checked(torch.tensor([[torch.inf]])), "data must be finite"),
    ],
)
def test_errors(make, text):
    with pytest.raises(ValueError, match=text):
        make()
