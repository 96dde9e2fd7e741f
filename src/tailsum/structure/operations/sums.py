"""Log-partition and marginals."""

from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from tailsum.audience import for_authors
from tailsum.numerics.gradients import tracked
from tailsum.numerics.precision import full_precision
from tailsum.numerics.reduce import log_sum_exp
from tailsum.scores.base import Scores
from tailsum.structure.derivatives import differentiating
from tailsum.structure.model import Configuration
from tailsum.structure.operations.weights import Weights
from tailsum.structure.terms import Terms, each
from tailsum.structure.transforms import differentiable


class Sums(Weights[Terms, Configuration]):
    """Sums over all configurations, and their gradients."""

    @property
    def is_exact(self) -> bool:
        """Whether sums are exact given the scores, so that sketches are unbiased."""
        return True

    @differentiable
    def log_partition(self) -> Float[Tensor, "*batch"]:
        """Log of the sum of `exp(score)` over all configurations; in a sketch, of an unbiased estimate of this sum."""
        with full_precision(self.device):
            return self.log_sum(self.summed()).to(self.dtype)

    @differentiable
    def marginals(self) -> Float[Tensor, "*batch_part n"]:
        """The probability of each part, such as a state at a position."""
        return self.term_gradients(0)[0]

    def scattered_marginals(self) -> Float[Tensor, "*batch_part"]:
        """The marginals over all N states; zero for states that a sketch does not keep."""
        return self.scatter(self.marginals())

    @for_authors
    def diagnostics(self) -> list[str]:
        """Reasons to distrust this model's sums, whichever states are kept; none where sums are exact."""
        return []

    @for_authors
    def log_sum(self, terms: Terms) -> Float[Tensor, "*batch"]:
        """Log of the sum over all configurations under the given scores."""
        return self.total(terms, log_sum_exp)

    @for_authors
    def term_gradients(self, which: int, expand: Callable[[Tensor], Tensor] = lambda x: x) -> list[Tensor]:
        """The gradient of the log-partition in the tables of one term, each passed through `expand`."""
        return self.gradients_of_terms({which: expand})[0]

    @for_authors
    def gradients_of_terms(self, expansions: Mapping[int, Callable[[Tensor], Tensor]]) -> list[list[Tensor]]:
        """The same for several terms in one pass: from the number of each term to its `expand`."""
        with differentiating(self.device, self.summed()) as (recording, terms):
            changed, targets = list[Scores](terms), list[list[Tensor]]()
            for which, expand in expansions.items():
                tabled = terms[which].tabled()
                targets.append([tracked(expand(x), recording) for x in tabled.tensors])
                tables = iter(targets[-1])
                changed[which] = tabled.map(lambda _, tables=tables: next(tables))
            inputs = [x for tensors in targets for x in tensors]
            new = iter(changed)
            total = self.log_sum(each(lambda _: next(new), terms))
            if not total.requires_grad or not inputs:  # a single position has no pairs
                return [[torch.zeros_like(x) for x in tensors] for tensors in targets]
            grads = iter(torch.autograd.grad(total.sum(), inputs, create_graph=recording, materialize_grads=True))
            return [[next(grads) for _ in tensors] for tensors in targets]

    @for_authors
    def state_chances(self) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch_node n"]]:
        """The log-partition, and the probability that each node has each of its states; both without gradients."""
        with differentiating(self.device, self.summed()) as (_, terms):
            extra = torch.zeros_like(self.log_weight).requires_grad_()
            total = self.log_sum(self.add_to_states(terms, extra))
            (chance,) = torch.autograd.grad(total.sum(), extra, materialize_grads=True)
        return total.detach().to(self.dtype), chance
