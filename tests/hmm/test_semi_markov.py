"""Hidden semi-Markov models, against enumeration of all paths of their states and durations."""

import itertools
import math

import pytest
import torch

from tailsum.hmm import (
    AnyDuration,
    Categorical,
    Gaussian,
    GeometricDuration,
    HiddenMarkov,
    HiddenSemiMarkov,
    NegativeBinomialDuration,
    PoissonDuration,
)

N, V, D = 3, 4, 3
DURATIONS = {
    "any": lambda: AnyDuration(D),
    "poisson": lambda: PoissonDuration(D),
    "geometric": lambda: GeometricDuration(D),
    "negative binomial": lambda: NegativeBinomialDuration(D, 3.0),
}


@pytest.fixture(autouse=True)
def _double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def segmentations(length):
    """The durations of all segmentations; the last segment may go on after the end."""
    if length <= 0:
        yield ()
        return
    for first in range(1, D + 1):
        for rest in segmentations(length - first):
            yield (first, *rest)


def weights(model, data):
    """Every path of labels through `data [T]`, and its probability together with the data."""
    initial, moves, lasts = model.initial.exp(), model.transition_table().exp(), model.durations().exp()
    says = torch.cat((model.emission.logits.softmax(-1), torch.ones(N, 1)), -1)  # -1 is the last column
    found = {}
    for durations in segmentations(len(data)):
        for states in itertools.product(range(N), repeat=len(durations)):
            chance = initial[states[0]]
            for before, state in itertools.pairwise(states):
                chance = chance * moves[before, state]
            for state, duration in zip(states, durations, strict=True):
                chance = chance * lasts[duration - 1, state]
            labels = [state for state, many in zip(states, durations, strict=True) for _ in range(many)][: len(data)]
            for state, symbol in zip(labels, data, strict=True):
                chance = chance * says[state, symbol]
            found[tuple(labels)] = found.get(tuple(labels), 0.0) + chance.item()
    return found


@pytest.mark.parametrize("kind", DURATIONS)
def test_every_answer_is_that_of_enumeration(kind):
    model = HiddenSemiMarkov(N, Categorical(V), DURATIONS[kind]())
    data, lengths = torch.randint(-1, V, (2, 4)), torch.tensor([4, 2])
    assert model.durations().exp().sum(0).tolist() == pytest.approx([1.0] * N)
    smooth = model.smooth(data, lengths)
    for b, length in enumerate(lengths.tolist()):
        found = weights(model, data[b, :length])
        total = sum(found.values())
        assert model.log_likelihood(data, lengths)[b].item() == pytest.approx(math.log(total), abs=1e-10)
        for t in range(length):
            for state in range(N):
                chance = sum(weight for labels, weight in found.items() if labels[t] == state) / total
                assert smooth[b, t, state].item() == pytest.approx(chance, abs=1e-10)
    assert model.decode(data, lengths)[1, 2:].tolist() == [-1, -1]


def test_geometric_durations_are_a_markov_chain():
    """But for the longest duration: a long one makes no difference."""
    stay, data = torch.tensor([0.3, 0.6, 0.5]), torch.randint(V, (2, 8))
    moves = torch.rand(N, N).fill_diagonal_(0.0)
    moves = moves / moves.sum(-1, keepdim=True)
    semi = HiddenSemiMarkov(N, Categorical(V), GeometricDuration(200), transition=moves.log())
    semi.durations.natural.data = stay.log()
    table = (1 - stay)[:, None] * moves + torch.diag(stay)
    says = semi.emission.logits.detach()
    chain = HiddenMarkov(N, Categorical(V, logits=says), initial=semi.initial.detach(), transition=table.log())
    torch.testing.assert_close(semi.log_likelihood(data), chain.log_likelihood(data))
    torch.testing.assert_close(semi.smooth(data), chain.smooth(data))


@pytest.mark.parametrize("kind", DURATIONS)
def test_a_step_of_em_never_goes_down(kind):
    data = torch.randint(V, (6, 20)).repeat_interleave(2, 1)
    model = HiddenSemiMarkov(N, Categorical(V, prior=1.1), DURATIONS[kind]())
    course = model.fit(data, torch.tensor([40, 40, 33, 20, 1, 7]), steps=12, tolerance=1e-9).fitted
    gains = torch.tensor(course.log_likelihoods).diff()
    assert (gains > -1e-9).all()
    assert gains[0] > 0.5
    assert (model.transition_table().exp().diagonal() == 0).all()


@pytest.mark.parametrize("kind", DURATIONS)
def test_durations_fit_their_counts(kind):
    durations, counts = DURATIONS[kind]().of(N), torch.rand(D, N) + 0.1
    durations.maximise(counts)
    leaves = list(durations.parameters())
    gradients = torch.autograd.grad((counts * durations()).sum(), leaves)
    for x in gradients:
        assert x.abs().max() < 1e-6
    before = [x.clone() for x in leaves]
    durations.maximise(torch.zeros(D, N))  # nothing was seen
    assert all((x == y).all() for x, y in zip(durations.parameters(), before, strict=True))


def test_a_known_model_is_found():
    generator = torch.Generator().manual_seed(0)
    model = HiddenSemiMarkov(2, Gaussian(1), PoissonDuration(20))
    model.durations.natural.data = torch.tensor([3.0, 9.0]).log()
    model.emission.means.data = torch.tensor([[-2.0], [2.0]])
    drawn = model.sample(10, 120, generator)
    assert drawn.data.shape == (10, 120, 1)
    found = HiddenSemiMarkov(2, Gaussian(1), PoissonDuration(20)).fit(drawn.data, steps=15, generator=generator)
    order = found.emission.means[:, 0].argsort()
    assert found.durations.natural.exp()[order].tolist() == pytest.approx([3.0, 9.0], rel=0.2)
    agree = (order.argsort()[found.decode(drawn.data)] == drawn.states).double().mean()
    assert agree > 0.95
    assert found.bic(drawn.data) < HiddenMarkov(2, Gaussian(1)).fit(drawn.data, steps=30).bic(drawn.data)
    assert found.n_free == 1 + 0 + 4 + 2


def test_gradients_learn_too():
    data = torch.randint(V, (4, 12)).repeat_interleave(2, 1)
    model = HiddenSemiMarkov(N, Categorical(V), PoissonDuration(6))
    before = model.score(data)
    assert model.fit(data, method="gradient", steps=15, start="keep").score(data) > before


def test_wrong_parts():
    with pytest.raises(ValueError, match="n_states must be"):
        HiddenSemiMarkov(1, Categorical(2), PoissonDuration(3))
    with pytest.raises(ValueError, match="durations must be for 3 states: got 2"):
        HiddenSemiMarkov(3, Categorical(2), PoissonDuration(3).of(2))
    with pytest.raises(ValueError, match="size must be above 0"):
        NegativeBinomialDuration(3, 0.0)
