"""Sketches: the same model over a small weighted subset of the states of each node."""

import math
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from tailsum.audience import for_authors
from tailsum.numerics.precision import full_precision
from tailsum.sketch.model import Propose
from tailsum.sketch.proposal import Lookahead, proposal_from
from tailsum.sketch.selection import Selection, Subset, selection_from
from tailsum.sketch.sweep import Sweep
from tailsum.structure.check import check_subset
from tailsum.structure.landmark_sweep import LandmarkSweep, by_restriction
from tailsum.structure.model import Configuration
from tailsum.structure.operations.sums import Sums
from tailsum.structure.terms import Terms
from tailsum.structure.transforms import by_value, with_recordable

This = TypeVar("This", bound="Sketches")


class Sketches(Sums[Terms, Configuration]):
    """Restrictions of a model to some of its states, given or chosen."""

    def restrict(self: This, subset: Subset) -> This:
        """The model over the weighted states `subset.index [*batch, *node, K]` only: the paper's Eq. 8.

        >>> from tailsum import LinearChain
        >>> chain = LinearChain(torch.randn(5, 9), torch.randn(9, 9))
        >>> chain.restrict(Subset(torch.arange(9).expand(5, 9), torch.zeros(5, 9)))
        LinearChain(batch=[], T=5, N=9 of 9)
        """
        check_subset(subset, self.batch_shape, self.node_shape, self.n_states)
        return self.restricted(subset)

    @for_authors
    def restricted(self: This, subset: Subset) -> This:
        """The same with a subset that was chosen here: to check it would be to wait for the device."""
        index, log_weight, pilot = subset.index.long(), subset.log_weight.to(self.dtype), subset.pilot
        small = with_recordable(self).gather(index)
        if self.kept is not None:
            lead = (*self.batch_shape, *self.node_shape, -1)
            log_weight = log_weight + self.log_weight.gather(-1, index.expand(lead))
            index = self.states.gather(-1, index.expand(lead))
            pilot = None  # its states have the local ids of this sketch
        return small.replaced(n_states=index.shape[-1], kept=Subset(index, log_weight, pilot), _origin=self.whole)

    def sketch(
        self: This,
        k: int | None = None,
        *,
        proposal: Propose | None = None,
        selection: Selection | None = None,
        generator: torch.Generator | None = None,
    ) -> This:
        """The model restricted to a small weighted subset of the states at each node, so that sums stay unbiased.

        Give `k`, the number of states to keep (by `Optimal(k)`), or a `selection`. `proposal` (default `Lookahead()`)
        is any function from the model to `log_q [*batch, *node, N]`, how much each state matters.
        """
        selection = selection_from(k, selection)
        chosen = proposal_from(Lookahead() if proposal is None else proposal)
        with full_precision(self.device):
            with torch.no_grad():
                subset = by_value(self, lambda model: chosen.choose(model, selection, generator), "sketch")
            return self.restrict(subset)

    @for_authors
    def state_norms(self) -> Float[Tensor, "*#batch_node n"]:
        """The L1 norm of each state's embedding, for `Global`; a ValueError where the states have none."""
        raise ValueError(f"the global proposal needs an embedding for each state, and {type(self).__name__} has none")

    @for_authors
    def sweep(self) -> Sweep:
        """Beliefs from sums of restricted models; a structure that can pass messages has a faster sweep."""
        nodes = self.weighted_nodes()
        beliefs = by_restriction(nodes.flatten(-len(self.node_shape) - 1, -2), self._log_mass_of_states)
        return LandmarkSweep(nodes, self.node_shape, beliefs)

    def _log_mass_of_states(self, subset: Subset) -> Tensor:
        """Log of the sum over all configurations through each state of `subset [chunk, *batch, V, K]`."""
        index, log_weight = (x.unflatten(-2, self.node_shape) for x in (subset.index, subset.log_weight))
        small = self.in_batch((len(index), *self.batch_shape)).restricted(Subset(index, log_weight))
        total, chance = small.state_chances()
        total = total.reshape(*total.shape, *(1,) * (chance.dim() - total.dim()))
        return (chance.log() + total).nan_to_num(-math.inf, neginf=-math.inf).flatten(-len(self.node_shape) - 1, -2)
