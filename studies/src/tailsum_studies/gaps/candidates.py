"""Candidates: at each position of a gap, a weighted part of the vocabulary that stands for all of it, one for a whole batch.

They are chosen before any score is computed, by how frequent words are: the words that the batch needs for certain, the
others with a weight that keeps sums over the vocabulary unbiased. So a step of training costs the same whatever the size of
the vocabulary, and a sketch of the chain over the candidates is a sketch of the whole chain: the weights multiply. Positions
have candidates of their own, drawn independently: with the same ones everywhere the expectation of a product of weights would
not be the product of their expectations.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum import Optimal
from tailsum_studies.gaps.data import Text

FLOOR = 0.2  # the share of all choices that is spread evenly over the words, however rare they are


class Candidates(NamedTuple):
    """Some words of the vocabulary for each position, and the logarithms of their weights; minus infinity: an empty place."""

    words: Int[Tensor, "T c"]
    log_weight: Float[Tensor, "T c"]

    def local(self, words: Int[Tensor, "B T"], n_words: int) -> Int[Tensor, "B T"]:
        """The places of given words, all of them candidates of their position."""
        there = self.words.masked_fill(self.log_weight == -torch.inf, n_words)
        place = self.words.new_zeros(len(self.words), n_words + 1)
        place.scatter_(-1, there, torch.arange(self.words.shape[-1], device=place.device).expand_as(there))
        return place.gather(-1, words.mT).mT


def log_frequency(text: Text) -> Float[Tensor, " n"]:
    """The logarithm of the share of each word in the training part, none of them zero."""
    counts = torch.cat(text.train).bincount(minlength=len(text.vocabulary)).double()
    return (counts / counts.sum() + FLOOR / len(counts)).log().float()


def draw(
    log_q: Float[Tensor, " n"], needed: Int[Tensor, "B T"], size: int, generator: torch.Generator | None = None
) -> Candidates:
    """For each position the words that are `needed` there, with weight one, and others by chance, `size` in all.

    >>> drawn = draw(torch.zeros(100), torch.tensor([[5, 7]]), 10)
    >>> bool((drawn.words[1] == 7).any()), drawn.words.shape
    (True, torch.Size([2, 10]))
    """
    # Far above all others, so that they are kept for certain.
    certain = log_q.amax().item() + 50.0
    wanted = log_q.expand(needed.shape[1], -1).scatter(-1, needed.mT, certain)
    kept = Optimal(min(len(log_q), max(size, len(needed) + 1)))(wanted, generator)
    return Candidates(kept.index, kept.log_weight)
