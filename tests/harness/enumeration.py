"""The truth for small models: every path is written down and its score added up."""

import itertools
import math

import torch
from torch import Tensor


class ChainTruth:
    """All paths of one sequence with node scores `[L, N]` and pair scores `[L-1, N, N]`."""

    def __init__(self, nodes: Tensor, pairs: Tensor):
        length, self.n = nodes.shape
        self.paths = torch.tensor(list(itertools.product(range(self.n), repeat=length)))
        self.scores = sum((nodes[t, self.paths[:, t]] for t in range(length)), torch.zeros(()).double())
        for t in range(length - 1):
            self.scores = self.scores + pairs[t, self.paths[:, t], self.paths[:, t + 1]]

    @property
    def possible(self) -> bool:
        return bool((self.scores > -math.inf).any())

    @property
    def log_partition(self) -> Tensor:
        return self.scores.logsumexp(0)

    @property
    def probability(self) -> Tensor:
        return self.scores.softmax(0)

    @property
    def entropy(self) -> Tensor:
        return -torch.special.xlogy(self.probability, self.probability).sum()

    @property
    def marginals(self) -> Tensor:
        one_hot = torch.nn.functional.one_hot(self.paths, self.n).to(self.scores.dtype)
        return torch.einsum("p,pti->ti", self.probability, one_hot)

    @property
    def pair_marginals(self) -> Tensor:
        one_hot = torch.nn.functional.one_hot(self.paths, self.n).to(self.scores.dtype)
        return torch.einsum("p,pti,ptj->tij", self.probability, one_hot[:, :-1], one_hot[:, 1:])

    def cross_entropy(self, other: "ChainTruth") -> Tensor:
        log_q = other.scores - other.log_partition
        allowed = self.probability > 0
        return -(self.probability[allowed] * log_q[allowed]).sum()

    def best(self, k: int) -> Tensor:
        """The scores of the k best paths, minus infinity where there are fewer."""
        found = self.scores.sort(descending=True).values[:k]
        return torch.nn.functional.pad(found, (0, k - len(found)), value=-math.inf)
