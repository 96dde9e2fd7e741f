"""What a fuzz of hidden Markov models found: each case was wrong once."""

import math

import pytest
import torch

import tailsum as ts
from tailsum.hmm import (
    AnyDuration,
    Categorical,
    Entries,
    Gaussian,
    GeometricDuration,
    HiddenMarkov,
    HiddenSemiMarkov,
    Poisson,
    PoissonDuration,
    left_to_right,
)


@pytest.mark.parametrize("kind", [lambda x: x, int, lambda x: x.to(torch.uint8)])
def test_symbols_one_by_one(kind):
    model, data = HiddenMarkov(3, Categorical(4)), torch.randint(4, (50,))
    online = model.online()
    for symbol in data:
        before = online.log_density(symbol)
        online.update(kind(symbol))
        assert torch.isfinite(before)
    assert online.log_likelihood.item() == pytest.approx(model.score(data), rel=1e-5)


def test_zeros_of_one_fit_are_not_forbidden_in_the_next():
    first, second = torch.randint(3, (20, 30)), torch.randint(4, (20, 30))
    model = HiddenMarkov(3, Categorical(4))
    free = model.n_free
    model.fit(first, steps=5).fit(second, steps=5)
    assert math.isfinite(model.score(second))
    assert model.n_free == free
    rising = torch.cat((torch.randn(300, 1), torch.randn(300, 1) + 20))
    model = HiddenMarkov(2, Gaussian(1)).fit(rising, steps=30).fit([rising, rising.flip(0)], steps=50)
    assert model.score([rising, rising.flip(0)]) > -1800


def test_a_filter_loses_no_state():
    never, means = -math.inf, torch.tensor([[0.0], [20.0], [100.0]])
    starts = torch.tensor([0.0, never, never])
    model = HiddenMarkov(3, Gaussian(1, means=means), transition=left_to_right(3), initial=starts)
    data = torch.tensor([0.0] * 5 + [100.0] * 5)[None, :, None]
    chunks, online = list(data.split(5, 1)), model.online((1,))
    for t in range(10):
        online.update(data[:, t])
    assert model.streamed_log_likelihood(chunks).item() == pytest.approx(model.score(data), rel=1e-5)
    assert online.log_likelihood.item() == pytest.approx(model.score(data), rel=1e-5)
    smoothed = dict(model.smooth_chunks(chunks))
    torch.testing.assert_close(torch.cat((smoothed[0], smoothed[1]), 1), model.smooth(data))
    torch.testing.assert_close(model.fixed_lag(9, data), model.smooth(data))
    assert not smoothed[0].requires_grad


def test_large_counts_keep_their_digits():
    data = torch.poisson(torch.full((300,), 3e5), torch.Generator().manual_seed(0))
    model = HiddenMarkov(2, Poisson()).fit(data, steps=10, tolerance=0.0)
    assert model.score(data) == pytest.approx(model.double().score(data.double()), rel=1e-5)


def test_files_of_other_models(tmp_path):
    path = tmp_path / "model.safetensors"
    HiddenMarkov(3, Categorical(4), transition=left_to_right(3)).save(path)
    with pytest.raises(ValueError, match="path must hold the parameters"):
        HiddenMarkov(3, Categorical(4)).load(path)
    HiddenSemiMarkov(3, Categorical(4), PoissonDuration(6)).save(path)
    with pytest.raises(ValueError, match="path must hold the parameters"):
        HiddenSemiMarkov(3, Categorical(4), GeometricDuration(6)).load(path)


def test_files_that_were_cut_off(tmp_path):
    path = tmp_path / "model.safetensors"
    model = HiddenMarkov(3, Categorical(4))
    model.save(path)
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(ValueError, match="path must hold a file that `save` wrote"):
        model.load(path)


def test_lists_of_other_lengths():
    model, parts = HiddenMarkov(3, Categorical(4)), [torch.tensor([0, 1, 2]), torch.tensor([1, 2])]
    with pytest.raises(ValueError, match=r"lengths must be those of the sequences in the list, \[3, 2\]"):
        model.score(parts, [1, 1])
    assert model.score(parts, [3, 2]) == model.score(parts)
    with pytest.raises(ValueError, match="chunks must hold parts of one length"):
        model.online((2,)).extend(parts)


def test_sticky_states_last():
    stay = torch.tensor([[1 - 1e-4, 1e-4], [0.5, 0.5]], dtype=torch.float64)
    model = HiddenMarkov(2, Categorical(2), transition=stay.log())
    assert model.durations()[0].item() == pytest.approx(1e4, rel=1e-9)


def test_tied_rows_are_tied_by_gradients_too():
    data = torch.randint(4, (6, 20))
    model = HiddenMarkov(3, Categorical(4), transition=Entries(ts.Dense(torch.randn(3, 3)), tied=[0, 1, 0]))
    for how in ({"steps": 0}, {"steps": 5, "method": "gradient"}):
        model.fit(data, start="keep", **how)
        assert (model.transition_table()[0] == model.transition_table()[2]).all()


def test_stochastic_em_meets_rare_symbols():
    data = torch.randint(50, (40, 10))
    model = HiddenMarkov(3, Categorical(50)).fit(data, batch_size=4, forget=0.7, steps=5)
    assert math.isfinite(model.score(data))


@pytest.mark.parametrize("wide", ["initial", "emission", "data"])
def test_dtypes_may_differ(wide):
    dtypes = {name: torch.float64 if name == wide else torch.float32 for name in ("initial", "emission", "data")}
    means = torch.randn(2, 2, dtype=dtypes["emission"])
    model = HiddenMarkov(2, Gaussian(2, "full", means=means), initial=torch.zeros(2, dtype=dtypes["initial"]))
    data = torch.randn(20, 2, dtype=dtypes["data"])
    online = model.fit(data, start="keep", steps=2).online()
    for x in data:
        online.update(x)
    assert online.log_likelihood.item() == pytest.approx(model.score(data), rel=1e-5)
    assert model.predict(2, data).shape == (1, 2, 2)


def test_chunks_of_batches_of_two_dimensions():
    model, data = HiddenMarkov(3, Categorical(4)), torch.randint(4, (2, 3, 8))
    online = model.online((2, 3))
    found = torch.cat((online.extend(data[..., :5]), online.extend(data[..., 5:])), -2)
    torch.testing.assert_close(found, model.filter(data.flatten(0, 1)).unflatten(0, (2, 3)))


def test_a_state_that_nothing_leaves_to():
    with pytest.raises(ValueError, match="potential must allow a move from each state"):
        Entries(ts.Dense(torch.tensor([[0.0, 0.0], [-math.inf, -math.inf]])))


def test_a_checkpoint_of_other_data(tmp_path):
    path = tmp_path / "fit.pt"
    HiddenMarkov(2, Categorical(4)).fit(torch.randint(4, (9, 9)), steps=2, checkpoint=path)
    with pytest.raises(ValueError, match="checkpoint must be of a fit by em to 1 sequences"):
        HiddenMarkov(2, Categorical(4)).fit(torch.randint(4, (30,)), steps=2, checkpoint=path)


def test_a_table_of_durations_may_be_fitted_again():
    model = HiddenSemiMarkov(2, Categorical(3), AnyDuration(5))
    free = model.n_free
    model.fit(torch.randint(3, (3, 12)), steps=8)
    assert model.n_free == free


def test_hopeless_data_have_infinite_perplexity():
    assert HiddenMarkov(3, Gaussian(2)).perplexity(torch.randn(10, 2) * 1e3) == math.inf
