"""A gap written from left to right: each word given those before it, by a softmax over the vocabulary. Nothing is left to sum."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tailsum_studies.gaps.data import Gaps
from tailsum_studies.gaps.encoder import Encoder


class NextWord(nn.Module):
    """`p(missing words | words around them)` as a product of `p(word | words around the gap, missing words before it)`."""

    def __init__(self, n_words: int, size: int = 128, state_size: int = 64) -> None:
        super().__init__()
        self.n_words = self.n_states = n_words
        self.encoder = Encoder(n_words, size)
        self.writer = nn.LSTM(3 * size, size, batch_first=True)
        self.read = nn.Sequential(nn.Dropout(0.2), nn.Linear(3 * size, state_size))
        self.states = nn.Parameter(torch.randn(n_words, state_size) * state_size**-0.5)
        self.bias = nn.Parameter(torch.zeros(n_words))

    def log_prob(self, gaps: Gaps) -> Float[Tensor, " B"]:
        """The log-probability of the missing words of each sentence."""
        known = self.encoder(gaps)
        # What stands before the first missing word is known from the sentence, and a gap's mark takes its place.
        before = nn.functional.pad(gaps.words[:, :-1], (1, 0), value=self.n_words)
        scores, _ = self._write(known, before)
        chosen = scores.log_softmax(-1).gather(-1, gaps.words[..., None])[..., 0]
        return torch.where(gaps.inside(), chosen, 0.0).sum(-1)

    def greedy(self, gaps: Gaps) -> Int[Tensor, "B T"]:
        """The likeliest word after those that were written before, one after another."""
        known, memory, found = self.encoder(gaps), None, []
        word = torch.full_like(gaps.lengths, self.n_words)
        for t in range(known.shape[1]):
            scores, memory = self._write(known[:, t : t + 1], word[:, None], memory)
            word = scores[:, 0].argmax(-1)
            found.append(word)
        return torch.stack(found, -1)

    def _write(
        self, known: Float[Tensor, "B t d"], before: Int[Tensor, "B t"], memory: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Float[Tensor, "B t n"], tuple[Tensor, Tensor]]:
        """Scores of the words at some positions, from what is known there and the words before them; and the memory."""
        written, after = self.writer(torch.cat((known, self.encoder.words(before)), -1), memory)
        context = self.read(torch.cat((known, written), -1))
        return nn.functional.linear(context, self.states, self.bias), after
