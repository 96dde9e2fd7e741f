"""One step from each state to the next: what filtering and prediction repeat. In logarithms, so that no state gets lost."""

import torch
from jaxtyping import Float
from torch import Tensor

from tailsum.hmm.transition import Transition, row_normaliser
from tailsum.numerics.precision import full_precision
from tailsum.numerics.reduce import log_sum_exp
from tailsum.numerics.tensors import finite
from tailsum.numerics.tiles import fits_budget
from tailsum.scores.potential import Potential

SMALL = 1 << 15  # numbers that are summed at once, without tiles


class Moves:
    """The log-probabilities of moves under a potential that all steps share: also as a table, if one fits the table budget."""

    def __init__(self, transition: Transition) -> None:
        if transition.takes_inputs:
            raise ValueError(
                "transition must not depend on inputs here: give whole sequences, and their inputs, to `filter`"
            )
        with torch.no_grad():
            potential = transition()
            self.rows = finite(row_normaliser(potential))
            self.potential = potential.map(torch.detach).operator()
            size = potential.n_from * potential.n_to * self.rows.element_size()
            self.table = potential.block().detach() - self.rows[:, None] if fits_budget(size) else None

    def ahead(self, log_chance: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
        """The log-probabilities one step later."""
        if self.table is not None and log_chance.numel() * len(self.table) <= SMALL:
            return (log_chance[..., None] + self.table).logsumexp(-2)
        return _summed(self.potential, log_chance - self.rows)

    def back(self, log_value: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
        """The log of the mean of a value one step later, given the state now."""
        if self.table is not None and log_value.numel() * len(self.table) <= SMALL:
            return (self.table + log_value[..., None, :]).logsumexp(-1)
        return _summed(self.potential.transposed().operator(), log_value) - self.rows


def _summed(potential: Potential, values: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
    """`log sum_i exp(value(i) + score(i, j))`, in tiles."""
    with full_precision(values.device):
        return potential.into(values.reshape(-1, values.shape[-1]), log_sum_exp).reshape(values.shape)
