"""Samples without replacement from any structure, by Gumbel noise on whole configurations.

Add independent Gumbel noise to the log-probability of every configuration: those with the k highest values are k draws
without replacement, in order (Gumbel-top-k, Kool et al. 2019). The noise of a configuration is drawn only when needed: the
highest value in a class of configurations is a Gumbel variable with the class's log-probability as its location,
independent of which configuration has it. Once that configuration is drawn, the rest of its class is partitioned as for the
k best (`k_best.py`), and the highest value of each new class is drawn given that it is lower.
"""

import math
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tailsum.numerics.check import at_least
from tailsum.numerics.noise import gumbel
from tailsum.numerics.precision import full_precision
from tailsum.numerics.tensors import finite
from tailsum.structure.k_best import Constraints, Solved, k_best, stacked
from tailsum.structure.terms import in_float64, with_tables


class Distinct(NamedTuple):
    """Different configurations in the order in which they were drawn, and their log-probabilities.

    There are k, or as many as the batch element with the most of them has. Where an element has fewer, the others are -1
    throughout and their log-probabilities minus infinity. Gradients flow in `log_probs`, as `sample_log_prob` gives them.
    `perturbed` are the log-probabilities with Gumbel noise, highest first. `threshold` is the perturbed log-probability of
    the configuration that would be drawn next: minus infinity where there is none.
    """

    configurations: Any
    log_probs: Float[Tensor, "k *batch"]
    perturbed: Float[Tensor, "k *batch"]
    threshold: Float[Tensor, "*batch"]

    def weights(self) -> Float[Tensor, "k *batch"]:
        """Weights with which `(weights * f(configurations)).sum(0)` is an unbiased estimate of the mean of f.

        Each is the probability of a configuration, divided by the probability that its value exceeds the threshold. Only the
        former has a gradient, so that the gradient of the estimate is unbiased too. The sum of the weights is one on average.

        >>> from tailsum import LinearChain
        >>> chain = LinearChain(torch.zeros(2, 2), torch.zeros(2, 2))
        >>> chain.sample_distinct(4).weights()  # all that exist
        tensor([0.2500, 0.2500, 0.2500, 0.2500])
        """
        ahead = (self.log_probs.detach() - self.threshold).masked_fill(self.log_probs == -math.inf, math.inf)
        # The log of `1 - exp(-exp(ahead))`, which is `ahead` itself where the exponential is tiny or underflows.
        log_above = torch.where(ahead < -15, ahead, (-torch.expm1(-ahead.clamp(min=-15).exp())).log())
        return (self.log_probs - log_above).exp()


torch.serialization.add_safe_globals([Distinct])  # for torch.load(.., weights_only=True)


def sample_distinct(model: Any, k: int, generator: torch.Generator | None) -> Distinct:
    """Draw k different configurations: see `Structure.sample_distinct`."""
    at_least(1, k=k)
    with torch.no_grad(), full_precision(model.device):
        terms = in_float64(_summed_once(model))
        total = model.replaced(dtype=torch.float64).log_sum(terms).double()

        def solve(tables: list[Tensor]) -> Solved:
            cells = model.in_batch((len(tables[0]), *model.batch_shape)).replaced(dtype=torch.float64)
            changed = with_tables(terms, tables)
            mass = cells.log_sum(changed).double()
            mass = (mass - finite(total)).masked_fill(mass == -math.inf, -math.inf)
            drawn = cells.drawn(changed, (), generator)
            return Solved(drawn, cells.used(drawn), gumbel(mass, generator))

        parts = [term.tensors[0] for term in terms[: model.part_terms]]
        constraints = Constraints(model.exclusions, bonus=None)
        drawn, perturbed = k_best(k + 1, parts, model.batch_shape, constraints, solve, _below)
        drawn = model.to_global(stacked([drawn], lambda x: x[0][:k]))
        perturbed = perturbed.to(model.dtype)
        threshold = perturbed[k] if len(perturbed) > k else torch.full_like(total, -math.inf, dtype=model.dtype)
    return Distinct(drawn, model.sample_log_prob(drawn), perturbed[:k], threshold)


def _summed_once(model: Any) -> Any:
    """The weighted scores, with the weights of repeated states in the first place, and minus infinity in the others."""
    if model.kept is None:
        return model.unmasked()
    return model.add_to_states(model.unmasked(), model.kept.merged().log_weight.expand(model.states.shape))


def _below(values: Float[Tensor, "M *batch"], bound: Float[Tensor, "1 *batch"]) -> Float[Tensor, "M *batch"]:
    """Gumbel variables given that they are lower than `bound`, from unrestricted ones."""
    return -torch.logaddexp(-bound, -values)
