"""What a chain of few states is asked, in one launch of a kernel, if that is the planner's way (`small_chains`)."""

import math
from abc import abstractmethod
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.audience import for_authors
from tailsum.chains.best_paths import small_best_path
from tailsum.chains.forward import small_log_prob, small_log_sum
from tailsum.chains.mean_score import small_entropy, small_log_sum_and_mean
from tailsum.chains.plan import takes_small_kernels
from tailsum.chains.small_chains import Tables, alike, differences, of_batch, without_masks
from tailsum.numerics.kernels import fused
from tailsum.numerics.precision import full_precision
from tailsum.scores.potential import Dense, Potential
from tailsum.structure.base import Structure
from tailsum.structure.compare import infinite_where_forbidden, matching


class ChainTerms(NamedTuple):
    """Scores of the states of each position `[*batch, T, N]`, and of the pairs of neighbouring ones."""

    nodes: Dense
    pairs: Potential


class InOneLaunch(Structure[ChainTerms, Tensor]):
    """The operations of a chain that have such a way, each with that of all structures for other chains."""

    _emission: Potential
    _transition: Potential

    @property
    @abstractmethod
    def emission(self) -> Potential:
        """Scores of the states of each position, without what the padding holds."""

    @property
    @abstractmethod
    def transition(self) -> Potential:
        """Scores of the pairs of neighbouring states, without what the padding holds."""

    @for_authors
    def in_one_launch(self) -> Tables | None:
        """The weighted scores, if that is the way; the kernels read neither masks nor padding, but other forms of scores spread it."""
        if not takes_small_kernels(self.batch_shape.numel(), self.node_shape[0], self.n_states, self._transition):
            return None
        with full_precision(self.device):
            node = (self._emission if isinstance(self._emission, Dense) else self.emission).block().squeeze(-2)
            pairs = self._transition if isinstance(self._transition, Dense) else self.transition
            node = node if self.kept is None else node + self.log_weight
            return self.tables_of(ChainTerms(Dense(node), pairs))

    @for_authors
    def tables_of(self, terms: ChainTerms) -> Tables | None:
        """The same of other scores."""
        node, pairs, batch = terms.nodes.scores, terms.pairs, self.batch_shape
        if not (takes_small_kernels(batch.numel(), self.node_shape[0], self.n_states, pairs) and fused(node)):
            return None
        table = pairs.tabled().scores
        table = table.squeeze(-3) if pairs.lead else table
        return Tables(
            of_batch(node, batch), of_batch(table, batch if table.shape[:-2].numel() > 1 else torch.Size((1,)))
        )

    @for_authors
    def last(self) -> Int[Tensor, " B"] | None:
        """The last position of each sequence; None if all end together."""
        return None if self.lengths is None else self.lengths.reshape(-1) - 1

    def _of_chains(self, values: Float[Tensor, " B"]) -> Float[Tensor, "*batch"]:
        return (values if values.shape == self.batch_shape else values.reshape(self.batch_shape)).to(self.dtype)

    def log_partition(self) -> Float[Tensor, "*batch"]:
        scores = self.in_one_launch()
        if scores is None:
            return super().log_partition()
        return self._of_chains(small_log_sum(*scores, last=self.last(), dtype=self.dtype))

    @for_authors
    def log_prob_in_one_launch(self, path: Int[Tensor, "*batch T"]) -> Float[Tensor, "*batch"] | None:
        """The log-probability of one path of each sequence, whose states are within range, if that is the way."""
        scores = self.in_one_launch() if self.kept is None else None
        if scores is None:
            return None
        path = path.reshape(-1, self.node_shape[0])
        return self._of_chains(small_log_prob(*scores, path=path, last=self.last(), dtype=self.dtype))

    def entropy(self) -> Float[Tensor, "*batch"]:
        scores = self.in_one_launch() if self.kept is None else None  # weights of states are no part of the score
        if scores is None:
            return super().entropy()
        return self._of_chains(small_entropy(*scores, last=self.last(), entropy=True, dtype=self.dtype))

    def kl(self, other: "InOneLaunch") -> Float[Tensor, "*batch"]:
        if self.kept is not None or not isinstance(other, InOneLaunch) or self.in_one_launch() is None:
            return super().kl(other)
        other = matching(self, other)
        mine, theirs = self.in_one_launch(), None if other.kept is not None else other.in_one_launch()
        if mine is None or theirs is None:
            return super().kl(other)
        last, masked = self.last(), not without_masks(mine, theirs)
        log_sum, mean = small_log_sum_and_mean(*alike(mine, differences(mine, theirs, masked)), last=last)
        divergence = mean - log_sum + small_log_sum(*theirs, last=last, exact=True)
        if not masked:
            return self._of_chains(divergence)
        divergence = divergence.reshape(self.batch_shape)
        if any(term.may_forbid() for term in other.terms()):
            divergence = infinite_where_forbidden(self, divergence, self.unmasked(), other.unmasked())
        return self._of_chains(divergence.masked_fill(log_sum.reshape(self.batch_shape) == -math.inf, math.inf))

    @for_authors
    def plain_marginals(self) -> Float[Tensor, "*batch T n"] | None:
        """The marginals, if they are asked for without gradients."""
        scores = self.in_one_launch()
        if scores is None or (torch.is_grad_enabled() and any(x.requires_grad for x in scores)):
            return None
        slopes = small_log_sum.slopes((True, False), *scores, last=self.last())
        chances = None if slopes is None else slopes[0]
        return None if chances is None else chances.reshape(*self.batch_shape, self.node_shape[0], -1)

    @torch.no_grad()
    def argmax(self) -> Int[Tensor, "*batch T"]:
        scores = self.in_one_launch() if self.kept is None else None
        if scores is None:
            return super().argmax()
        return small_best_path(*scores, last=self.last()).reshape(*self.batch_shape, -1)
