"""Likelihoods by importance sampling against sums over all paths of states, and how sure they say they are."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tailsum.nn import CRFInference, Decoder, Estimator, LSTMEncoder, StructuredVAE, as_sample
from tailsum_studies.vae import evaluate
from tailsum_studies.vae.data import batch_of
from tailsum_studies.vae.evaluate import drawn, likelihood, log_mean_exp, n_batches, sums_for
from tailsum_studies.vae.explore import gather
from tailsum_studies.vae.settings import EXACT_UP_TO

N_WORDS, N_STATES = 4, 3
FULL = Estimator("full", 2)
SENTENCES = [[2, 3, 1], [1], [0, 1], [3, 3, 2, 1], [2, 1], [2, 2, 1], [3, 0, 1]]


def vae(dropout=0.0):
    """In single precision, as it is used; its states matter, and its posterior is not sure of them."""
    encoder = LSTMEncoder(N_WORDS, 4, dropout)
    model = StructuredVAE(encoder, CRFInference(4, N_STATES, 3), Decoder(N_WORDS, N_STATES, 4, 3, 5, dropout))
    generator = torch.Generator().manual_seed(1)
    for weight in model.parameters():
        weight.data = 0.8 * torch.randn(weight.shape, generator=generator)
    model.inference.states.data *= 0.5
    return model


def state_counts(*given, **how):
    """How often each state occurs in one sample for each sentence."""
    return gather(*given, **how).counts


@torch.no_grad()
def log_p(model, sentence):
    """The probability of a sentence, by all paths of its states."""
    states = torch.tensor(list(itertools.product(range(N_STATES), repeat=len(sentence))))
    words, lengths = batch_of([sentence] * len(states))
    return model.decoder(words, lengths, as_sample(states)).total.double().logsumexp(0)


@torch.no_grad()
def marginals(model, sentence):
    return model.posterior(*batch_of([sentence])).marginals()[0].double()


def truths(model):
    return torch.stack([log_p(model, sentence) for sentence in SENTENCES])


# Sums.


@given(
    st.lists(st.one_of(st.floats(-1100, -900, width=32), st.just(-math.inf)), min_size=1, max_size=8),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_means_of_tiny_numbers(values, dtype):
    found = log_mean_exp(torch.tensor(values, dtype=dtype)).item()
    highest = max(values)
    if highest == -math.inf:
        assert found == -math.inf
        return
    expected = highest + math.log(math.fsum(math.exp(x - highest) for x in values) / len(values))
    assert found == pytest.approx(expected, rel=1e-14)


def test_means_are_taken_along_the_first_dimension():
    values = torch.tensor([[0.0, -1000.0, -math.inf], [0.0, -1000.5, -math.inf]])
    found = log_mean_exp(values)
    assert found.dtype == torch.double
    assert found.tolist() == pytest.approx([0.0, -1000 + math.log((1 + math.exp(-0.5)) / 2), -math.inf])


# The likelihood.


def test_the_likelihood_is_that_of_all_paths():
    model = vae()
    expected = truths(model)
    found = likelihood(model, SENTENCES, FULL, n_samples=1000)
    assert (found.sentences, found.samples) == (7, 1000)
    assert 0 < found.sampling_error < 0.03
    assert abs(found.nll.per_sentence + expected.mean()) < 5 * found.sampling_error
    words = sum(map(len, SENTENCES))
    assert found.nll.per_word == pytest.approx(found.nll.per_sentence * len(SENTENCES) / words)
    assert found.nll.standard_error == pytest.approx(expected.std().item() / math.sqrt(7), rel=0.05)
    gap = -found.nll.per_sentence - found.bound.total.item()
    assert gap > 0.01  # the bound is a bound, and not tight


def test_the_parts_of_the_bound_are_means_over_sentences_and_samples(monkeypatch):
    """With samples taken in several goes, of which the last is smaller."""
    model, weighed = vae(), []
    original = model.weigh

    def spy(*given):
        weighed.append(original(*given))
        return weighed[-1]

    monkeypatch.setattr(model, "weigh", spy)
    found = likelihood(model, SENTENCES, FULL, n_samples=50)
    assert sum(len(each.log_weights) for each in weighed) == 50
    assert len(weighed) > 1
    assert len(weighed[0].log_weights) != len(weighed[-1].log_weights)
    weights = torch.cat([each.log_weights for each in weighed]).double()
    assert found.bound.total.item() == pytest.approx(weights.mean().item(), rel=1e-5)
    log_means = weights.exp().mean(0).log()
    assert found.nll.per_sentence == pytest.approx(-log_means.mean().item(), rel=1e-6)
    assert found.nll.standard_error == pytest.approx(log_means.std().item() / math.sqrt(7), rel=1e-6)
    relative = weights.exp().var(0) / weights.exp().mean(0).square() / 50
    assert found.sampling_error == pytest.approx(relative.sum().sqrt().item() / 7, rel=1e-6)
    counts = torch.tensor([len(each.log_weights) for each in weighed]).double()
    for name, part in found.bound._asdict().items():
        each = torch.stack([getattr(one.bound, name).double().mean() for one in weighed])
        assert part.item() == pytest.approx((counts * each).sum().item() / 50, rel=1e-5)


def test_the_sampling_error_is_the_spread_over_seeds():
    model = vae()
    runs = [likelihood(model, SENTENCES, FULL, n_samples=20, seed=seed) for seed in range(60)]
    spread = torch.tensor([run.nll.per_sentence for run in runs]).double().std().item()
    said = sum(run.sampling_error for run in runs) / len(runs)
    assert 0.7 * spread < said < 1.4 * spread


@pytest.mark.parametrize("estimator", [FULL, Estimator("rdp", 2), Estimator("tailsum", 2, 2)], ids=str)
def test_the_sampling_error_is_the_spread_over_copies_of_a_sentence(estimator):
    """They differ in nothing but their samples. Of a sketch there are several samples: they are not independent."""
    found = likelihood(vae(), [SENTENCES[0]] * 400, estimator, n_samples=100)
    assert found.sampling_error == pytest.approx(found.nll.standard_error, rel=0.2)


def test_few_samples_make_it_look_worse():
    model = vae()
    found = likelihood(model, [SENTENCES[0]] * 400, FULL, n_samples=1)
    assert found.nll.per_sentence + log_p(model, SENTENCES[0]) > 5 * found.nll.standard_error


def test_the_standard_error_needs_more_than_one_sentence():
    found = likelihood(vae(), SENTENCES[:1], FULL, n_samples=1)
    assert math.isnan(found.nll.standard_error)
    assert math.isfinite(found.nll.per_sentence)


def test_the_same_seed_gives_the_same_and_leaves_the_random_state_alone():
    model = vae(dropout=0.5)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = likelihood(model, SENTENCES, FULL, n_samples=7, seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert likelihood(model, SENTENCES, FULL, n_samples=7, seed=3) == first
    assert likelihood(model, SENTENCES, FULL, n_samples=7, seed=4).nll != first.nll
    assert torch.equal(
        state_counts(model, SENTENCES * 9, FULL, seed=3),
        state_counts(model, SENTENCES * 9, FULL, seed=3),
    )


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_size_of_batches_changes_the_samples_only(monkeypatch, size):
    model, steps = vae(), []
    whole = likelihood(model, SENTENCES, FULL, n_samples=2000)
    monkeypatch.setattr(evaluate, "BATCH", size)
    parts = likelihood(model, SENTENCES, FULL, n_samples=2000, step=lambda: steps.append(1))
    assert len(steps) == n_batches(SENTENCES) == math.ceil(7 / size)
    assert parts.nll != whole.nll
    error = math.hypot(whole.sampling_error, parts.sampling_error)
    assert abs(whole.nll.per_sentence - parts.nll.per_sentence) < 5 * error
    assert whole.nll.standard_error == pytest.approx(parts.nll.standard_error, rel=0.05)
    assert whole.bound.total.item() == pytest.approx(parts.bound.total.item(), abs=0.2)


def test_long_sentences_have_fewer_samples_at_once(monkeypatch):
    model, counts = vae(), []
    plain = model.weigh
    monkeypatch.setattr(model, "weigh", lambda *given: counts.append(given[-1]) or plain(*given))
    likelihood(model, SENTENCES, FULL, n_samples=50)
    assert counts == [20, 20, 10]
    scores = len(SENTENCES) * max(map(len, SENTENCES)) * (len(model.decoder.word_bias) + model.decoder.n_states)
    for room, wanted in ((7.5 * scores, [7] * 7 + [1]), (0.1 * scores, [1] * 50)):
        counts.clear()
        monkeypatch.setattr(evaluate, "SCORES_AT_ONCE", int(room))
        likelihood(model, SENTENCES, FULL, n_samples=50)
        assert counts == wanted


def test_each_batch_has_random_numbers_of_its_own(monkeypatch):
    """Ten copies of a sentence in ten batches are ten samples."""
    monkeypatch.setattr(evaluate, "BATCH", 1)
    states = {tuple(x[0].tolist()) for _, x, _ in drawn(vae(), [SENTENCES[3]] * 10, FULL)}
    assert len(states) > 1


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="n_samples"):
        likelihood(vae(), SENTENCES, FULL, n_samples=0)
    with pytest.raises(ValueError, match="n_samples"):
        vae().weigh(*batch_of(SENTENCES), FULL, 0)
    with pytest.raises(ValueError, match="sentences"):
        likelihood(vae(), [], FULL)


def test_sums_are_exact_where_that_is_affordable():
    model, trained = vae(), Estimator("rdp", 2)
    assert sums_for(model, trained).method == "full"
    model.decoder.n_states = EXACT_UP_TO
    assert sums_for(model, trained).method == "full"
    model.decoder.n_states += 1
    assert sums_for(model, trained) == trained


# States.


def test_states_of_all_words_are_counted():
    steps = []
    counts = state_counts(vae(), SENTENCES * 40, FULL, step=lambda: steps.append(1))
    assert counts.shape == (N_STATES,)
    assert counts.sum() == 40 * sum(map(len, SENTENCES))
    assert len(steps) == n_batches(SENTENCES * 40) == 3


def test_states_are_counted_as_often_as_they_are_likely():
    model, copies = vae(), 1500
    for sentence in (SENTENCES[1], SENTENCES[3]):
        counts = state_counts(model, [sentence] * copies, FULL)
        chance = marginals(model, sentence)
        # Neighbours go together: a count's variance is at most that of a sum of equals.
        error = len(sentence) * (chance * (1 - chance)).sum(0).div(len(sentence) * copies).sqrt()
        assert ((counts / copies - chance.sum(0)).abs() < 5 * error).all()


@pytest.mark.parametrize("size", [2, 100])
def test_states_are_drawn_for_each_sentence_once(monkeypatch, size):
    monkeypatch.setattr(evaluate, "BATCH", size)
    seen = []
    for chosen, states, lengths in drawn(vae(), SENTENCES, FULL):
        assert states.shape == (len(chosen), int(lengths.max()))
        assert lengths.tolist() == [len(SENTENCES[i]) for i in chosen]
        assert all(row[length:].eq(-1).all() for row, length in zip(states, lengths, strict=True))
        seen += chosen
    assert sorted(seen) == list(range(len(SENTENCES)))


# The model is used and not changed.


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_not_in_training_meanwhile_and_goes_on_afterwards(training):
    model, modes = vae(dropout=0.5).train(training), []
    before = {name: x.clone() for name, x in model.state_dict().items()}
    for function in (likelihood, state_counts):
        function(model, SENTENCES, FULL, step=lambda: modes.append(model.training))
        assert model.training == training
    assert modes == [False, False]
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())


@pytest.mark.parametrize("function", [likelihood, state_counts])
def test_the_model_goes_on_training_after_an_exception(function):
    model, before = vae().train(), torch.get_rng_state()

    def fail():
        raise KeyError

    with pytest.raises(KeyError):
        function(model, SENTENCES, FULL, step=fail)
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training


def test_the_model_goes_on_training_when_not_all_samples_are_taken(monkeypatch):
    monkeypatch.setattr(evaluate, "BATCH", 2)
    model, before = vae().train(), torch.get_rng_state()
    for _ in drawn(model, SENTENCES, FULL):
        break
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training
