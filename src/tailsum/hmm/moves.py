"""One step from each state to the next, in probabilities: what filtering and prediction repeat."""

import torch
from jaxtyping import Float
from torch import Tensor

from tailsum.hmm.transition import Transition, row_normaliser
from tailsum.numerics.precision import full_precision
from tailsum.numerics.reduce import log_sum_exp
from tailsum.numerics.tensors import finite
from tailsum.numerics.tiles import fits_budget


class Moves:
    """The probabilities of moves under a potential that all steps share: as a table if one fits the table budget."""

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
            self.table = (potential.block().detach() - self.rows[:, None]).exp() if fits_budget(size) else None

    def ahead(self, chance: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
        """The distribution one step later."""
        if self.table is not None:
            return chance @ self.table
        rows = (chance.log() - self.rows).reshape(-1, chance.shape[-1])
        return self.potential.into(rows, log_sum_exp).exp().reshape(chance.shape)

    def back(self, value: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
        """The mean of a value one step later, given the state now."""
        with full_precision(value.device):
            if self.table is not None:
                return value @ self.table.mT
            later = value.log().reshape(-1, value.shape[-1])
            return (
                (self.potential.transposed().operator().into(later, log_sum_exp) - self.rows).exp().reshape(value.shape)
            )
