"""Relaxed samples, which are differentiable."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tailsum.audience import for_authors
from tailsum.numerics.check import check_sample_shape, check_temperature
from tailsum.numerics.gradients import tracked
from tailsum.numerics.noise import gumbel
from tailsum.structure.derivatives import differentiating
from tailsum.structure.model import Configuration
from tailsum.structure.operations.best import Searches
from tailsum.structure.relaxed import RelaxedSample
from tailsum.structure.terms import Terms, each, with_tables
from tailsum.structure.transforms import outside_transforms


class Relaxations(Searches[Terms, Configuration]):
    """Relaxed samples by the stochastic softmax trick."""

    @outside_transforms
    def rsample(
        self,
        temperature: float = 1.0,
        hard: bool = False,
        generator: torch.Generator | None = None,
        sample_shape: Sequence[int] = (),
    ) -> RelaxedSample:
        """Relaxed samples, differentiable in all scores: the stochastic softmax trick (Paulus et al. 2020).

        The weights are the marginals of `(scores + Gumbel noise) / temperature`. As the temperature goes to zero, they go
        to zeros and ones: the best configuration under the noisy scores. `hard=True` gives these, with the relaxed gradient
        (straight-through). Noise on parts does not give exact samples of the model; `sample` does.
        """
        weights, best = self.relaxed(temperature, hard, generator, sample_shape)
        return RelaxedSample(weights[0], self.part_states(), best)

    @for_authors
    def relaxed(
        self, temperature: float, hard: bool, generator: torch.Generator | None, sample_shape: Sequence[int]
    ) -> tuple[list[Tensor], Configuration]:
        """Relaxed weights of each part term, and the configuration that they relax, in global ids."""
        check_temperature(temperature)
        check_sample_shape(sample_shape)
        noisy, model = self.part_terms, self.in_batch((*sample_shape, *self.batch_shape))
        with differentiating(self.device, self.summed()) as (recording, terms):
            tables = [term.tensors[0] for term in terms[:noisy]]
            perturbed = with_tables(terms, [gumbel(t.expand(*sample_shape, *t.shape), generator) for t in tables])
            tempered = each(lambda term: term.scaled(1.0 / temperature), perturbed)
            targets = [tracked(term.tensors[0], recording) for term in tempered[:noisy]]
            total = model.log_sum(with_tables(tempered, targets))
            if total.requires_grad:
                weights = torch.autograd.grad(total.sum(), targets, create_graph=recording, materialize_grads=True)
            else:  # nothing is summed
                weights = [torch.zeros_like(target) for target in targets]
        with torch.no_grad():
            best = model.best(perturbed)
        if hard:
            weights = [x.detach() + w - w.detach() for x, w in zip(model.used(best), weights, strict=True)]
        return list(weights), self.to_global(best)
