"""Hidden Markov models with parameters, against enumeration of all paths and against hmmlearn."""

import itertools
import math

import numpy as np
import pytest
import torch

import tailsum as ts
from tailsum.hmm import Categorical, Embedded, Entries, HiddenMarkov, Scores, full, left_to_right

N, V = 3, 4
INDEX = torch.tensor([[0, 0, 1, 2, 2], [1, 0, 2, 0, 2]])
TRANSITIONS = {
    "full": lambda: None,
    "left to right": lambda: left_to_right(N, 1),
    "sparse": lambda: Entries(ts.Sparse(INDEX, torch.randn(5), N)),
    "factored": lambda: Scores(Embedded(N, 2)),
    "kronecker": lambda: Scores(_Kronecker()),
}


class _Kronecker(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = (torch.nn.Parameter(torch.randn(n, n)) for n in (1, N))

    def forward(self):
        return ts.Kronecker(self.first, self.second)


@pytest.fixture(autouse=True)
def _double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def model_of(kind="full"):
    return HiddenMarkov(N, Categorical(V), transition=TRANSITIONS[kind]())


def weights(model, data):
    """Every path through `data [T]`, and its probability together with the data."""
    initial, moves = model.initial.exp(), model.transition_table().exp()
    says = torch.cat((model.emission.logits.softmax(-1), torch.ones(N, 1)), -1)  # -1 is the last column
    paths = list(itertools.product(range(N), repeat=len(data)))
    found = []
    for path in paths:
        chance = initial[path[0]] * says[path[0], data[0]]
        for before, state, symbol in zip(path, path[1:], data[1:], strict=False):
            chance = chance * moves[before, state] * says[state, symbol]
        found.append(chance.item())
    return paths, torch.tensor(found)


def chance_at(paths, weight, t):
    found = torch.zeros(N)
    for path, chance in zip(paths, weight, strict=True):
        found[path[t]] += chance
    return found / found.sum()


@pytest.mark.parametrize("kind", TRANSITIONS)
def test_every_answer_is_that_of_enumeration(kind):
    model, data, lengths = model_of(kind), torch.randint(-1, V, (3, 5)), torch.tensor([5, 1, 3])
    smooth, filtered, lagged = (
        model.smooth(data, lengths),
        model.filter(data, lengths),
        model.fixed_lag(1, data, lengths),
    )
    ahead, paths_found = model.predict(2, data, lengths), model.decode(data, lengths)
    for b, length in enumerate(lengths.tolist()):
        seen = data[b, :length]
        paths, weight = weights(model, seen)
        assert model.log_likelihood(data, lengths)[b].item() == pytest.approx(weight.sum().log().item(), abs=1e-10)
        assert tuple(paths_found[b, :length].tolist()) == paths[int(weight.argmax())]
        assert (paths_found[b, length:] == -1).all()
        for t in range(length):
            torch.testing.assert_close(smooth[b, t], chance_at(paths, weight, t))
            for found, end in ((filtered, t + 1), (lagged, min(t + 2, length))):
                torch.testing.assert_close(found[b, t], chance_at(*weights(model, seen[:end]), t))
        for step in range(2):
            missing = torch.cat((seen, torch.full((step + 1,), -1)))
            torch.testing.assert_close(ahead[b, step], chance_at(*weights(model, missing), length + step))
        assert (smooth[b, length:] == 0).all()
        assert (filtered[b, length:] == 0).all()


@pytest.mark.parametrize("kind", TRANSITIONS)
def test_a_filter_fed_one_by_one_or_by_chunks(kind):
    model, data = model_of(kind), torch.randint(-1, V, (2, 9))
    single, chunked = model.online((2,)), model.online((2,))
    one_by_one = torch.stack([single.update(x) for x in data.mT], 1)
    by_chunks = torch.cat([chunked.extend(x) for x in (data[:, :4], data[:, 4:5], data[:, 5:])], 1)
    for online in (single, chunked):
        torch.testing.assert_close(online.log_likelihood, model.log_likelihood(data).detach())
        torch.testing.assert_close(online.predict(3), model.predict(3, data)[:, -1])
    torch.testing.assert_close(one_by_one, model.filter(data))
    torch.testing.assert_close(by_chunks, one_by_one)
    other = model.online((2,))
    other.load(single.state())
    torch.testing.assert_close(other.update(data[:, 0]), single.update(data[:, 0]))
    before, expected = single.log_likelihood, single.log_density(data[:, 1])
    single.update(data[:, 1])
    torch.testing.assert_close(single.log_likelihood - before, expected.detach())


def test_a_filter_before_the_first_observation():
    model = model_of()
    online = model.online()
    torch.testing.assert_close(online.predict(1), model.initial.exp().detach())
    torch.testing.assert_close(online.predict(2), (model.initial.exp() @ model.transition_table().exp()).detach())
    torch.testing.assert_close(online.update(torch.tensor(-1)), model.initial.exp().detach())


def test_an_impossible_observation():
    model = HiddenMarkov(2, Categorical(2, logits=torch.tensor([[0.0, -math.inf], [0.0, -math.inf]])))
    online = model.online()
    online.update(torch.tensor(0))
    assert online.update(torch.tensor(1)).tolist() == [0.0, 0.0]
    assert online.log_likelihood == -math.inf
    with pytest.raises(ValueError, match="possible under the model"):
        model.fit(torch.tensor([0, 1]), start="keep")


@pytest.mark.parametrize("kind", ["full", "left to right", "factored"])
def test_chunks_of_long_sequences(kind):
    model, data = model_of(kind), torch.randint(-1, V, (2, 40))
    chunks = [data[:, :7], data[:, 7:8], data[:, 8:30], data[:, 30:]]
    torch.testing.assert_close(model.streamed_log_likelihood(iter(chunks)), model.log_likelihood(data).detach())
    found = dict(model.smooth_chunks(chunks))
    torch.testing.assert_close(torch.cat([found[i] for i in range(4)], 1), model.smooth(data))


@pytest.mark.parametrize("kind", TRANSITIONS)
def test_gradients_of_the_likelihood(kind):
    model, data = model_of(kind), torch.randint(-1, V, (2, 4))
    values = [x.detach() for x in model.parameters()]
    names = [name for name, _ in model.named_parameters()]

    def total(*parameters):
        changed = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(model, changed, (data,)).sum()

    finite = [x.clamp(min=-30.0).requires_grad_() for x in values]
    model.forward = model.log_likelihood
    assert torch.autograd.gradcheck(total, finite)


def hmmlearn_of(model, steps):
    peer = pytest.importorskip("hmmlearn.hmm").CategoricalHMM(
        model.n_states, n_features=V, init_params="", n_iter=steps, tol=-np.inf
    )
    with torch.no_grad():
        peer.startprob_ = model.initial.exp().numpy().copy()
        peer.transmat_ = model.transition_table().exp().numpy().copy()
        peer.emissionprob_ = model.emission.logits.softmax(-1).numpy().copy()
    return peer


@pytest.mark.parametrize("kind", ["full", "left to right"])
def test_em_is_that_of_hmmlearn(kind):
    model, data, lengths = model_of(kind), torch.randint(V, (60,)), [30, 1, 29]
    peer, column = hmmlearn_of(model, 8), data[:, None].numpy()
    peer.fit(column, lengths)
    model.fit(data, lengths, start="keep", steps=8, tolerance=-math.inf)
    with torch.no_grad():
        np.testing.assert_allclose(model.transition_table().exp(), peer.transmat_, atol=1e-9)
        np.testing.assert_allclose(model.initial.exp(), peer.startprob_, atol=1e-9)
        np.testing.assert_allclose(model.emission.logits.softmax(-1), peer.emissionprob_, atol=1e-9)
    assert model.score(data, lengths) == pytest.approx(peer.score(column, lengths), abs=1e-9)
    smooth = model.smooth(data, lengths)
    found = torch.cat([x[:length] for x, length in zip(smooth, lengths, strict=True)])
    np.testing.assert_allclose(found, peer.predict_proba(column, lengths), atol=1e-9)
    paths = torch.cat([x[:length] for x, length in zip(model.decode(data, lengths), lengths, strict=True)])
    assert paths.tolist() == peer.predict(column, lengths).tolist()
    assert model.bic(data, lengths) == pytest.approx(peer.bic(column, lengths)) or kind != "full"


def test_data_may_be_a_column_a_batch_or_a_list():
    model, data = model_of(), torch.randint(V, (2, 6))
    parts = [data[0, :4], data[1]]
    expected = sum(model.score(x) for x in parts)
    assert model.score(data, [4, 6]) == pytest.approx(expected)
    assert model.score(parts) == pytest.approx(expected)
    assert model.score([x.numpy() for x in parts]) == pytest.approx(expected)
    assert model.score([x.tolist() for x in parts]) == pytest.approx(expected)
    assert model.score(torch.cat(parts), [4, 6]) == pytest.approx(expected)
    assert model.score(data[1].tolist()) == pytest.approx(model.score(data[1]))


@pytest.mark.parametrize(
    ("data", "lengths", "words"),
    [
        (torch.zeros(2, 3), None, "data must be symbols"),
        (torch.full((4,), V), None, "data must lie between 0 and n_symbols-1 = 3"),
        (torch.zeros(2, 3, 4, dtype=torch.long), None, r"data must be \[T\] or \[B, T\]"),
        (torch.zeros(2, 3, dtype=torch.long), [4, 1], "lengths must be one number from 1 to 3"),
        (torch.zeros(2, 3, dtype=torch.long), [1], "lengths must be one number from 1 to 3"),
    ],
)
def test_wrong_data(data, lengths, words):
    with pytest.raises(ValueError, match=words):
        model_of().score(data, lengths)


def test_columns_as_hmmlearn_has_them():
    model, data = model_of(), torch.randint(V, (6,))
    with pytest.raises(ValueError, match=r"data must be \[T\] for one sequence, or a column"):
        model.score(data[:, None])
    assert model.score(data[:, None], [4, 2]) == pytest.approx(model.score(data, [4, 2]))
    assert model.score(data[:, None], [6]) == pytest.approx(model.score(data))
    assert model.score(data.to(torch.uint8)) == pytest.approx(model.score(data))


def test_tables_from_probabilities():
    given = torch.tensor([[0.5, 0.5, 0.0], [0.1, 0.2, 0.7], [1.0, 0.0, 0.0]])
    model = HiddenMarkov(N, Categorical(V), transition=full(N, probabilities=given, prior=2.0))
    torch.testing.assert_close(model.transition_table().exp().detach(), given)
    torch.testing.assert_close(model.emission.probabilities, model.emission.logits.softmax(-1))
    with pytest.raises(ValueError, match="probabilities must not be below 0"):
        full(N, probabilities=-given)
    with pytest.raises(ValueError, match="probabilities must be None"):
        full(N, given.log(), probabilities=given)


def test_wrong_parts():
    with pytest.raises(ValueError, match="tied must be one number for each"):
        Entries(left_to_right(3)(), tied=[0, 0, 1])
    with pytest.raises(ValueError, match="states must lie between 0 and 2"):
        model_of().smooth(torch.zeros(3, dtype=torch.long), states=torch.full((3,), 3))
    with pytest.raises(ValueError, match="emission must be for 3 states: got 2"):
        HiddenMarkov(3, Categorical(2).of(2))
    with pytest.raises(ValueError, match="logits must be"):
        HiddenMarkov(3, Categorical(2, logits=torch.zeros(2, 2)))
    with pytest.raises(ValueError, match="a row of minus infinity"):
        HiddenMarkov(2, Categorical(2), initial=torch.full((2,), -math.inf))
    with pytest.raises(ValueError, match="potential must be a Dense, Banded or Sparse"):
        Entries(ts.Factored(torch.zeros(2, 1), torch.zeros(2, 1)))
    with pytest.raises(ValueError, match="transition must be for 2 states: got 3"):
        HiddenMarkov(2, Categorical(2), transition=left_to_right(3))


def test_parameters_in_a_file(tmp_path):
    model, data = model_of("left to right"), torch.randint(V, (9,))
    model.save(tmp_path / "model.safetensors")
    other = model_of("left to right").load(tmp_path / "model.safetensors")
    assert other.score(data) == model.score(data)
    with pytest.raises(ValueError, match="path must hold the parameters"):
        model_of("full").load(tmp_path / "model.safetensors")


def test_new_sequences_follow_the_model():
    model, generator, count = model_of(), torch.Generator().manual_seed(0), 4000
    drawn = model.sample(count, 3, generator)
    expected = model.initial.exp()
    for t in range(3):
        for found, chance in (
            (drawn.states[:, t], expected),
            (drawn.data[:, t], expected @ model.emission.logits.softmax(-1)),
        ):
            share = torch.bincount(found, minlength=len(chance)) / count
            assert ((share - chance).abs() <= 5 * (chance * (1 - chance) / count).sqrt()).all()
        expected = expected @ model.transition_table().exp()


def test_forecasts_follow_the_prediction():
    model, generator, data = model_of(), torch.Generator().manual_seed(0), torch.randint(V, (2, 5))
    drawn = model.forecast(3, data, draws=4000, generator=generator)
    assert drawn.data.shape == drawn.states.shape == (4000, 2, 3)
    for step in range(3):
        chance = model.predict(3, data)[:, step]
        share = (drawn.states[..., step, None] == torch.arange(N)).double().mean(0)
        assert ((share - chance).abs() <= 5 * (chance * (1 - chance) / 4000).sqrt()).all()


def test_the_long_run():
    model = model_of()
    table, stationary = model.transition_table().exp(), model.stationary()
    torch.testing.assert_close(stationary @ table, stationary)
    torch.testing.assert_close(model.durations(), 1 / (1 - table.diagonal()).detach())


def test_inputs_change_the_moves():
    class Moves(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, N * N)

        def forward(self, inputs):
            return ts.Dense(self.layer(inputs[:, :-1]).unflatten(-1, (N, N)))

    model = HiddenMarkov(N, Categorical(V), transition=Scores(Moves(), takes_inputs=True))
    data, inputs = torch.randint(V, (4, 6)), torch.randn(4, 6, 2)
    rows = model.transition(inputs).scores.log_softmax(-1)
    expected = ts.HMM(model.initial, ts.Dense(rows), model.emission.logits.log_softmax(-1), data).log_partition()
    torch.testing.assert_close(model.log_likelihood(data, inputs=inputs), expected)
    model.fit(data, inputs=inputs, method="gradient", steps=5, progress=False)
    with pytest.raises(ValueError, match="transition must not depend on inputs"):
        model.online()


def test_large_models_make_no_table_of_all_pairs():
    from tailsum.numerics.memory import PeakMemory  # noqa: PLC0415

    n = 4000
    model, data = HiddenMarkov(n, Categorical(5), transition=Scores(Embedded(n, 8))), torch.randint(5, (2, 4))
    with PeakMemory() as memory, ts.table_budget(1 << 20):
        model.log_likelihood(data).sum().backward()
    assert memory.peak < n * n * 8 / 3


@pytest.mark.parametrize("transition", [None, lambda n: left_to_right(n, 2), lambda n: Scores(Embedded(n, 5))])
def test_filters_of_many_states_go_by_tiles(transition):
    n = 300
    model = HiddenMarkov(n, Categorical(7), transition=None if transition is None else transition(n))
    data = torch.randint(7, (3, 12))
    online = model.online((3,))
    torch.testing.assert_close(torch.stack([online.update(x) for x in data.mT], 1), model.filter(data))
    torch.testing.assert_close(model.fixed_lag(2, data)[:, 3], model.smooth(data[:, :6])[:, 3])
