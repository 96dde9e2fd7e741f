"""Small models with weights that matter, and the truth about them from every path of states written down."""

import itertools
import math
from typing import Any

import torch
from hypothesis import strategies as st
from torch import nn

from harness.chains import ChainTruth
from tailsum.nn.decoder import Decoder
from tailsum.nn.encoder import LSTMEncoder
from tailsum.nn.estimator import Estimator
from tailsum.nn.inference import CRFInference
from tailsum.nn.structured_vae import StructuredVAE

N_WORDS, END = 3, 1
LENGTHS = torch.tensor([3, 1, 2, 3])
WORDS = torch.tensor([[2, 0, 1], [1, 2, 0], [0, 1, 2], [2, 2, 1]])
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


def with_gradients(module, value, *others):
    return torch.autograd.grad(value.sum(), [*module.parameters(), *others], allow_unused=True, materialize_grads=True)


def conditionals(nodes, pairs, hard):
    """`q(x_t | x_t+1 .. x_L = hard)` of one sequence `[L, N]`."""
    truth = ChainTruth(nodes, pairs.expand(len(nodes) - 1, -1, -1))
    rows = []
    for t in range(len(nodes)):
        fits = (truth.paths[:, t + 1 :] == hard[t + 1 :]).all(-1)
        mass = torch.stack([truth.probability[fits & (truth.paths[:, t] == i)].sum() for i in range(truth.n)])
        rows.append(mass / mass.sum())
    return torch.stack(rows)
