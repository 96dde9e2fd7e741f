"""Candidates: a weighted part of the vocabulary that stands for all of it, one for a whole batch.

They are chosen before any score is computed, by how frequent words are: the words that the batch needs for certain, the
others with a weight that keeps sums over the vocabulary unbiased. So a step of training costs the same whatever the size of
the vocabulary, and a sketch of the chain over the candidates is a sketch of the whole chain: the weights multiply.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.apps.gaps.data import Text
from tailsum.sketch.selection import Optimal

FLOOR = 0.2  # the share of all choices that is spread evenly over the words, however rare they are


class Candidates(NamedTuple):
    """Some words of the vocabulary and the logarithms of their weights."""

    words: Int[Tensor, " c"]
    log_weight: Float[Tensor, " c"]

    def local(self, words: Int[Tensor, "*shape"], n_words: int) -> Int[Tensor, "*shape"]:
        """The places of given words, all of them candidates."""
        place = torch.zeros(n_words, dtype=torch.long, device=self.words.device)
        place[self.words] = torch.arange(len(self.words), device=self.words.device)
        return place[words]


def log_frequency(text: Text) -> Float[Tensor, " n"]:
    """The logarithm of the share of each word in the training part, none of them zero."""
    counts = torch.cat(text.train).bincount(minlength=len(text.vocabulary)).double()
    return (counts / counts.sum() + FLOOR / len(counts)).log().float()


def draw(
    log_q: Float[Tensor, " n"], needed: Int[Tensor, " m"], size: int, generator: torch.Generator | None = None
) -> Candidates:
    """The words that are `needed`, with weight one, and others by chance, about `size` in all.

    >>> drawn = draw(torch.zeros(100), torch.tensor([5, 7]), 10)
    >>> bool((drawn.words == 5).any()), len(drawn.words)
    (True, 10)
    """
    # Far above all others, so that they are kept for certain.
    log_q = log_q.index_fill(0, needed, log_q.amax().item() + 50.0)
    kept = Optimal(max(size, len(needed) + 1))(log_q, generator)
    there = kept.log_weight > -torch.inf
    return Candidates(kept.index[there], kept.log_weight[there])
