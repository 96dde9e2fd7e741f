"""The best configurations."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tailsum.audience import for_authors
from tailsum.numerics.check import at_least
from tailsum.numerics.reduce import Reduce, highest
from tailsum.structure.derivatives import differentiating
from tailsum.structure.k_best import Best, Constraints, Solved, k_best
from tailsum.structure.model import Configuration
from tailsum.structure.operations.scores import Scoring
from tailsum.structure.terms import Terms, in_float64, with_tables
from tailsum.structure.transforms import chosen_by_value, differentiable, outside_transforms


class Searches(Scoring[Terms, Configuration]):
    """Searches for the configurations of highest score."""

    @chosen_by_value
    @torch.no_grad()
    def argmax(self) -> Configuration:
        """The configuration of highest score; in a sketch, among the kept states, without their weights."""
        return self.to_global(self.best(self.distinct()))

    @differentiable
    def max(self) -> Float[Tensor, "*batch"]:
        """The score of the configuration that `argmax` finds; minus infinity where none is possible.

        Differentiable: the gradient is one for each part of that configuration, and zero for the others. A sketch is searched
        as by `argmax`. On graphs with loops that are not exact, it is the score of the best configuration found.

        >>> from tailsum import LinearChain
        >>> LinearChain(torch.eye(3), torch.zeros(3, 3)).max()
        tensor(3.)
        """
        return self.score(self.argmax())

    @outside_transforms
    def topk(self, k: int) -> Best:
        """The k configurations of highest score, best first, and their scores (Lawler's partition).

        Fewer where fewer exist. Each costs one search for each part of a configuration. A few searches are made at a time, so
        that memory stays near that of one.
        """
        at_least(1, k=k)

        def solve(tables: list[Tensor]) -> Solved:
            model = self.in_batch((len(tables[0]), *self.batch_shape)).replaced(dtype=torch.float64)
            best = model.best(with_tables(terms, tables))
            configurations = self.to_global(best)
            return Solved(configurations, model.used(best), self.score(configurations))

        with torch.no_grad():
            terms = in_float64(self.distinct())
            parts = [term.tensors[0] for term in terms[: self.part_terms]]
            bonus = 1.0 + 2 * self.n_scores() * sum(term.bound() for term in terms)
            configurations, _ = k_best(k, parts, self.batch_shape, Constraints(self.exclusions, bonus), solve)
        return Best(configurations, self.score(configurations))

    @for_authors
    def best(self, terms: Terms) -> Configuration:
        """The configuration of highest score under `terms`, in local ids."""
        return self.read(self.chosen(terms, highest))

    @for_authors
    def chosen(self, terms: Terms, reduce: Reduce) -> list[Tensor]:
        """Which parts of each part term the best or a random configuration uses; all zero where none is possible."""
        with differentiating(self.device, terms) as (_, scores):
            tables = [term.tensors[0].detach().clone().requires_grad_() for term in scores[: self.part_terms]]
            total = self.total(with_tables(scores, tables), reduce)
            possible = total > -torch.inf
            used = torch.autograd.grad(total.masked_fill(~possible, 0.0).sum(), tables, materialize_grads=True)
        return list(used)

    @for_authors
    def exclusions(self, demanded: Sequence[Bool[Tensor, "..."]]) -> list[Bool[Tensor, "..."]]:
        """Parts of each part term that no configuration has together with the demanded ones; bans of these demand them.

        Ideally all of them, so that a configuration with none of them must have the demanded parts. The default is right if
        each node has one state.
        """
        return [parts.any(-1, keepdim=True) & ~parts for parts in demanded]

    @for_authors
    def n_scores(self) -> int:
        """The largest number of scores of one term in the score of a configuration."""
        return 2 * self.node_shape.numel()
