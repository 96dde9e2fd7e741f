"""Scores and log-probabilities of given configurations."""

import math
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.audience import for_authors
from tailsum.numerics.reduce import highest, log_sum_exp
from tailsum.numerics.tensors import unmasked
from tailsum.structure.check import check_states
from tailsum.structure.model import Configuration
from tailsum.structure.operations.sums import Sums
from tailsum.structure.terms import Terms, each, with_tables
from tailsum.structure.transforms import differentiable


class Scoring(Sums[Terms, Configuration]):
    """Scores of given configurations, and conversions between local and global ids."""

    @differentiable
    def score(self, configuration: Configuration) -> Float[Tensor, "*sample_batch"]:
        """The score of configurations in global ids, kept or not; minus infinity where all ids are -1."""
        whole = self.whole
        return unmasked(whole.score_of(whole.check_configuration(configuration)))

    def log_prob(self, configuration: Configuration) -> Float[Tensor, "*sample_batch"]:
        """Log-probability of given configurations under the whole model.

        A sketch estimates its log-partition: `-small.log_prob(gold)` is a loss to train with. Samples of a sketch have another
        density, `sample_log_prob`.
        """
        score = self.score(configuration)
        return (score - self.log_partition()).masked_fill(score == -math.inf, -math.inf)

    def sample_log_prob(self, configuration: Configuration) -> Float[Tensor, "*sample_batch"]:
        """Log-probability that `sample` draws given configurations, in global ids; without a sketch, the same as `log_prob`.

        A sketch draws from its kept states in proportion to `exp(score)` times the weights of the states, those of copies
        added up; minus infinity where a state was not kept.

        >>> from tailsum import LinearChain, TopK
        >>> chain = LinearChain(torch.tensor([[0.0, 0.0, -9.0]]), torch.zeros(3, 3))
        >>> chain.sketch(selection=TopK(2)).sample_log_prob(torch.tensor([[0], [1], [2]])).exp()
        tensor([0.5000, 0.5000, 0.0000])
        """
        log_prob, kept = self.log_prob(configuration), self.kept
        if kept is None:
            return log_prob
        states = self.whole.node_states(self.whole.check_configuration(configuration))
        here = self.states == states[..., None]
        weight = log_sum_exp(self.log_weight.expand(here.shape).masked_fill(~here, -math.inf), -1)
        weight = torch.where(states < 0, 0.0, weight).sum(tuple(range(-len(self.node_shape), 0)))
        return (log_prob + weight).masked_fill(log_prob == -math.inf, -math.inf)

    @for_authors
    def score_of(self, configuration: Configuration) -> Float[Tensor, "*sample_batch"]:
        """The score of checked configurations; minus infinity where their parts do not make up one configuration.

        It is the sum over all configurations that use no other parts; there is only one if the largest uses all parts.
        """
        used, terms = self.used(configuration), self.terms()
        tables = [torch.where(u > 0, x.tensors[0], -math.inf) for x, u in zip(terms, used, strict=False)]
        lead = tables[0].dim() - terms[0].tensors[0].dim() + len(self.batch_shape)
        model = self.in_batch(tables[0].shape[:lead])
        with torch.no_grad():
            alone = each(lambda term: term.scaled(0.0), terms)
            ones = [torch.where(u > 0, 1.0, -math.inf).to(u) for u in used]
            largest = model.total(with_tables(alone, ones), highest)
            count = sum(u.flatten(lead).sum(-1) for u in used)
        return model.log_sum(with_tables(terms, tables)).masked_fill(largest != count, -math.inf).to(self.dtype)

    @for_authors
    def check_configuration(self, configuration: Any) -> Configuration:
        """The configuration, its batch broadcast with this model's; a ValueError if its shape or ids are invalid."""
        return check_states(configuration, self.inside(), self.node_shape, self.n_states, "")  # pyright: ignore[reportReturnType]

    @for_authors
    def to_global(self, configuration: Any) -> Configuration:
        """A configuration in global ids from one in local ids."""
        if self.kept is None:
            return configuration
        states = self.states.expand(*configuration.shape, -1).gather(-1, configuration.clamp(min=0)[..., None])[..., 0]
        return torch.where(configuration < 0, configuration, states)  # pyright: ignore[reportReturnType]

    @for_authors
    def node_states(self, configuration: Any) -> Int[Tensor, "*sample_batch_node"]:
        """The state of each node in a checked configuration in local ids, -1 where it has none."""
        if isinstance(configuration, Tensor):
            inside = self.inside().reshape(*self.batch_shape, -1, *(1,) * (len(self.node_shape) - 1))
            return torch.where(inside, configuration, -1)
        used = self.used(configuration)[0]  # dimensions such as durations may be between nodes and states
        used = used.flatten(used.dim() - len(self.part_shape) + len(self.node_shape), -2).sum(-2)
        return used.argmax(-1).masked_fill(used.sum(-1) == 0, -1)

    @for_authors
    def parts(self, configuration: Configuration) -> Float[Tensor, "*sample_batch_part"]:
        """The parts of the first term that a configuration in local ids uses: ones; else zeros."""
        return self.used(configuration)[0]
