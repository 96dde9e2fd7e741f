"""The decoder, against a loop over positions and every sentence written down."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nn_cases import END, N_WORDS, SHAPES, close, decoder_of, one_hot, plain, with_gradients, words_of

from tailsum.nn.decoder import Probes, as_sample
from tailsum.structure.relaxed import RelaxedSample


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
