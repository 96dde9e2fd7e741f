"""The parts of the autoencoder and its bound, against every path of states and every sentence written down."""

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from enumeration import ChainTruth
from tailsum import LinearChain, LocalGlobal, TopK
from tailsum.apps.text import Vocabulary
from tailsum.apps.vae.build import build, learned, load
from tailsum.apps.vae.settings import Settings
from tailsum.nn.decoder import Decoder, Probes, as_sample
from tailsum.nn.encoder import LSTMEncoder, TransformerEncoder
from tailsum.nn.estimator import Estimator
from tailsum.nn.inference import CRFInference
from tailsum.nn.pretrained import PretrainedEncoder
from tailsum.nn.structured_vae import StructuredVAE, turned
from tailsum.structure.base import RelaxedSample

N_WORDS, END = 3, 1
FULL, EXACT = Estimator("full", 2), Estimator("tailsum", 99)
PROBED, EVERY = (Estimator("tailsum", 99, probes=m) for m in (2, 99))
SHAPES = {
    "lengths": st.lists(st.integers(1, 4), min_size=1, max_size=3),
    "n": st.integers(2, 4),
    "seed": st.integers(0, 99),
}


def close(found, expected, tolerance=1e-9):
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


def wild(module, seed=0):
    """The same module in double precision, with weights large enough that everything matters."""
    generator = torch.Generator().manual_seed(seed)
    for weight in module.parameters():
        weight.data = 0.8 * torch.randn(weight.shape, generator=generator, dtype=torch.double)
    return module.double()


def decoder_of(n_states, seed=0):
    return wild(Decoder(N_WORDS, n_states, size=4, state_size=3, hidden=5), seed)


def vae(n_states=3, seed=0, sure=1.0):
    """A model; less `sure` a posterior has more paths with a chance, so that means over samples come close sooner."""
    model = wild(StructuredVAE(LSTMEncoder(N_WORDS, 4), CRFInference(4, n_states, 3), decoder_of(n_states)), seed)
    model.inference.states.data *= sure
    return model


def words_of(lengths, seed=0, steps=None):
    """Random words, in the padding too."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(N_WORDS, (len(lengths), steps or max(lengths)), generator=generator)


def paths(n, length):
    return torch.tensor(list(itertools.product(range(n), repeat=length)))


def one_hot(states, n):
    return nn.functional.one_hot(states, n).double()


def plain(decoder, words, weights, prior=None, seen=None, probes=None):
    """The log-probabilities of words `[R, L]` and of states with weights `[R, L, N]`, each position on its own `[R, L]`.

    With `probes [R, L, N]`, weights too, a word's is the mean by them of what it is with each state.
    """
    table, rows = decoder.states.weight, len(words)
    ours, theirs = (getattr(decoder.lstm, f"weight_{x}_l0") for x in ("ih", "hh"))
    bias = decoder.lstm.bias_ih_l0 + decoder.lstm.bias_hh_l0
    read, hidden = decoder.start.expand(rows, -1), torch.zeros(rows, decoder.lstm.hidden_size).double()
    cell, said, chosen = hidden, [], []
    for t in range(words.shape[1]):
        i, f, g, o = (read @ ours.mT + hidden @ theirs.mT + bias).chunk(4, -1)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        hidden = o.sigmoid() * cell.tanh()
        mixed = weights[:, t] @ table
        states = (decoder.to_state(hidden) @ table.mT + decoder.state_bias).log_softmax(-1)
        chosen.append(((weights if prior is None else prior)[:, t] * states).sum(-1))

        def say(state, hidden=hidden, t=t):
            scores = decoder.to_word(torch.cat((hidden, state), -1)) @ decoder.words.weight.mT + decoder.word_bias
            return scores.log_softmax(-1)[torch.arange(rows), words[:, t]]

        if probes is None:
            said.append(say(mixed))
        else:
            said.append(sum(probes[:, t, i] * say(state.expand(rows, -1)) for i, state in enumerate(table)))
        read = torch.cat((decoder.words.weight[(words if seen is None else seen)[:, t]], mixed), -1)
    return torch.stack(said, -1), torch.stack(chosen, -1)


class Enumerated:
    """All paths of the states of one sentence `[L]`: their probabilities by q, and by p together with the words."""

    def __init__(self, model, words):
        states = model.inference.states
        context = model.inference.read(model.encoder(words[None], torch.tensor([len(words)]))[0])
        pairs = (states @ states.mT).expand(len(words) - 1, -1, -1)
        self.q = ChainTruth(context @ states.mT, pairs)
        self.log_q = self.q.scores.log_softmax(0)
        rows = words.expand(len(self.q.paths), -1)
        said, chosen = plain(model.decoder, rows, one_hot(self.q.paths, len(states)))
        self.words, self.states = said.sum(-1), chosen.sum(-1)
        self.log_joint = self.words + self.states
        self.log_p = self.log_joint.logsumexp(0)
        self.bound = (self.log_q.exp() * (self.log_joint - self.log_q)).sum()

    def place(self, states):
        """The place of each path `[R, L]` among all."""
        return (states * self.q.n ** torch.arange(states.shape[-1] - 1, -1, -1)).sum(-1)


class Heard:
    """What a decoder was last given."""

    words: Any
    sample: Any
    seen: Any
    probes: Any

    def __init__(self, decoder):
        decoder.register_forward_pre_hook(self.hear)

    def hear(self, _, given):
        self.words, _, self.sample, self.seen, self.probes = (*given, None, None)[:5]


def mean_is(samples, expected, deviations=5.0):
    """Whether the mean of samples is what it should be, by its own standard error."""
    error = samples.std() / math.sqrt(len(samples))
    assert error > 0
    assert (samples.mean() - expected).abs() < deviations * error, (samples.mean(), expected, error)


# The decoder.


def weights_of(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double().softmax(-1)


@given(**SHAPES, samples=st.sampled_from([(), (1,), (3,), (2, 2)]), soft=st.booleans())
@settings(max_examples=40)
def test_the_decoder_is_a_loop_over_positions_and_samples(lengths, n, seed, samples, soft):
    decoder, words, length = decoder_of(n), words_of(lengths, seed), torch.tensor(lengths)
    weights = weights_of(*samples, *words.shape, n, seed=seed)
    everything = torch.arange(n).expand(*words.shape, n)
    hard = weights.argmax(-1)
    sample = RelaxedSample(weights, everything, hard) if soft else as_sample(hard, torch.double)
    joint = decoder(words, length, sample)
    assert joint.words.shape == joint.states.shape == (*samples, len(lengths))
    weights = weights if soft else one_hot(hard, n)
    for s in itertools.product(*map(range, samples)):
        for b, row in enumerate(lengths):
            said, chosen = plain(decoder, words[b : b + 1, :row], weights[(*s, b)][None, :row])
            close(joint.words[(*s, b)], said.sum())
            close(joint.states[(*s, b)], chosen.sum())
            close(joint.total[(*s, b)], said.sum() + chosen.sum())


@given(**SHAPES, samples=st.sampled_from([(), (2,), (2, 2)]), m=st.integers(1, 5))
@settings(max_examples=20)
def test_a_word_is_expected_over_the_probes_of_its_own_position(lengths, n, seed, samples, m):
    """What is read of the positions before stays the sample, and so does what is said of the states."""
    decoder, words, length = decoder_of(n), words_of(lengths, seed), torch.tensor(lengths)
    shape = (*samples, *words.shape)
    hard, states = torch.randint(n, shape), torch.randint(n, (*shape, m))  # some states more than once
    weights = weights_of(*shape, m, seed=seed).requires_grad_()
    sample = as_sample(hard, torch.double)
    joint = decoder(words, length, sample, probes=Probes(states, weights))
    close(joint.states, decoder(words, length, sample).states)
    spread = torch.zeros(*shape, n).double().scatter_add(-1, states, weights)
    expected = torch.zeros(*samples, len(lengths)).double()
    for s in itertools.product(*map(range, samples)):
        for b, row in enumerate(lengths):
            chosen, asked = one_hot(hard[(*s, b)][None, :row], n), spread[(*s, b)][None, :row]
            said, _ = plain(decoder, words[b : b + 1, :row], chosen, probes=asked)
            expected[(*s, b)] = said.sum()
    close(joint.words, expected)
    *found, of_weights = with_gradients(decoder, joint.words, weights)
    for a, b in zip(found, with_gradients(decoder, expected), strict=True):
        close(a, b)
    # In the weights: how much more each state says of the word than the sampled one does.
    own = decoder(words, length, sample, probes=Probes(hard[..., None], torch.ones(*shape, 1).double()))
    close(own.words, decoder(words, length, sample).words)
    same = states == hard[..., None]
    assert of_weights[same].abs().sum() < 1e-12
    inside = (torch.arange(words.shape[1]) < length[:, None])[..., None].expand_as(states)
    assert not of_weights[~inside].any()
    assert (of_weights[inside & ~same].abs() > 1e-9).all()


@given(**SHAPES, k=st.integers(1, 3))
@settings(max_examples=20)
def test_weights_on_some_states_are_weights_on_all_that_are_zero_elsewhere(lengths, n, seed, k):
    decoder, words, length = decoder_of(n), words_of(lengths, seed), torch.tensor(lengths)
    some, prior = weights_of(2, *words.shape, k, seed=seed), weights_of(2, *words.shape, k, seed=seed + 1)
    kept = torch.randint(n, (*words.shape, k))  # copies too, as an unbiased sketch has them
    hard = torch.zeros(2, *words.shape).long()
    spread = [
        torch.zeros(2, *words.shape, n).double().scatter_add(-1, kept.expand(2, -1, -1, -1), x) for x in (some, prior)
    ]
    found = decoder(words, length, RelaxedSample(some, kept, hard, prior))
    everything = torch.arange(n).expand(*words.shape, n)
    expected = decoder(words, length, RelaxedSample(spread[0], everything, hard, spread[1]))
    for a, b in zip(found, expected, strict=True):
        close(a, b)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_words_and_states_are_a_distribution(steps):
    """All sentences that have ended, and the beginnings of all that have not, with all their states, in one batch."""
    n, sentences = 2, list[tuple[int, ...]]()
    for length in range(1, steps + 1):
        for start in itertools.product([w for w in range(N_WORDS) if w != END], repeat=length - 1):
            last = range(N_WORDS) if length == steps else [END]
            sentences += [(*start, word) for word in last]
    rows = [(y, x) for y in sentences for x in itertools.product(range(n), repeat=len(y))]
    words, states = (torch.tensor([[*row[i], *[0] * (steps - len(row[i]))] for row in rows]) for i in (0, 1))
    lengths = torch.tensor([len(y) for y, _ in rows])
    joint = decoder_of(n)(words, lengths, as_sample(states, torch.double))
    close(joint.total.exp().sum(), torch.tensor(1.0).double())
    assert joint.total.exp().max() < 0.9


def with_gradients(module, value, *others):
    return torch.autograd.grad(value.sum(), [*module.parameters(), *others], allow_unused=True, materialize_grads=True)


@given(**SHAPES)
@settings(max_examples=20)
def test_padding_and_others_in_the_batch_change_nothing_for_the_decoder(lengths, n, seed):
    decoder, length = decoder_of(n), torch.tensor(lengths)
    words, others = words_of(lengths, seed, 5), words_of(lengths, seed + 1, 5)
    inside = torch.arange(5) < length[:, None]
    weights = [weights_of(len(lengths), 5, n, seed=seed + i) for i in (0, 1)]
    everything = torch.arange(n).expand(len(lengths), 5, n)
    found = []
    for spoilt in (False, True):
        y = torch.where(inside, words, others) if spoilt else words
        w = torch.where(inside[..., None], weights[0], weights[spoilt]).requires_grad_()
        joint = decoder(y, length, RelaxedSample(w, everything, w.argmax(-1)))
        total = joint.words * 2 + joint.states
        *gradients, of_weights = with_gradients(decoder, total, w)
        assert not of_weights[~inside].any()
        found.append([joint.words, joint.states, of_weights, *gradients])
    alone = [torch.zeros_like(x) for x in decoder.parameters()]
    for b, row in enumerate(lengths):
        w = weights[0][b : b + 1, :row].clone().requires_grad_()
        joint = decoder(
            words[b : b + 1, :row], length[b : b + 1], RelaxedSample(w, everything[b : b + 1, :row], w.argmax(-1))
        )
        *gradients, of_weights = with_gradients(decoder, joint.words * 2 + joint.states, w)
        close(torch.cat((joint.words, joint.states)), torch.stack([x[b] for x in found[0][:2]]))
        close(of_weights[0], found[0][2][b, :row])
        alone = [a + b for a, b in zip(alone, gradients, strict=True)]
    for a, b in zip(found[0], found[1], strict=True):
        close(a, b)
    for a, b in zip(found[0][3:], alone, strict=True):
        close(a, b)


@given(**SHAPES)
@settings(max_examples=20)
def test_seen_words_are_read_and_the_words_predicted(lengths, n, seed):
    decoder, words, length = decoder_of(n), words_of(lengths, seed), torch.tensor(lengths)
    seen, weights = words_of(lengths, seed + 1), weights_of(*words.shape, n, seed=seed)
    sample = RelaxedSample(weights, torch.arange(n).expand(*words.shape, n), weights.argmax(-1))
    joint = decoder(words, length, sample, seen)
    for b, row in enumerate(lengths):
        said, chosen = plain(decoder, words[b : b + 1, :row], weights[b : b + 1, :row], seen=seen[b : b + 1, :row])
        close(joint.words[b], said.sum())
        close(joint.states[b], chosen.sum())
    same = decoder(words, length, sample, words)
    assert torch.equal(torch.stack(same), torch.stack(decoder(words, length, sample)))


@given(**SHAPES, share=st.floats(0, 1))
@settings(max_examples=20)
def test_the_probability_of_states_is_linear_in_the_chances_given(lengths, n, seed, share):
    decoder, words, length = decoder_of(n), words_of(lengths, seed), torch.tensor(lengths)
    weights, first, second = (weights_of(*words.shape, n, seed=seed + i) for i in range(3))
    everything = torch.arange(n).expand(*words.shape, n)

    def joint(chances):
        return decoder(words, length, RelaxedSample(weights, everything, weights.argmax(-1), chances))

    mixed = joint(share * first + (1 - share) * second)
    close(mixed.states, share * joint(first).states + (1 - share) * joint(second).states)
    assert torch.equal(mixed.words, joint(None).words)
    assert torch.equal(joint(weights).states, joint(None).states)
    for b, row in enumerate(lengths):
        _, chosen = plain(decoder, words[b : b + 1, :row], weights[b : b + 1, :row], first[b : b + 1, :row])
        close(joint(first).states[b], chosen.sum())


def test_the_probability_of_one_state_is_linear_in_its_weights():
    """Of more, weights of one position are also read at the next."""
    decoder, words, length = decoder_of(4), torch.tensor([[2]]), torch.tensor([1])
    everything = torch.arange(4).expand(1, 1, 4)
    a, b = (weights_of(1, 1, 4, seed=i) for i in (0, 1))
    found = [
        decoder(words, length, RelaxedSample(w, everything, w.argmax(-1))).states for w in (a, b, 0.3 * a + 0.7 * b)
    ]
    close(found[2], 0.3 * found[0] + 0.7 * found[1])


# Samples of states.


def chain_of(lengths, n, seed, dtype=torch.double, forbidden=False):
    generator = torch.Generator().manual_seed(seed)
    emission = torch.randn(len(lengths), max(lengths), n, generator=generator).to(dtype)
    if forbidden:
        emission[..., -1] = torch.where(torch.arange(max(lengths)) % 2 == 0, -math.inf, emission[..., -1])
    transition = torch.randn(n, n, generator=generator).to(dtype)
    return emission.requires_grad_(), transition.requires_grad_(), torch.tensor(lengths)


def conditionals(nodes, pairs, hard):
    """`q(x_t | x_t+1 .. x_L = hard)` of one sequence `[L, N]`."""
    truth = ChainTruth(nodes, pairs.expand(len(nodes) - 1, -1, -1))
    rows = []
    for t in range(len(nodes)):
        fits = (truth.paths[:, t + 1 :] == hard[t + 1 :]).all(-1)
        mass = torch.stack([truth.probability[fits & (truth.paths[:, t] == i)].sum() for i in range(truth.n)])
        rows.append(mass / mass.sum())
    return torch.stack(rows)


@given(
    **SHAPES,
    samples=st.sampled_from([(), (2,), (2, 2)]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    hard=st.booleans(),
    forbidden=st.booleans(),
)
@settings(max_examples=40)
def test_chances_are_those_that_a_state_was_drawn_by(lengths, n, seed, samples, dtype, hard, forbidden):
    emission, transition, length = chain_of(lengths, n, seed, dtype, forbidden)
    torch.manual_seed(seed)
    sample = LinearChain(emission, transition, length).rsample(0.7, hard, sample_shape=samples)
    assert sample.chances is not None
    assert sample.chances.dtype == dtype
    assert sample.chances.shape == sample.weights.shape == (*samples, *emission.shape)
    torch.manual_seed(seed + 1)
    factor = torch.randn(sample.chances.shape).to(dtype)
    tolerance, total = 1e-9 if dtype == torch.double else 1e-5, torch.zeros(()).to(dtype)
    for s in itertools.product(*map(range, samples)):
        for b, row in enumerate(lengths):
            expected = conditionals(emission[b, :row], transition, sample.hard[(*s, b)][:row])
            close(sample.chances[(*s, b)][:row], expected.to(dtype), tolerance)
            assert not sample.chances[(*s, b)][row:].any()
            assert (sample.chances[(*s, b)][range(row), sample.hard[(*s, b)][:row]] > 0).all()
            total = total + (factor[(*s, b)][:row] * expected).sum()
    inside = (torch.arange(max(lengths)) < length[:, None]).to(dtype)
    close(sample.chances.sum(-1), inside.expand(*samples, -1, -1), tolerance)
    if not forbidden:
        found = torch.autograd.grad(
            (factor * sample.chances).sum(), (emission, transition), materialize_grads=True, allow_unused=True
        )
        expected = torch.autograd.grad(total, (emission, transition), materialize_grads=True, allow_unused=True)
        for a, b in zip(found, expected, strict=True):
            close(a, b, 10 * tolerance)


@given(**SHAPES, k=st.integers(1, 3))
@settings(max_examples=20)
def test_chances_in_a_sketch_are_those_of_its_weighted_states(lengths, n, seed, k):
    chain = LinearChain(*chain_of(lengths, n, seed)).sketch(
        min(k, n - 1), generator=torch.Generator().manual_seed(seed)
    )
    sample = chain.rsample(hard=True)
    assert sample.chances is not None
    nodes, pairs = chain.terms()
    scores, pairs = nodes.scores + chain.log_weight, pairs.block().expand(len(lengths), -1, -1, -1)
    own = sample.weights.argmax(-1)
    close(sample.states.gather(-1, own[..., None])[..., 0] * (sample.weights.sum(-1) > 0), sample.hard)
    for b, row in enumerate(lengths):
        truth = ChainTruth(scores[b, :row], pairs[b][: row - 1])
        for t in range(row):
            fits = (truth.paths[:, t + 1 :] == own[b, t + 1 : row]).all(-1)
            mass = torch.stack([truth.probability[fits & (truth.paths[:, t] == i)].sum() for i in range(truth.n)])
            close(sample.chances[b, t], mass / mass.sum())


MIXED = [
    ((2, 3), (2, 3), "own"),
    ((2, 3), (2, 3), "shared"),
    ((2, 3), (2, 3), "shared by sentences"),
    ((2, 3), (2, 3), "shared by positions"),
    ((2, 3), (2, 3), "the same, written out"),
    ((1, 3), (1, 3), "own"),
    ((1, 3), (1, 3), "shared"),
    ((2, 1), (2, 1), "own"),
    ((1, 1), (1, 1), "own"),
    ((3,), (3,), "own"),
    ((3,), (3,), "shared"),
    ((1,), (1,), "own"),
    ((4, 2, 3), (2, 3), "own"),
    ((4, 2, 3), (2, 3), "shared"),
    ((4, 1, 3), (1, 3), "own"),
    ((5, 4, 1, 3), (1, 3), "shared"),
    ((1, 2, 3), (2, 3), "own"),
]


@pytest.mark.parametrize(("lead", "of_states", "kind"), MIXED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mixtures_are_those_of_the_gathered_embeddings(lead, of_states, kind, dtype):
    n, k = 7, 4
    drawn = torch.randint(n, (*of_states, k))
    states = {
        "own": lambda: drawn,
        "shared": lambda: drawn.reshape(-1, k)[0].expand(*of_states, k),
        "shared by sentences": lambda: drawn[:1].expand(*of_states, k),
        "shared by positions": lambda: drawn[:, :1].expand(*of_states, k),
        "the same, written out": lambda: drawn[:1, :1].expand(*of_states, k).contiguous(),
    }[kind]()
    weights = torch.randn(*lead, k, dtype=dtype).softmax(-1).requires_grad_()
    embeddings, factor = torch.randn(n, 5, dtype=dtype, requires_grad=True), torch.randn(*lead, 5, dtype=dtype)
    found = RelaxedSample(weights, states, None).mix(embeddings)
    expected = (weights[..., None] * embeddings[states]).sum(-2)
    assert found.shape == (*lead, 5)
    close(found, expected, 1e-5)
    of = [torch.autograd.grad((x * factor).sum(), (weights, embeddings)) for x in (found, expected)]
    for a, b in zip(*of, strict=True):
        close(a, b, 1e-5)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("kept", [None, 2])
def test_mixtures_of_what_a_chain_gives(batch, kept):
    chain = LinearChain(*chain_of([3] * batch, 4, 0))
    sample = (chain if kept is None else chain.sketch(kept)).rsample(hard=True, sample_shape=(3,))
    table = torch.randn(4, 5).double()
    close(sample.mix(table), table[sample.hard])


# The bound.


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


LENGTHS = torch.tensor([3, 1, 2, 3])
WORDS = torch.tensor([[2, 0, 1], [1, 2, 0], [0, 1, 2], [2, 2, 1]])
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
        assert not sample.hard[b, row:].any()
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
    assert not heard.sample.hard[:, row:].any()


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


# Importance weights.


def test_importance_weights_are_those_of_their_paths():
    """So that, weighted by the chance of each path, they add up to the probability of the words."""
    model, lengths = vae(3, sure=0.3), torch.tensor([3, 2])
    heard = Heard(model.decoder)
    weighed = model.weigh(WORDS[:2], lengths, FULL, 3000)
    assert weighed.log_weights.shape == (3000, 2)
    for b, row in enumerate(lengths.tolist()):
        truth = Enumerated(model, WORDS[b, :row])
        place = truth.place(heard.sample.hard[:, b, :row])
        close(weighed.log_weights[:, b], (truth.log_joint - truth.log_q)[place], 1e-5)
        found = torch.full_like(truth.log_q, math.nan).scatter(0, place, weighed.log_weights[:, b])
        assert not found.isnan().any()
        close((found + truth.log_q).logsumexp(0), truth.log_p, 1e-5)
        counts = place.bincount(minlength=len(found)) / 3000
        q = truth.log_q.exp()
        assert ((counts - q).abs() < 5 * (q * (1 - q) / 3000).sqrt()).all()
        expected = [x[place].mean() for x in (truth.words, truth.states, -truth.log_q)]
        close(torch.stack([x[b] for x in weighed.bound]), torch.stack(expected), 1e-5)
    assert not weighed.log_weights.requires_grad


def test_importance_weights_in_double_precision_are_as_precise():
    """A rounding to single precision in between would show."""
    model = vae(3)
    heard = Heard(model.decoder)
    weighed = model.weigh(WORDS[:1], LENGTHS[:1], FULL, 20)
    truth = Enumerated(model, WORDS[0])
    close(weighed.log_weights[:, 0], (truth.log_joint - truth.log_q)[truth.place(heard.sample.hard[:, 0])], 1e-11)


SKETCHED = [Estimator("rdp", 2), Estimator("rdp", 3), Estimator("rdp", 4, drawn=1), Estimator("tailsum", 2, 2)]


@pytest.mark.parametrize(("drawn", "expected"), [(None, 3), (1, 1), (4, 4), (5, 5)])
def test_so_many_states_are_drawn_and_the_others_are_the_best(drawn, expected):
    model = vae(12)
    chain = model.posterior(WORDS[:1], LENGTHS[:1])
    best = chain.sketch(proposal=LocalGlobal(), selection=TopK(5)).states[0]
    sketch = Estimator("rdp", 5, drawn=drawn).sketch(chain)
    top = 5 - expected
    assert torch.equal(sketch.states[0, :, :top], best[:, :top])
    assert (sketch.log_weight[0, :, :top] == 0).all()
    assert not (sketch.states[0, :, top:, None] == best[:, None, :top]).any()
    assert (sketch.log_weight[0, :, top:] != 0).all()


@pytest.mark.parametrize("estimator", SKETCHED, ids=str)
@pytest.mark.parametrize("row", [1, 3])
def test_importance_weights_from_a_sketch_have_the_probability_of_the_words_as_mean(estimator, row):
    model, count = vae(5, sure=0.3), 20_000
    truth = Enumerated(model, WORDS[0, :row])
    weighed = model.weigh(WORDS[0].expand(count, -1), torch.full((count,), row), estimator, 1)
    mean_is((weighed.log_weights[0] - truth.log_p).exp(), 1.0)


def test_importance_weights_from_the_best_states_miss_the_others():
    model, estimator = vae(5, sure=0.3), Estimator("topk", 3)
    truth = Enumerated(model, WORDS[0])
    small = estimator.sketch(model.posterior(WORDS[:1], LENGTHS[:1]))
    kept = [row.tolist() for row in small.states[0]]
    reached = torch.tensor(list(itertools.product(*kept)))
    part = (truth.log_joint[truth.place(reached)].logsumexp(0) - truth.log_p).exp()
    assert part < 0.95
    weighed = model.weigh(WORDS[0].expand(5000, -1), torch.full((5000,), 3), estimator, 1)
    mean_is((weighed.log_weights[0] - truth.log_p).exp(), part)


# Encoders.

ENCODERS = {
    "lstm": lambda: LSTMEncoder(N_WORDS, 4),
    "transformer": lambda: TransformerEncoder(N_WORDS, 8, longest=6),
}


@pytest.mark.parametrize("kind", ENCODERS)
@given(lengths=SHAPES["lengths"], seed=SHAPES["seed"])
@settings(max_examples=15)
def test_padding_and_others_in_the_batch_change_nothing_for_an_encoder(kind, lengths, seed):
    encoder, length = wild(ENCODERS[kind](), seed), torch.tensor(lengths)
    inside = torch.arange(5) < length[:, None]
    words = words_of(lengths, seed, 5)
    spoilt = torch.where(inside, words, words_of(lengths, seed + 1, 5))
    factor = torch.randn(len(lengths), 5, encoder.size).double() * inside[..., None]
    results = []
    for y in (words, spoilt):
        read = encoder(y, length)
        assert read.shape == (len(lengths), 5, encoder.size)
        assert read.isfinite().all()
        results.append([read[inside], *with_gradients(encoder, factor * read)])
    alone, gradients = list[torch.Tensor](), [torch.zeros_like(x) for x in encoder.parameters()]
    for b, row in enumerate(lengths):
        read = encoder(words[b : b + 1, :row], length[b : b + 1])
        alone.append(read[0])
        each = with_gradients(encoder, factor[b : b + 1, :row] * read)
        gradients = [a + b for a, b in zip(gradients, each, strict=True)]
    for found in (*results[1:], [torch.cat(alone), *gradients]):
        for a, b in zip(results[0], found, strict=True):
            close(a, b)
    encoder.eval()  # another path through torch
    with torch.no_grad():
        close(encoder(spoilt, length)[inside], results[0][0])


@pytest.mark.parametrize("kind", ENCODERS)
def test_a_word_is_known_by_all_of_its_sentence(kind):
    encoder = wild(ENCODERS[kind]())
    read = encoder(torch.tensor([[2, 0, 0, 1], [1, 0, 0, 1], [2, 0, 0, 2]]), torch.tensor([4, 4, 4]))
    assert (read[1:, 1:3] - read[0, 1:3]).abs().amax(-1).min() > 1e-6
    assert (read[0, 1] - read[0, 2]).abs().max() > 1e-6  # and by its place


def test_models_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match="must have equally many states: got 3 and 4"):
        StructuredVAE(LSTMEncoder(N_WORDS, 4), CRFInference(4, 3, 3), decoder_of(4))


def test_bad_encoders_and_sentences_are_named():
    with pytest.raises(ValueError, match=r"size must be even.* 5"):
        LSTMEncoder(N_WORDS, 5)
    with pytest.raises(ValueError, match=r"at most 3 .* got 4"):
        TransformerEncoder(N_WORDS, 8, longest=3)(torch.zeros(1, 4).long(), torch.tensor([2]))
    for size in (5, 6):
        with pytest.raises(ValueError, match=f"size.* {size}"):
            TransformerEncoder(N_WORDS, size)


@pytest.mark.parametrize(
    "bad", [{"method": "sum"}, {"kept": 1}, {"landmarks": 0}, {"probes": 0}, {"drawn": 0}, {"drawn": 5}, {"drawn": 1.5}]
)
def test_an_estimator_names_bad_arguments(bad, unchecked):
    with pytest.raises(ValueError, match=next(iter(bad))):
        Estimator(**{"method": "rdp", "kept": 4, **bad})


# A model from settings.

VOCABULARY = Vocabulary(("<unk>", "<end>", "a"))


def built(**given):
    return build(Settings(**{"states": 4, "size": 8, "state_size": 3, "hidden": 5, "longest": 5, **given}), VOCABULARY)


@pytest.mark.parametrize("encoder", ["lstm", "transformer"])
def test_a_model_follows_from_its_seed(encoder):
    before = torch.get_rng_state()
    first = built(encoder=encoder)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(7)
    again, other = built(encoder=encoder), built(encoder=encoder, seed=1)
    assert set(first.state_dict()) == set(learned(first)) == set(learned(other))
    for name, value in first.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])
    assert not torch.equal(first.inference.states, other.inference.states)
    assert not torch.equal(first.decoder.words.weight, other.decoder.words.weight)
    sentence = torch.tensor([[2, 2, 2, 2, 2, 1]])  # the longest, and "<end>"
    assert first.elbo(sentence, torch.tensor([6]), EXACT).total.isfinite().all()


def test_learned_tensors_are_put_into_another_model():
    first, other = built(seed=0), built(seed=1)
    load(other, {name: value.clone() for name, value in learned(first).items()})
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True))
    with pytest.raises(ValueError, match="it holds others"):
        load(built(states=5), learned(first))
    with pytest.raises(ValueError, match="it holds others"):
        load(built(encoder="transformer"), learned(first))
    some = learned(first)
    some.popitem()
    with pytest.raises(ValueError, match="it holds others"):
        load(other, some)


def pretrained(frozen, seed):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(seed)
    sizes = {"n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 9, "bos_token_id": 0, "eos_token_id": 0}
    model = transformers.GPT2Model(transformers.GPT2Config(vocab_size=7, **sizes))
    encoder = PretrainedEncoder(model, [[0], [1, 2], [3]], frozen=frozen)
    return StructuredVAE(encoder, CRFInference(8, 4, 3), Decoder(3, 4, 8, 3, 5))


def test_a_frozen_pretrained_encoder_is_not_learned():
    first, other = pretrained(True, 0), pretrained(True, 1)
    assert {name.split(".")[0] for name in learned(first)} == {"inference", "decoder"}
    assert set(learned(first)) == {name for name, weight in first.named_parameters() if weight.requires_grad}
    theirs = {name: value.clone() for name, value in other.encoder.state_dict().items()}
    load(other, {name: value.clone() for name, value in learned(first).items()})
    for name, value in learned(first).items():
        assert torch.equal(other.state_dict()[name], value)
    for name, value in other.encoder.state_dict().items():
        assert torch.equal(theirs[name], value)
    with pytest.raises(ValueError, match="it holds others"):
        load(other, first.state_dict())


def test_a_pretrained_encoder_that_learns_is_learned():
    first, other = pretrained(False, 0), pretrained(False, 1)
    assert set(learned(first)) == set(first.state_dict())
    load(other, learned(first))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True))
    with pytest.raises(ValueError, match="it holds others"):
        load(other, learned(pretrained(True, 0)))


# Careless input.


def careless_model():
    return StructuredVAE(LSTMEncoder(20, 8), CRFInference(8, 30, 4), Decoder(20, 30, 8, 4, 8))


@pytest.mark.parametrize(
    ("words", "lengths", "message"),
    [
        (torch.ones(0, 5, dtype=torch.long), [], "at least one sentence"),
        (torch.ones(2, 5, dtype=torch.long), [5, 0], "lengths"),
        (torch.ones(2, 5, dtype=torch.long), [6, 1], "lengths"),
        (torch.full((2, 5), 20), [5, 1], "words must lie between 0 and V-1 = 19"),
    ],
)
@pytest.mark.parametrize("part", ["encoder", "transformer", "decoder"])
def test_bad_sentences_are_named(words, lengths, message, part, unchecked):
    lengths, model = torch.tensor(lengths, dtype=torch.long), careless_model()
    call = {
        "encoder": lambda: model.encoder(words, lengths),
        "transformer": lambda: TransformerEncoder(20, 8)(words, lengths),
        "decoder": lambda: model.decoder(words, lengths, as_sample(torch.zeros_like(words))),
    }[part]
    with pytest.raises(ValueError, match=message):
        call()


def test_vectors_of_another_size_are_named(unchecked):
    with pytest.raises(ValueError, match=r"encoded must be \[B, T, 8\]: got \[2, 3, 9\]"):
        careless_model().inference(torch.randn(2, 3, 9))


def test_half_precision():
    words, lengths = torch.randint(1, 20, (3, 5)), torch.tensor([5, 1, 3])
    model = careless_model()
    exact = model.weigh(words, lengths, Estimator("full", 2), 400).bound
    found = model.bfloat16().weigh(words, lengths, Estimator("full", 2), 400).bound
    torch.testing.assert_close(found.total.float(), exact.total, rtol=0.05, atol=0.5)
