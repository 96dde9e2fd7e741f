"""Gaussians: densities, missing features, digits, floors, starts, recovery and errors."""

import itertools
import math

import pytest
import torch
from torch.distributions import MultivariateNormal, Normal

from harness.emissions import PRIORS, D, N, vectors
from tailsum.hmm import Gaussian, HiddenMarkov

KINDS = ["diagonal", "full", "tied", "spherical"]
pytestmark = pytest.mark.usefixtures("one_thread")


def matrices(emission, n=N):
    """The covariances of each state as matrices."""
    found, d = emission.covariances.detach(), emission.d
    if emission.kind == "spherical":
        return found[:, None, None] * torch.eye(d)
    return torch.diag_embed(found) if emission.kind == "diagonal" else found.expand(n, d, d)


def random_gaussian(kind, d=D, n=N, **more):
    root = torch.randn(n, d, d) * 0.4 + torch.eye(d)
    full = root @ root.mT
    diagonal = full.diagonal(dim1=-2, dim2=-1)
    given = {"full": full, "tied": full[0], "diagonal": diagonal, "spherical": diagonal[:, 0]}[kind]
    return Gaussian(d, kind, means=torch.randn(n, d), covariances=given, **more).of(n)


@pytest.mark.parametrize("kind", KINDS)
def test_densities(kind):
    emission = random_gaussian(kind, 3)
    data = torch.randn(4, 5, 3)
    expected = MultivariateNormal(emission.means, matrices(emission)).log_prob(data[..., None, :])
    torch.testing.assert_close(emission(data), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_densities_of_many_rows(kind, monkeypatch):
    emission, data = random_gaussian(kind), torch.randn(3, 50, D)
    weight = torch.rand(3, 50, N)
    whole = emission(data), *emission.statistics(data, weight)
    monkeypatch.setattr("tailsum.hmm.rows._NUMBERS", 40)
    for x, y in zip((emission(data), *emission.statistics(data, weight)), whole, strict=True):
        torch.testing.assert_close(x, y)


@pytest.mark.parametrize("kind", ["diagonal", "spherical"])
def test_missing_features_are_summed_out(kind):
    emission, data = random_gaussian(kind, 3), torch.randn(20, 3)
    data[torch.rand(20, 3) < 0.4] = torch.nan
    scale = matrices(emission).diagonal(dim1=-2, dim2=-1).sqrt()
    each = Normal(emission.means, scale, validate_args=False).log_prob(data[:, None]).nan_to_num(0.0)
    torch.testing.assert_close(emission(data), each.sum(-1))
    weight = torch.rand(20, N)
    counts, sums, squares = emission.statistics(data, weight)
    seen = ~data.isnan()
    about = torch.where(seen, data - emission.centre, 0.0)
    torch.testing.assert_close(counts, (weight.mT @ seen.float()).double())
    torch.testing.assert_close(sums.float(), weight.mT @ about)
    torch.testing.assert_close(squares.float(), weight.mT @ about.square())


@pytest.mark.parametrize("kind", ["full", "tied"])
def test_vectors_with_a_missing_feature_are_missing(kind):
    emission, data = random_gaussian(kind, 3), torch.randn(6, 3)
    data[2, 1] = torch.nan
    assert emission.missing(data).nonzero().tolist() == [[2]]
    assert emission(data)[2].eq(0).all()


def test_a_missing_position_is_summed_out():
    """The likelihood of a chain with a missing vector is the sum over paths without its density."""
    model = HiddenMarkov(2, random_gaussian("full", n=2)).double()
    data = torch.randn(4, D).double()
    data[1] = torch.nan
    density, moves = model.emission(data), model.transition_table()
    totals = []
    for path in itertools.product(range(2), repeat=4):
        score = model.initial[path[0]] + sum(density[t, s] for t, s in enumerate(path) if t != 1)
        totals.append(score + sum(moves[i, j] for i, j in itertools.pairwise(path)))
    torch.testing.assert_close(model.log_likelihood(data)[0], torch.stack(totals).logsumexp(0))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("start", ["data", "keep"])
def test_offsets_cost_no_digits(kind, start):
    """In single precision, data about ten thousand give the parameters of the same data about zero, in double precision."""
    high = vectors(5, 60) + 1e4
    low = high.double() - 1e4
    one = HiddenMarkov(N, Gaussian(D, kind)).double()
    one.start(one.sequences(low), torch.Generator().manual_seed(0))
    other = HiddenMarkov(N, Gaussian(D, kind))
    other.load_state_dict(one.state_dict())
    other.emission.means.data += 1e4
    other.emission.centre += 1e4 if start == "data" else -other.emission.centre
    for model, data in ((one, low), (other, high)):
        model.fit(data, steps=8, start="keep", tolerance=-math.inf, progress=False)
    torch.testing.assert_close(other.emission.means.double() - 1e4, one.emission.means, rtol=0, atol=0.01)
    torch.testing.assert_close(matrices(other.emission).double(), matrices(one.emission), rtol=0.01, atol=0.01)


def test_batches_add_up_to_the_same_fit():
    data, lengths = vectors(6, 20), [20, 3, 9, 20, 1, 7]
    fits = []
    for size in (None, 2):
        torch.manual_seed(1)
        model = HiddenMarkov(N, Gaussian(D, "full")).double()
        model.fit(
            data.double(), lengths, steps=4, batch_size=size, progress=False, generator=torch.Generator().manual_seed(2)
        )
        fits.append(model)
    torch.testing.assert_close(fits[0].emission.covariances, fits[1].emission.covariances)
    torch.testing.assert_close(fits[0].emission.means, fits[1].emission.means)


@pytest.mark.parametrize("kind", KINDS)
def test_variances_stay_above_the_floor(kind):
    emission = Gaussian(2, kind, covariance_prior=0.0, floor=0.25).of(N)
    data = torch.stack((torch.ones(30), torch.randn(30)), -1)
    emission.maximise(emission.statistics(data, torch.rand(30, N)))
    assert torch.linalg.eigvalsh(matrices(emission)).min() >= 0.25 * (1 - 1e-5)
    if kind != "spherical":
        assert matrices(emission)[:, 1, 1].min() > 0.3


@pytest.mark.parametrize("kind", KINDS)
def test_stochastic_em_mixes_statistics_of_several_steps(kind):
    data = vectors(40, 20) + 300.0
    model = HiddenMarkov(N, Gaussian(D, kind))
    model.fit(data, steps=30, progress=False, generator=torch.Generator().manual_seed(0))
    before = model.score(data)
    model.fit(data, steps=10, batch_size=8, forget=0.7, start="keep", progress=False)
    assert model.score(data) > before - 20.0


@pytest.mark.parametrize("kind", KINDS)
def test_recovers_the_model_that_data_came_from(kind):
    truth = HiddenMarkov(N, random_gaussian(kind), transition=torch.eye(N) * 3.0)
    truth.emission.means.data = torch.tensor([[-4.0, 0.0], [0.0, 4.0], [5.0, 0.0]])
    data = truth.sample(40, 100, torch.Generator().manual_seed(1)).data
    model = HiddenMarkov(N, Gaussian(D, kind)).fit(
        data, steps=20, progress=False, generator=torch.Generator().manual_seed(0)
    )
    order = model.emission.means[:, 0].argsort()
    torch.testing.assert_close(model.emission.means[order], truth.emission.means, rtol=0, atol=0.25)
    torch.testing.assert_close(matrices(model.emission)[order], matrices(truth.emission), rtol=0.12, atol=0.12)
    moves = model.transition_table().exp()[order][:, order]
    torch.testing.assert_close(moves, truth.transition_table().exp(), rtol=0, atol=0.06)


@pytest.mark.parametrize("kind", KINDS)
def test_starts_are_clusters(kind):
    centres = torch.tensor([[0.0, 0.0], [10.0, 0.0], [20.0, 5.0]])
    data = centres[torch.randint(N, (30_000,))] + 0.3 * torch.randn(30_000, 2)
    data[::7, 0 if kind in {"diagonal", "spherical"} else slice(None)] = torch.nan
    emission = Gaussian(2, kind).of(N)
    emission.start(data[~emission.missing(data)], torch.Generator().manual_seed(0))
    if kind in {"full", "tied"}:
        torch.testing.assert_close(emission.means.detach(), centres, rtol=0, atol=0.05)
        within = matrices(emission).diagonal(dim1=-2, dim2=-1)
        torch.testing.assert_close(within, torch.full((N, 2), 0.09), rtol=0.5, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_priors_alone(kind):
    """Without observations, means and covariances are those of the prior."""
    emission = Gaussian(D, kind, **PRIORS).of(N)
    nothing = torch.full((1, D), torch.nan)
    emission.maximise(emission.statistics(nothing, torch.ones(1, N)))
    torch.testing.assert_close(emission.means.detach(), torch.full((N, D), 0.5))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Gaussian(0), "d must be a whole number of at least 1: got 0"),
        (lambda: Gaussian(2, "round"), "covariance must be"),
        (lambda: Gaussian(2, floor=0.0), "floor must be above 0: got 0.0"),
        (lambda: Gaussian(2, mean_weight=-1.0), "mean_weight must be at least 0: got -1.0"),
        (lambda: Gaussian(2, means=torch.zeros(3, 3)).of(3), r"means must be \[3, 2\]: got \[3, 3\]"),
        (lambda: Gaussian(2, means=torch.full((3, 2), torch.inf)).of(3), "means must be finite"),
        (lambda: Gaussian(2, covariances=torch.zeros(3, 2)).of(3), "covariances must be above 0: got 0.0"),
        (lambda: Gaussian(2, covariances=torch.ones(2)).of(3), r"covariances must be \[3, 2\]: got \[2\]"),
        (lambda: Gaussian(2, "tied", covariances=torch.ones(2, 2)).of(3), "covariances must be symmetric and positive"),
        (lambda: Gaussian(2).of(3).checked(torch.zeros(4, 3)), r"data must have 2 features, .* got \[4, 3\]"),
        (lambda: Gaussian(2).of(3).checked(torch.zeros(4, 2).long()), "data must be floating-point: got torch.int64"),
        (lambda: Gaussian(2).of(3).checked(torch.full((4, 2), torch.inf)), "data must be finite"),
    ],
)
def test_errors(make, text):
    with pytest.raises(ValueError, match=text):
        make()
