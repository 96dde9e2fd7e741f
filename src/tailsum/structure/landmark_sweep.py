"""Lookahead for any structure: what a state of a node is worth, given landmark states of all the other nodes.

Nothing need be known of how the nodes are connected. The model is restricted to landmarks at all nodes but one, and to some
of the states of that one; the sum over all configurations through each of these states says how much it matters. That
costs nodes x N / landmarks sums of the restricted model, so a structure that can pass messages has a faster sweep.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from tailsum.sketch.selection import Optimal, Selection, Subset
from tailsum.sketch.sweep import Sweep, fill_unreached

# From a node, counted in one dimension, to what each of its states is worth, its own score left out: [*batch, N].
Beliefs = Callable[[int], Tensor]


class LandmarkSweep(Sweep):
    """Beliefs about the states of every node from landmarks of all the others.

    `nodes [*batch, *node, N]` are the scores of single nodes, of which `node` says the dimensions. `given(kept)` says what
    the states of any one node are worth, where of all the others the kept states `[*batch, V, K]` count.
    """

    landmarks = 64

    def __init__(
        self, nodes: Float[Tensor, "*batch_node n"], node: torch.Size, given: Callable[[Subset], Beliefs]
    ) -> None:
        self.shape, self.given = nodes.shape, given
        self.nodes = nodes.flatten(-len(node) - 1, -2)
        self.belief = self.nodes

    def look(self, landmarks: int, generator: torch.Generator | None) -> None:
        worth = self.given(Optimal(landmarks)(self.belief, generator))
        self.belief = torch.stack([self._filled(worth, node) for node in range(self.nodes.shape[-2])], -2)

    def log_q(self, landmarks: int, generator: torch.Generator | None) -> Float[Tensor, "*batch_node n"]:
        return self.belief.reshape(self.shape)

    def sequence(self, selection: Selection, generator: torch.Generator | None) -> Subset:
        """Node after node, each by the states kept of those before it, and for now of those after it."""
        kept = selection(self.belief, generator)
        index, log_weight = kept.index.clone(), kept.log_weight.clone()
        for node in range(1, self.nodes.shape[-2]):
            chosen = selection(self._filled(self.given(Subset(index, log_weight)), node), generator)
            index[..., node, :], log_weight[..., node, :] = chosen.index, chosen.log_weight
        shape = (*self.shape[:-1], index.shape[-1])
        return Subset(index.reshape(shape), log_weight.reshape(shape))

    def _filled(self, worth: Beliefs, node: int) -> Tensor:
        return fill_unreached(worth(node)) + self.nodes[..., node, :]


def by_restriction(
    nodes: Float[Tensor, "*batch V n"], log_mass: Callable[[Subset], Tensor]
) -> Callable[[Subset], Beliefs]:
    """Beliefs from `log_mass(subset)`, the sum over all configurations through each state of a restricted model.

    It takes subsets `[chunk, *batch, V, K]` and gives as many numbers.
    """
    n_states = nodes.shape[-1]

    def given(kept: Subset) -> Beliefs:
        size = kept.index.shape[-1]
        everything = torch.arange(-(-n_states // size) * size, device=kept.index.device).reshape(-1, size)
        lead = (len(everything), *kept.index.shape)

        def worth(node: int) -> Tensor:
            index, log_weight = (x.expand(lead).clone() for x in (kept.index, kept.log_weight))
            some = everything.reshape(len(everything), *(1,) * (kept.index.dim() - 2), size)
            index[..., node, :] = some.clamp(max=n_states - 1)
            log_weight[..., node, :] = torch.where(some < n_states, 0.0, -torch.inf)
            found = log_mass(Subset(index, log_weight))[..., node, :]
            own = nodes[..., node, :]
            return torch.where(own > -torch.inf, found.movedim(0, -2).flatten(-2)[..., :n_states] - own, -torch.inf)

        return worth

    return given
