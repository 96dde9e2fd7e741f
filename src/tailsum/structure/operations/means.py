"""Means under a model: entropy, divergences, and expectations of any sum of values over parts."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from tailsum.audience import for_authors
from tailsum.numerics.check import check_broadcast, check_device, check_floating, check_scores
from tailsum.numerics.gradients import tracked
from tailsum.numerics.precision import full_precision
from tailsum.structure.compare import infinite_where_forbidden, matching
from tailsum.structure.derivatives import differentiating
from tailsum.structure.model import Configuration
from tailsum.structure.operations.sums import Sums
from tailsum.structure.slope import log_sum_and_slope
from tailsum.structure.terms import Terms, each, with_tables
from tailsum.structure.transforms import differentiable


class Means(Sums[Terms, Configuration]):
    """Means of sums of values over the parts of a configuration."""

    @differentiable
    def entropy(self) -> Float[Tensor, "*batch"]:
        """Shannon entropy in nats: `log Z - E[score]`; minus infinity, as log Z, for an impossible model.

        In a sketch the weights enter the sums and not the score: the same as the paper's Algorithm 3, Eqs. 19 to 22.
        """
        with full_precision(self.device):
            terms = self.centred(self.unmasked())
            log_sum, mean = self.log_sum_and_mean(self.weighted(terms), terms)
            return (log_sum - mean).to(self.dtype)

    @differentiable
    def cross_entropy(self, other: "Means[Terms, Configuration]") -> Float[Tensor, "*batch"]:
        """`E[-log_prob of other]` under this model, in nats; infinite if other forbids what this one allows."""
        with full_precision(self.device):
            other = matching(self, other)
            mine, theirs = self.weighted(self.centred(self.unmasked())), other.centred(other.unmasked())
            _, mean = self.log_sum_and_mean(mine, theirs)
            cross = other.log_sum(other.weighted(theirs)) - mean
            return infinite_where_forbidden(self, cross, mine, theirs).to(self.dtype)

    @differentiable
    def kl(self, other: "Means[Terms, Configuration]") -> Float[Tensor, "*batch"]:
        """Kullback-Leibler divergence from `other`, in nats; infinite for an impossible model.

        In a sketch both models are summed over the kept states.
        """
        with full_precision(self.device):
            other = matching(self, other)
            mine, theirs = self.centred(self.unmasked()), other.centred(other.unmasked())
            difference = each(lambda a, b: a.finite().plus(b.finite().scaled(-1.0)), mine, theirs)
            mine = self.weighted(mine)
            log_sum, mean = self.log_sum_and_mean(mine, difference)
            divergence = mean - log_sum + other.log_sum(other.weighted(theirs))
            divergence = infinite_where_forbidden(self, divergence, mine, theirs)
            return divergence.masked_fill(log_sum == -math.inf, math.inf).to(self.dtype)

    @differentiable
    def expectation(self, values: "Tensor | Means[Terms, Configuration]") -> Float[Tensor, "*sample_batch"]:
        """The mean under the model of a sum of values over the parts of a configuration, such as a count or a risk.

        `values` has one value for each part, in the shape of `scattered_marginals()` (all N states, also for a sketch), or is a
        model of the same kind whose scores are the values: `chain.expectation(LinearChain(values, pair_values))`.
        Differentiable in scores and values: the gradient in the scores is the covariance of the values with each part.

        >>> from tailsum import LinearChain
        >>> chain = LinearChain(torch.zeros(6, 2), torch.zeros(2, 2))
        >>> chain.expectation(torch.tensor([0.0, 1.0]).expand(6, 2))  # how many positions have state 1
        tensor(3.)
        """
        if isinstance(values, Tensor):
            return self._expectation_of_parts(values)
        if not isinstance(values, type(self)) and not isinstance(self, type(values)):
            raise ValueError(
                f"values must be a tensor of the shape of the marginals or a {type(self).__name__} whose scores are the "
                f"values: got {type(values).__name__}"
            )
        return self._expectation_of_scores(values)

    def _expectation_of_parts(self, values: Tensor) -> Tensor:
        """By the marginals. Values of impossible parts, as in the padding, may be anything."""
        check_floating("values", values)
        check_device("values", values, self.device)
        chances = self.scattered_marginals()
        part = chances.shape[len(self.batch_shape) :]
        if values.shape[max(0, values.dim() - len(part)) :] != part:
            sizes = ", ".join(map(str, part))
            raise ValueError(
                f"values must be [*batch, {sizes}], as the marginals over all states: got {list(values.shape)}"
            )
        check_broadcast("values", values.shape[: values.dim() - len(part)], self.batch_shape, "the model's")
        values = torch.where(chances.detach() == 0, 0.0, values.to(chances.dtype))
        check_scores("values", values.detach())
        never = values == -math.inf
        dims = tuple(range(-len(part), 0))
        return (chances * values.masked_fill(never, 0.0)).sum(dims).masked_fill(never.any(dims), -math.inf)

    def _expectation_of_scores(self, values: "Means[Terms, Configuration]") -> Tensor:
        """By the slope of the log-partition. Values without lengths get the model's."""
        model = self.in_batch(check_broadcast("values", values.batch_shape, self.batch_shape, "the model's"))
        if values.lengths is None:
            values = values.in_batch(model.batch_shape).replaced(lengths=model.lengths)
        with full_precision(model.device):
            terms = matching(model, values, "values").unmasked()
            terms = each(lambda term: term.map(lambda x: x.to(model.dtype) if x.is_floating_point() else x), terms)
            scores = model.summed()
            _, mean = model.log_sum_and_mean(scores, terms)
            return -infinite_where_forbidden(model, -mean, scores, terms).to(model.dtype)

    @for_authors
    def log_sum_and_mean(self, own: Terms, values: Terms) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
        """The log-partition under `own`, and the mean of the sum of `values` over the parts of a configuration."""
        return log_sum_and_slope(self, own, values)

    @for_authors
    def log_sum_and_mean_of_parts(
        self, own: Terms, values: Terms
    ) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
        """`log_sum_and_mean` for models with scores in the first term only: the mean of its values under the marginals."""
        with differentiating(self.device, own, values) as (recording, scores, numbers):
            table = tracked(scores[0].tensors[0], recording)
            total = self.log_sum(with_tables(scores, [table]))
            if not total.requires_grad:  # nothing is summed
                return total, torch.zeros_like(total)
            (chance,) = torch.autograd.grad(total.sum(), table, create_graph=recording, materialize_grads=True)
            mean = (chance * numbers[0].finite().tensors[0]).flatten(len(self.batch_shape)).sum(-1, dtype=torch.float64)
        return (total, mean) if recording else (total.detach(), mean.detach())

    @for_authors
    def centred(self, terms: Terms) -> Terms:
        """Scores of the same distribution without a common offset, which would cost digits in differences of sums."""
        return terms

    @for_authors
    def form(self) -> tuple[object, ...]:
        """Settings that two models must share to be compared, beside positions and states."""
        return ()
