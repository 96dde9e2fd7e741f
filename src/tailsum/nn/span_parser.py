"""A constituency parser as the last layer of a network: biaffine scores of labelled spans, on `SpanTree`.

A constituent is `(first, last, label)`: positions from 0, both included, and a label from 0. Trees of constituents need not
be binary. The model is over binary trees: a span of state 0 is no constituent, and one of state `label + 1` is. A tree of
constituents stands for all binary trees that have its spans, and its probability is the sum of theirs.
"""

import itertools
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float, Int
from torch import Tensor, nn

from tailsum.nn.biaffine import Biaffine
from tailsum.nn.reduction import Reduction, check_reduction, reduced
from tailsum.numerics.check import at_least
from tailsum.trees.configuration import Trees
from tailsum.trees.span_tree import SpanTree

Constituent = tuple[int, int, int]
Lengths = Int[Tensor, " B"] | Sequence[int] | None


class SpanParser(nn.Module):
    """A distribution over the constituency trees of a sentence, from a vector `[B, T, size]` for each word.

    >>> parser = SpanParser(size=16, n_labels=3)
    >>> encoded = torch.randn(1, 4, 16)
    >>> loss = parser.loss(encoded, [[(0, 3, 0), (0, 1, 1), (2, 2, 2)]])  # three constituents of the only sentence
    >>> constituents = parser.decode(encoded)[0]
    """

    def __init__(self, size: int, n_labels: int, hidden: int = 128, dropout: float = 0.0) -> None:
        super().__init__()
        at_least(1, n_labels=n_labels)
        self.size, self.n_labels = size, n_labels
        self.spans = Biaffine(size, hidden, n_labels, dropout)

    def forward(self, encoded: Float[Tensor, "B T size"], lengths: Lengths = None) -> SpanTree:
        """The distribution over binary trees with `n_labels + 1` states; state 0, no constituent, scores zero."""
        return SpanTree(F.pad(self.spans(encoded), (1, 0)), lengths)

    def loss(
        self,
        encoded: Float[Tensor, "B T size"],
        constituents: Sequence[Sequence[Constituent]],
        lengths: Lengths = None,
        reduction: Reduction = "mean",
    ) -> Float[Tensor, "..."]:
        """Minus the log-likelihood of the constituents of each sentence ("none"), its "sum", "mean" or "token_mean"."""
        check_reduction(reduction)
        model = self(encoded, lengths)
        gold = self._chart(model, constituents)
        required = F.one_hot(gold, self.n_labels + 1).bool() & (gold > 0)[..., None]
        (excluded,) = model.exclusions([required])
        label = torch.arange(self.n_labels + 1, device=gold.device) > 0
        span = model.node_scores().masked_fill(excluded | ((gold == 0)[..., None] & label), -math.inf)
        log_likelihood = SpanTree(span, model.lengths).log_partition() - model.log_partition()
        return reduced(-log_likelihood, reduction, model.sequence_lengths())

    @torch.no_grad()
    def decode(self, encoded: Float[Tensor, "B T size"], lengths: Lengths = None) -> list[list[Constituent]]:
        """The constituents of the best binary tree of each sentence, parents before children."""
        return _listed(self(encoded, lengths).argmax())

    @torch.no_grad()
    def mbr(self, encoded: Float[Tensor, "B T size"], lengths: Lengths = None) -> list[list[Constituent]]:
        """The constituents of each sentence with the lowest expected number of errors, wrong or missing."""
        model = self(encoded, lengths)
        gain = 2.0 * model.marginals() - 1.0  # right with probability p, wrong with 1 - p
        gain[..., 0] = 0.0
        return _listed(SpanTree(gain, model.lengths).argmax())

    def _chart(self, model: SpanTree, constituents: Sequence[Sequence[Constituent]]) -> Int[Tensor, "B T T"]:
        """The state of each span of the gold trees; a ValueError if constituents form no tree."""
        lengths = model.sequence_lengths().tolist()
        if len(constituents) != len(lengths):
            raise ValueError(
                f"constituents must be a list for each of {len(lengths)} sentences: got {len(constituents)}"
            )
        chart = torch.zeros(len(lengths), *model.node_shape, dtype=torch.long)
        for row, (length, spans) in enumerate(zip(lengths, constituents, strict=True)):
            for first, last, label in spans:
                if not (0 <= first <= last < length and 0 <= label < self.n_labels):
                    raise ValueError(
                        f"constituents must be (first, last, label) with 0 <= first <= last < {length} and label below "
                        f"{self.n_labels} in sentence {row}: got {(first, last, label)}"
                    )
                if chart[row, first, last] not in (0, label + 1):
                    raise ValueError(
                        f"constituents must have one label for each span (join labels of unary chains): sentence {row} has "
                        f"two for {(first, last)}"
                    )
                chart[row, first, last] = label + 1
            for (a, b), (c, d) in itertools.combinations(sorted({(first, last) for first, last, _ in spans}), 2):
                if a < c <= b < d:
                    raise ValueError(f"constituents must not cross: sentence {row} has {(a, b)} and {(c, d)}")
        return chart.to(model.device)


def _listed(trees: Trees) -> list[list[Constituent]]:
    return [
        [(first, last, state - 1) for (first, last), state in zip(spans, states, strict=True) if state > 0]
        for spans, states in zip(trees.spans.tolist(), trees.states.tolist(), strict=True)
    ]
