"""The truth for small structured models: every configuration of one sentence is written down and its score added up."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

Uses = Sequence[Sequence[tuple[int, ...]]]  # for each configuration, the entries of a table that it uses


def total(table: Tensor, uses: Uses) -> Tensor:
    """For each configuration the sum `[C]` of the entries it uses."""
    owner, index = listed(uses, table.dim())
    values = table.double()[tuple(index.T)]
    return torch.zeros(len(uses)).double().index_add(0, owner, values)


def counts(shape: tuple[int, ...], uses: Uses) -> Tensor:
    """For each configuration how often it uses each entry, `[C, *shape]`."""
    owner, index = listed(uses, len(shape))
    ones = torch.ones(len(owner)).double()
    return torch.zeros(len(uses), *shape).double().index_put((owner, *index.T), ones, accumulate=True)


def listed(uses: Uses, dim: int) -> tuple[Tensor, Tensor]:
    """All uses in one list: whose `[U]` and of what `[U, dim]`."""
    owner = [c for c, used in enumerate(uses) for _ in used]
    index = [entry for used in uses for entry in used]
    return torch.tensor(owner, dtype=torch.long), torch.tensor(index, dtype=torch.long).reshape(-1, dim)


class Truth:
    """All configurations of one sentence, their scores `[C]` and the parts `[C, *part_shape]` that they use."""

    def __init__(self, configurations: list[tuple], scores: Tensor, parts: Tensor):
        self.configurations = configurations
        self.scores = scores
        self.parts = parts
        self._index = {configuration: c for c, configuration in enumerate(configurations)}
        assert len(self._index) == len(configurations) == len(scores) == len(parts)

    @property
    def possible(self) -> bool:
        return bool((self.scores > -math.inf).any())

    @property
    def log_partition(self) -> Tensor:
        return self.scores.logsumexp(0)

    @property
    def probability(self) -> Tensor:
        return self.scores.softmax(0) if self.possible else torch.zeros_like(self.scores)

    @property
    def entropy(self) -> Tensor:
        return self.cross_entropy(self)

    @property
    def marginals(self) -> Tensor:
        return self.expected(self.parts)

    def expected(self, values: Tensor) -> Tensor:
        """The mean over configurations of values `[C, ...]`."""
        return torch.tensordot(self.probability, values, 1)

    def cross_entropy(self, other: "Truth") -> Tensor:
        """Zero where this is impossible; infinite where it allows what the other does not."""
        assert self.configurations == other.configurations
        probability = self.probability
        allowed = probability > 0
        scores = other.scores[allowed]
        log_q = scores - other.log_partition if other.possible else scores  # then all minus infinity
        return -(probability[allowed] * log_q).sum()

    def best(self, k: int) -> Tensor:
        """The scores of the k best configurations, minus infinity where there are fewer."""
        found = self.scores.sort(descending=True).values[:k]
        return torch.nn.functional.pad(found, (0, k - len(found)), value=-math.inf)

    def index_of(self, configuration: tuple) -> int:
        """Where a configuration stands in the list; a KeyError if it is none."""
        return self._index[configuration]


class Weighted(Truth):
    """All configurations of one sentence, weighted by the states of their nodes: what a restricted model sums over.

    Weights count in the sums and stay out of the scores. A state of weight zero is not there.
    """

    def __init__(self, truth: Truth, weight: Tensor):
        super().__init__(truth.configurations, truth.scores + weight, truth.parts)
        self.unweighted, self.truth = truth.scores, truth
        self.present = weight > -math.inf

    def cross_entropy(self, other: Truth) -> Tensor:
        assert isinstance(other, Weighted)
        p = self.probability
        used = p > 0
        if (other.unweighted[used] == -math.inf).any():
            return torch.tensor(math.inf).double()
        return other.log_partition - (p[used] * other.unweighted[used]).sum()

    def best(self, k: int) -> Tensor:
        found = self.unweighted.masked_fill(~self.present, -math.inf).sort(descending=True).values[:k]
        return torch.nn.functional.pad(found, (0, k - len(found)), value=-math.inf)
