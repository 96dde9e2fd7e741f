"""The bound of the autoencoder and its gradients, against every path of states written down."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from nn_cases import (
    EVERY,
    EXACT,
    FULL,
    LENGTHS,
    N_WORDS,
    PROBED,
    SHAPES,
    WORDS,
    Enumerated,
    Heard,
    close,
    conditionals,
    mean_is,
    one_hot,
    plain,
    vae,
    with_gradients,
    words_of,
)
from torch import nn

from tailsum.nn.decoder import Joint
from tailsum.nn.encoder import LSTMEncoder
from tailsum.nn.estimator import Estimator
from tailsum.nn.inference import CRFInference
from tailsum.nn.structured_vae import StructuredVAE, turned


@given(
    **SHAPES, rest=st.sampled_from([(), (2,), (2, 3)]), dtype=st.sampled_from([torch.float32, torch.long, torch.bool])
)
def test_turned_is_each_row_backwards_and_its_own_inverse(lengths, n, seed, rest, dtype):
    length = torch.tensor(lengths)
    x = torch.randint(9, (len(lengths), max(lengths) + seed % 2, *rest)).to(dtype)
    found = turned(x, length)
    assert found.dtype == dtype
    for row, back, count in zip(x, found, lengths, strict=True):
        assert torch.equal(back[:count], row[:count].flip(0))
        assert torch.equal(back[count:], row[count:])
    assert torch.equal(turned(found, length), x)


ESTIMATORS = [FULL, EXACT, PROBED, EVERY, *(Estimator(method, 2, 2, 2) for method in ("topk", "rdp", "tailsum"))]


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
@pytest.mark.parametrize("hard", [True, False])
def test_the_parts_of_the_bound_are_what_the_decoder_says_of_the_sample(estimator, hard):
    model = vae(4)
    heard = Heard(model.decoder)
    elbo = model.elbo(WORDS, LENGTHS, estimator, 0.6, hard)
    sample = heard.sample
    exact = estimator in (FULL, EXACT, PROBED, EVERY)
    assert sample.weights.shape == (4, 3, 4 if exact else 2)
    empty = torch.zeros(4, 3, 4).double()
    weights, prior = (empty.scatter_add(-1, sample.states, x) for x in (sample.weights, sample.chances))
    if not hard:
        assert ((weights > 0) & (weights < 1)).any()
    probes = None
    if estimator.method == "tailsum" and estimator.probes > 1:
        count = min(estimator.probes, sample.weights.shape[-1])
        assert heard.probes.states.shape == heard.probes.weights.shape == (4, 3, count)
        probes = empty.scatter_add(-1, heard.probes.states, heard.probes.weights)
        if count == sample.weights.shape[-1]:
            close(probes, prior)
    else:
        assert heard.probes is None
    for b, row in enumerate(LENGTHS.tolist()):
        assert sample.hard[b, row:].eq(-1).all()
        assert not weights[b, row:].any()
        if hard:
            close(weights[b, :row], one_hot(sample.hard[b, :row], 4))
        asked = None if probes is None else probes[b : b + 1, :row]
        said, chosen = plain(
            model.decoder, WORDS[b : b + 1, :row], weights[b : b + 1, :row], prior[b : b + 1, :row], probes=asked
        )
        close(elbo.words[b], said.sum())
        if asked is not None:
            close(asked.sum(-1), torch.ones(1, row).double())
        close(elbo.states[b], chosen.sum())
        close(prior[b, :row].sum(-1), torch.ones(row).double())
        truth = Enumerated(model, WORDS[b, :row])
        if exact:
            close(elbo.entropy[b], truth.q.entropy)
        if exact and estimator != FULL:  # each state's chances, given the states before it
            pairs = model.inference.states @ model.inference.states.mT
            scores = (
                model.inference.read(model.encoder(WORDS[b : b + 1, :row], LENGTHS[b : b + 1])[0])
                @ model.inference.states.mT
            )
            close(prior[b, :row], conditionals(scores.flip(0), pairs, sample.hard[b, :row].flip(0)).flip(0))
        elif estimator.method != "tailsum":
            assert torch.equal(prior, weights)
    close(elbo.total, elbo.words + elbo.states + elbo.entropy)


COUNT = 6000


@pytest.mark.parametrize("estimator", [FULL, EXACT, PROBED, EVERY], ids=str)
@pytest.mark.parametrize("row", [1, 3])
def test_the_mean_of_the_bound_is_that_of_all_paths(estimator, row):
    """Also of the sample's frequencies: drawn backwards, read forwards."""
    model, words = vae(3), WORDS[0, :row]
    truth, heard = Enumerated(model, words), Heard(model.decoder)
    padded = torch.tensor([*words.tolist(), 2]).expand(COUNT, -1)
    with torch.no_grad():
        elbo = model.elbo(padded, torch.full((COUNT,), row), estimator, hard=True)
    q = truth.log_q.exp()
    for found, expected, known in (
        (elbo.words, (q * truth.words).sum(), estimator == EVERY),
        (elbo.states, (q * truth.states).sum(), estimator != FULL),
        (elbo.total, truth.bound, estimator == EVERY),
    ):
        if row == 1 and known:  # all of it
            close(found, expected.expand(COUNT))
        else:
            mean_is(found, expected)
    assert truth.bound < truth.log_p
    counts = truth.place(heard.sample.hard[:, :row]).bincount(minlength=len(q)) / COUNT
    assert ((counts - q).abs() < 5 * (q * (1 - q) / COUNT).sqrt()).all()
    assert heard.sample.hard[:, row:].eq(-1).all()


def test_chances_and_probes_take_noise_out_of_the_bound():
    model, lengths = vae(4, sure=0.3), torch.full((COUNT,), 3)
    words = WORDS[0].expand(COUNT, -1)
    with torch.no_grad():
        noisy, probed, calm = (model.elbo(words, lengths, each, hard=True) for each in (FULL, PROBED, EVERY))
    assert 0 < calm.states.var() < 0.8 * noisy.states.var()
    assert 0 < calm.words.var() < 0.9 * probed.words.var()
    assert probed.words.var() < 0.8 * noisy.words.var()


def test_the_bound_is_below_the_likelihood():
    for seed, row in itertools.product(range(5), (1, 2, 4)):
        truth = Enumerated(vae(3, seed), words_of([row], seed)[0])
        gap = (
            truth.log_q.exp() * (truth.log_q - (truth.log_joint - truth.log_p))
        ).sum()  # the divergence of q from p(x | y)
        assert gap > 0
        close(truth.log_p - truth.bound, gap)


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_words_are_dropped_from_what_is_read_only(share):
    model, words = vae(3), 1 + torch.randint(2, (500, 3))
    heard = Heard(model.decoder)
    model.elbo(words, torch.full((500,), 3), FULL, word_dropout=share)
    assert torch.equal(heard.words, words)
    dropped = heard.seen != words
    assert not heard.seen[dropped].any()
    assert (dropped.double().mean() - share).abs() <= 5 * math.sqrt(share * (1 - share) / dropped.numel())


@pytest.mark.parametrize("estimator", [FULL, EXACT], ids=str)
def test_the_gradient_of_the_entropy_is_that_of_all_paths(estimator):
    model = vae(3)
    expected = torch.stack([Enumerated(model, WORDS[b, :row]).q.entropy for b, row in enumerate(LENGTHS)])
    factor = torch.tensor([1.0, -2.0, 0.5, 3.0]).double()
    found = model.elbo(WORDS, LENGTHS, estimator).entropy
    gradients = [with_gradients(model, factor * x) for x in (found, expected)]
    assert gradients[0][0].any()
    for a, b in zip(*gradients, strict=True):
        close(a, b)


def test_the_gradient_of_the_words_in_the_decoder_is_that_at_the_sample():
    model = vae(3)
    heard = Heard(model.decoder)
    elbo = model.elbo(WORDS, LENGTHS, FULL, hard=True)
    total = torch.zeros(()).double()
    for b, row in enumerate(LENGTHS.tolist()):
        said, chosen = plain(model.decoder, WORDS[b : b + 1, :row], one_hot(heard.sample.hard[b : b + 1, :row], 3))
        total = total + 2 * said.sum() + chosen.sum()
    found = with_gradients(model.decoder, 2 * elbo.words + elbo.states)
    for a, b in zip(found, with_gradients(model.decoder, total), strict=True):
        close(a, b)


@pytest.mark.parametrize("estimator", [FULL, EXACT], ids=str)
def test_the_weight_of_the_prior_is_on_the_posterior_alone(estimator):
    """One word: log p(state) has no way to the posterior but through its chances, whose gradient is scaled."""
    model, words, lengths = vae(3), torch.tensor([[2], [1]]), torch.ones(2).long()
    values, gradients = [], []
    for weight in (1.0, 0.25, 0.0):
        torch.manual_seed(4)
        found = model.elbo(words, lengths, estimator, hard=True, prior_weight=weight).states
        values.append(found.detach())
        of = {name: p.new_zeros(p.shape) for name, p in model.named_parameters()}
        kept = dict(model.named_parameters())
        grads = torch.autograd.grad(found.sum(), list(kept.values()), allow_unused=True)
        gradients.append(of | {name: g for name, g in zip(kept, grads, strict=True) if g is not None})
    whole, quarter, none = gradients
    for name in whole:
        share = 1.0 if name.startswith("decoder") else 0.25
        close(quarter[name], share * whole[name])
        close(none[name], whole[name] if name.startswith("decoder") else torch.zeros_like(whole[name]))
    assert whole["inference.states"].any()
    assert all(torch.equal(values[0], value) for value in values)


@pytest.mark.parametrize("hard", [True, False])
def test_the_gradient_of_one_words_expected_probability_is_exact_by_all_states(hard):
    model, words = vae(4), torch.tensor([[2], [1], [0]])
    truths = [Enumerated(model, row) for row in words]
    expected = torch.stack([(truth.log_q.exp() * truth.words).sum() for truth in truths])
    found = model.elbo(words, torch.ones(3).long(), EVERY, hard=hard).words
    close(found, expected)
    gradients = [with_gradients(model, x) for x in (found, expected)]
    assert gradients[0][0].any()
    for a, b in zip(*gradients, strict=True):
        close(a, b)


@pytest.mark.parametrize("probes", [2, 3])
def test_the_gradient_of_one_words_expected_probability_by_probes_has_the_exact_one_as_mean(probes):
    model = vae(5, sure=0.3)
    reads = list[torch.Tensor]()
    model.inference.read.register_forward_hook(lambda _module, _given, read: reads.append(read))
    words = WORDS[0, :1].expand(COUNT, -1)
    estimator = Estimator("tailsum", 99, probes=probes)
    elbo = model.elbo(words, torch.ones(COUNT).long(), estimator, hard=True)
    found = torch.autograd.grad(elbo.words.sum(), reads[0])[0][:, 0]
    one = reads[0][0, 0].detach().requires_grad_()
    said = Enumerated(model, WORDS[0, :1]).words.detach()
    expected = torch.autograd.grad(((model.inference.states @ one).softmax(0) * said).sum(), one)[0]
    assert expected.abs().min() > 1e-3
    for i, value in enumerate(expected):
        mean_is(found[:, i], value)
        assert found[:, i].std() / math.sqrt(COUNT) < 0.1 * expected.abs().max()


@pytest.mark.parametrize("hard", [True, False])
def test_the_gradient_of_one_states_expected_probability_is_exact(hard):
    model, words = vae(4), torch.tensor([[2], [1], [0]])
    truths = [Enumerated(model, row) for row in words]
    expected = torch.stack([(truth.log_q.exp() * truth.states).sum() for truth in truths])
    found = model.elbo(words, torch.ones(3).long(), EXACT, hard=hard).states
    close(found, expected)
    for a, b in zip(*(with_gradients(model, x) for x in (found, expected)), strict=True):
        close(a, b)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_padding_changes_no_gradient_of_the_bound(estimator):
    model, lengths = vae(4), torch.tensor([2, 1])
    words = torch.tensor([[2, 1, 0, 0], [1, 0, 0, 0]])
    found = []
    for y in (words, torch.tensor([[2, 1, 2, 1], [1, 2, 2, 2]])):
        torch.manual_seed(5)
        elbo = model.elbo(y, lengths, estimator)
        found.append([*elbo, *with_gradients(model, elbo.total)])
    for a, b in zip(*found, strict=True):
        assert torch.isfinite(a).all()
        close(a, b)


@pytest.mark.parametrize("estimator", [FULL, EXACT, Estimator("tailsum", 2, 2)], ids=str)
def test_lengths_may_be_a_list(estimator):
    model = vae(4)

    def found(lengths):
        torch.manual_seed(0)
        return (
            *model.elbo(WORDS, lengths, estimator),
            model.weigh(WORDS, lengths, estimator, 3).log_weights,
            model.posterior(WORDS, lengths).log_partition(),
        )

    for one, other in zip(found(LENGTHS.tolist()), found(LENGTHS), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("lengths", [[3, 1], [3, 1, 2, 4], [3, 1, 2, 0], [3.0, 1.0, 2.0, 3.0]])
def test_bad_lengths_in_a_list_are_named(lengths, unchecked):
    with pytest.raises(ValueError, match="lengths"):
        vae(4).elbo(WORDS, lengths, FULL)


class Uniform(nn.Module):
    """A decoder of one's own: every word and every state is as likely as any other."""

    def __init__(self, n_states):
        super().__init__()
        self.n_states = n_states

    def forward(self, words, lengths, sample, seen=None, probes=None):
        zeros = torch.zeros(sample.weights.shape[:-2])
        return Joint(zeros - lengths * math.log(N_WORDS), zeros - lengths * math.log(self.n_states))


def test_a_decoder_of_ones_own():
    model = StructuredVAE(LSTMEncoder(N_WORDS, 4), CRFInference(4, 5, 3), Uniform(5))
    elbo = model.elbo(WORDS, LENGTHS.tolist(), FULL)
    close(elbo.words, -LENGTHS * math.log(N_WORDS))
    assert model.weigh(WORDS, LENGTHS.tolist(), FULL, 2).log_weights.shape == (2, 4)


@pytest.mark.parametrize("decoder", [nn.Linear(3, 3), lambda *_: None, None])
def test_a_foreign_decoder_is_told_what_it_lacks(decoder, unchecked):
    with pytest.raises(ValueError, match=r"decoder must have n_states.*\(words, lengths, sample, seen, probes\).*got "):
        StructuredVAE(LSTMEncoder(N_WORDS, 4), CRFInference(4, 5, 3), decoder)
