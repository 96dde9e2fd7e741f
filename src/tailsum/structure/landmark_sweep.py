"""Lookahead for any structure: beliefs about each state of a node, given landmarks at all other nodes.

The model is restricted to landmark states at all nodes but one, and to a few states of that one at a time. The belief in a
state is the log of the sum over all configurations through it. This needs no messages, but nodes x N / landmarks sums of
the restricted model.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from tailsum.sketch.selection import Optimal, Selection, Subset
from tailsum.sketch.sweep import Sweep, fill_unreached

Beliefs = Callable[[int], Tensor]  # from a node (flat index) to beliefs [*batch, N], without the node's own scores


class LandmarkSweep(Sweep):
    """Beliefs about the states of every node from landmarks at all others.

    `nodes [*batch, *node, N]` are the scores of single nodes. `given(kept)` has the beliefs about one node if all others are
    restricted to the kept states `[*batch, V, K]`.
    """

    landmarks = 64

    def __init__(
        self, nodes: Float[Tensor, "*batch_node n"], node: torch.Size, given: Callable[[Subset], Beliefs]
    ) -> None:
        self.shape, self.given = nodes.shape, given
        self.nodes = nodes.flatten(-len(node) - 1, -2)
        self.belief = self.nodes

    def look(self, landmarks: int, generator: torch.Generator | None) -> None:
        beliefs = self.given(Optimal(landmarks)(self.belief, generator))
        self.belief = torch.stack([self._filled(beliefs, node) for node in range(self.nodes.shape[-2])], -2)

    def log_q(self, landmarks: int, generator: torch.Generator | None) -> Float[Tensor, "*batch_node n"]:
        return self.belief.reshape(self.shape)

    def sequence(self, selection: Selection, generator: torch.Generator | None) -> Subset:
        """Node after node, given the states kept before it, and those selected provisionally after it."""
        kept = selection(self.belief, generator)
        index, log_weight = kept.index.clone(), kept.log_weight.clone()
        for node in range(1, self.nodes.shape[-2]):
            chosen = selection(self._filled(self.given(Subset(index, log_weight)), node), generator)
            index[..., node, :], log_weight[..., node, :] = chosen.index, chosen.log_weight
        shape = (*self.shape[:-1], index.shape[-1])
        return Subset(index.reshape(shape), log_weight.reshape(shape))

    def _filled(self, beliefs: Beliefs, node: int) -> Tensor:
        return fill_unreached(beliefs(node)) + self.nodes[..., node, :]


def by_restriction(
    nodes: Float[Tensor, "*batch V n"], log_mass: Callable[[Subset], Tensor]
) -> Callable[[Subset], Beliefs]:
    """Beliefs from `log_mass`, which gives the log-sum over all configurations through each state of a subset `[.., V, K]`."""
    n_states = nodes.shape[-1]

    def given(kept: Subset) -> Beliefs:
        size = kept.index.shape[-1]
        chunks = -(-n_states // size)
        every = torch.arange(chunks * size, device=kept.index.device)
        every = every.reshape(chunks, *(1,) * (kept.index.dim() - 2), size)

        def beliefs(node: int) -> Tensor:
            index, log_weight = (x.repeat(chunks, *(1,) * x.dim()) for x in (kept.index, kept.log_weight))
            index[..., node, :] = every.clamp(max=n_states - 1)
            log_weight[..., node, :] = torch.where(every < n_states, 0.0, -torch.inf)
            mass = log_mass(Subset(index, log_weight))[..., node, :].movedim(0, -2).flatten(-2)[..., :n_states]
            scores = nodes[..., node, :]
            return torch.where(scores > -torch.inf, mass - scores, -torch.inf)

        return beliefs

    return given
