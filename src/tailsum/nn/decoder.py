"""The generative model `p(x, y)`: an LSTM over words and latent states, the paper's Section 4."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tailsum.nn.words import checked_inside
from tailsum.structure.relaxed import RelaxedSample


class Joint(NamedTuple):
    """Log-probabilities of each sentence's words given its states, and of its states, summed over positions."""

    words: Float[Tensor, "*sample B"]
    states: Float[Tensor, "*sample B"]

    @property
    def total(self) -> Float[Tensor, "*sample B"]:
        """The log-probability of words and states together."""
        return self.words + self.states


class Probes(NamedTuple):
    """States of each position, with weights: weighted sums over them estimate expectations over the position's states."""

    states: Int[Tensor, "*sample B T m"]
    weights: Float[Tensor, "*sample B T m"]


class Decoder(nn.Module):
    """`p(x, y) = prod_t p(x_t | x_<t, y_<t) p(y_t | x_<=t, y_<t)`: first a state, then a word.

    One LSTM reads the states and words before t. From its output, an MLP gives the distribution of the next state; from
    its output and the state's embedding, another MLP gives the distribution of the next word. The embeddings of words and
    states also score them.
    """

    def __init__(
        self,
        n_words: int,
        n_states: int,
        size: int = 128,
        state_size: int = 64,
        hidden: int = 256,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.n_states = n_states
        self.words = nn.Embedding(n_words, size)
        self.states = nn.Embedding(n_states, state_size)
        nn.init.normal_(self.words.weight, std=size**-0.5)
        nn.init.normal_(self.states.weight, std=state_size**-0.5)
        self.start = nn.Parameter(torch.zeros(size + state_size))
        self.lstm = nn.LSTM(size + state_size, hidden, batch_first=True)
        self.to_state = nn.Sequential(nn.Linear(hidden, state_size), nn.Tanh(), nn.Linear(state_size, state_size))
        self.to_word = nn.Sequential(nn.Linear(hidden + state_size, hidden), nn.Tanh(), nn.Linear(hidden, size))
        self.state_bias = nn.Parameter(torch.zeros(n_states))
        self.word_bias = nn.Parameter(torch.zeros(n_words))
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        words: Int[Tensor, "B T"],
        lengths: Int[Tensor, " B"] | Sequence[int],
        sample: RelaxedSample,
        seen: Int[Tensor, "B T"] | None = None,
        probes: Probes | None = None,
    ) -> Joint:
        """The log-probabilities of words and (relaxed) states `[*sample, B, T, K]`.

        The LSTM reads `seen` in place of the words, if given: the same words with some left out. With `probes`, each
        word's log-probability is its expectation over the state of its position, with the states before it as sampled.
        """
        inside = checked_inside(words, lengths, self.words.num_embeddings)
        words = words.masked_fill(~inside, 0)
        mixed = sample.mix(self.states.weight).to(self.states.weight.dtype)  # [*sample, B, T, d]
        flat = mixed.flatten(0, -3)
        copies = len(flat) // len(words)
        context = self.read((words if seen is None else seen).repeat(copies, 1), flat)
        shape = mixed.shape[:-1]

        words = words.repeat(copies, 1)
        with torch.set_grad_enabled(torch.is_grad_enabled() and probes is None):
            log_prob = self.say(context, flat, words)
        if probes is not None:
            # The log-probability at the sample, independent of the probes, is a control variate for their sum's gradient.
            states, weights = (x.flatten(0, -3) for x in probes)
            each = self.say(
                context[..., None, :].expand(*states.shape, -1), self.states(states), words[..., None].expand_as(states)
            )
            log_prob = log_prob + (weights * (each - log_prob[..., None])).sum(-1)
        log_prob = log_prob.reshape(shape)

        logits = self.state_logits(context)
        kept = logits.reshape(*shape, -1).gather(-1, sample.states.expand(*shape, -1))
        weights = sample.weights if sample.chances is None else sample.chances
        chosen = (weights * (kept - logits.logsumexp(-1).reshape(shape)[..., None])).sum(-1)
        return Joint((log_prob * inside).sum(-1), (chosen * inside).sum(-1))

    def state_logits(self, context: Float[Tensor, "*n hidden"]) -> Float[Tensor, "*n N"]:
        """Scores of the next state, from the LSTM's output."""
        return nn.functional.linear(self.to_state(context), self.states.weight, self.state_bias)

    def word_logits(self, context: Float[Tensor, "*n hidden"], states: Float[Tensor, "*n d"]) -> Float[Tensor, "*n V"]:
        """Scores of the next word, from the LSTM's output and the embedding of the next state."""
        return nn.functional.linear(self.to_word(torch.cat([context, states], -1)), self.words.weight, self.word_bias)

    def say(
        self, context: Float[Tensor, "*n hidden"], states: Float[Tensor, "*n d"], words: Int[Tensor, "*n"]
    ) -> Float[Tensor, "*n"]:
        """The log-probability of each word."""
        logits = self.word_logits(context, states).flatten(0, -2)
        return -nn.functional.cross_entropy(logits, words.flatten(), reduction="none").reshape(words.shape)

    def read(self, words: Tensor, states: Tensor) -> Tensor:
        """The LSTM's output before each position, `[B, T, hidden]`."""
        before = torch.cat([self.dropout(self.words(words)), states], -1)[:, :-1]
        start = self.start.expand(len(before), 1, -1)
        return self.dropout(self.lstm(torch.cat([start, before], 1))[0])


def as_sample(states: Int[Tensor, "*sample_batch_T"], dtype: torch.dtype = torch.float32) -> RelaxedSample:
    """States as a sample with weight one, or zero where they are -1, in the padding."""
    return RelaxedSample((states >= 0).to(dtype)[..., None], states.clamp(min=0)[..., None], states)
