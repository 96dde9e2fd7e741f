"""The distribution of the words of a gap: a chain whose states are all words of the vocabulary.

An LSTM reads what is left of the sentence in both directions. From what it knows at a position come scores of the words there,
and from what it knows at two neighbouring positions the gate of the scores of pairs of words: so these differ at every step
of every sentence. A CRF over a vocabulary with such transitions is that of Sun et al. 2019 (Fast Structured Decoding for
Sequence Models), here with a gate where they have a matrix.
"""

import torch
from torch import nn

from tailsum import Factored, Gated, LinearChain
from tailsum_studies.gaps.candidates import Candidates
from tailsum_studies.gaps.data import Gaps
from tailsum_studies.gaps.encoder import Encoder


class GapFiller(nn.Module):
    """`p(missing words | words around them)`, a `LinearChain` with a transition for each step of each sentence.

    Its states are the first `n_states` of the `n_words` words of the vocabulary, which are the most frequent ones, or all.
    With `paired` off, words do not depend on one another. With a `bound`, no score of a pair of words exceeds it in size.
    """

    def __init__(
        self,
        n_words: int,
        n_states: int | None = None,
        size: int = 128,
        state_size: int = 64,
        pair_size: int = 32,
        paired: bool = True,
        bound: float = 0.0,
    ) -> None:
        super().__init__()
        self.n_words, self.n_states, self.paired, self.bound = n_words, n_states or n_words, paired, bound
        self.encoder = Encoder(n_words, size)
        self.read = nn.Sequential(nn.Dropout(0.2), nn.Linear(2 * size, state_size))
        self.states = nn.Parameter(torch.randn(self.n_states, state_size) * state_size**-0.5)
        self.bias = nn.Parameter(torch.zeros(self.n_states))
        self.gate = nn.Linear(4 * size, pair_size)
        nn.init.normal_(self.gate.weight, std=0.02)
        nn.init.ones_(self.gate.bias)
        self.left, self.right = (nn.Parameter(0.1 * torch.randn(self.n_states, pair_size)) for _ in range(2))

    def forward(self, gaps: Gaps, candidates: Candidates | None = None) -> LinearChain:
        """The distribution of the missing words of each sentence; over weighted candidates alone, if they are given."""
        known = self.encoder(gaps)
        gate = self.gate(torch.cat((known[:, :-1], known[:, 1:]), -1))
        left, right = self.left, self.right
        if self.bound:  # a product of two vectors of length one, and no gate above the bound
            gate = self.bound * gate.sigmoid()
            left, right = (nn.functional.normalize(x, dim=-1) for x in (left, right))
        gate = gate if self.paired else torch.zeros_like(gate)
        context = self.read(known)
        if candidates is None:  # the bias of a word is one more factor
            context = torch.cat((context, torch.ones_like(context[..., :1])), -1)
            emission = Factored(context, torch.cat((self.states, self.bias[:, None]), -1))
            return LinearChain(emission, Gated(left, right, gate), gaps.lengths)
        words = candidates.words
        scores = torch.einsum("btd,tcd->btc", context, self.states[words]) + self.bias[words] + candidates.log_weight
        pairs = Gated(left[words[:-1]], right[words[1:]], gate)
        return LinearChain(scores, pairs, gaps.lengths)
