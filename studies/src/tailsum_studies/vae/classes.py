"""Classes of words by their neighbours: where training starts, so that states tell words apart from the first step.

From random states the posterior first learns to ignore them: the decoder has no use for what it cannot tell apart, and
most states stay near copies of one another. Words that stand beside the same words are a start that both can use.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum_studies.vae.data import Numbered

FREQUENT = 500  # words that count as neighbours; all others are one
SIZE = 50  # of the vectors that words are clustered by
ROUNDS = 20


def word_classes(
    sentences: Sequence[Numbered], n_words: int, n_classes: int, generator: torch.Generator
) -> Int[Tensor, " V"]:
    """The class of each word, by spherical k-means over what stands to its left and right.

    >>> words = word_classes([[0, 2], [1, 2], [0, 3], [1, 3]] * 9, 4, 2, torch.Generator().manual_seed(0)).tolist()
    >>> words[0] == words[1] != words[2] == words[3]
    True
    """
    flat = torch.tensor([word for sentence in sentences for word in sentence])
    first = torch.tensor([len(sentence) for sentence in sentences]).cumsum(0)[:-1]
    inside = torch.ones(len(flat) - 1, dtype=torch.bool)
    inside[first - 1] = False  # pairs of the last word of a sentence and the first of the next
    left, right = flat[:-1][inside], flat[1:][inside]
    counts = flat.bincount(minlength=n_words).double()
    vectors = _vectors(left, right, counts, generator)
    return _clustered(vectors, counts.sqrt(), n_classes, generator)


def _vectors(
    left: Int[Tensor, " n"], right: Int[Tensor, " n"], counts: Float[Tensor, " V"], generator: torch.Generator
) -> Float[Tensor, "V d"]:
    """Positive pointwise mutual information with the words to either side, projected on its largest directions."""
    size = len(counts)
    kinds = min(size, FREQUENT)
    kind = torch.full((size,), kinds)
    kind[counts.argsort(descending=True, stable=True)[:kinds]] = torch.arange(kinds)
    table = torch.zeros(size, 2 * (kinds + 1), dtype=torch.float64)
    ones = torch.ones(len(left), dtype=torch.float64)
    table.index_put_((left, kind[right]), ones, accumulate=True)
    table.index_put_((right, kinds + 1 + kind[left]), ones, accumulate=True)
    rows = table.sum(1, keepdim=True)
    expected = rows * table.sum(0) / table.sum().clamp(min=1)
    shared = torch.where(table > 0, (table / expected.clamp(min=1e-9)).log(), 0.0).clamp(min=0)
    shared = shared * rows.clamp(max=50).sqrt()  # rare words have noisy neighbours
    random = torch.randn(shared.shape[1], min(SIZE, size), generator=generator, dtype=torch.float64)
    for _ in range(2):  # subspace iteration
        random = shared.T @ torch.linalg.qr(shared @ random)[0]
    basis = torch.linalg.qr(random)[0]
    return torch.nn.functional.normalize(shared @ basis, dim=-1)


def _clustered(
    vectors: Float[Tensor, "V d"], weights: Float[Tensor, " V"], count: int, generator: torch.Generator
) -> Int[Tensor, " V"]:
    """Spherical k-means from random words, each word counted by its weight."""
    weights = weights + 1e-9 * weights.mean().clamp(min=1e-9)  # words that do not occur come last

    def some(number: int) -> Tensor:
        """Words drawn without replacement (Gumbel-top-k); all of them again where there are not enough."""
        noise = -torch.rand(len(vectors), generator=generator, dtype=torch.float64).log().neg().log()
        order = (weights.log() + noise).argsort(descending=True, stable=True)
        return vectors[order.repeat(math.ceil(number / len(order)))[:number]]

    centres = some(count)
    found = (vectors @ centres.T).argmax(1)
    for _ in range(ROUNDS):
        sums = torch.zeros_like(centres).index_add_(0, found, vectors * weights[:, None])
        empty = found.bincount(minlength=count) == 0
        centres = torch.nn.functional.normalize(sums, dim=-1)
        centres[empty] = some(int(empty.sum()))
        found = (vectors @ centres.T).argmax(1)
    return found
