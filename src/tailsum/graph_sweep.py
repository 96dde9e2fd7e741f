"""Lookahead on a graph: messages that a few landmark states of each variable send to all states of its neighbours.

The graph restricted to landmarks is a small graph of the same kind. Its messages are iterated to the end; then every
factor passes on, once, what the landmarks of its other variables say of all N states. To select in sequence, variables
are visited layer after layer: those already selected speak by the states that they keep, the others by their landmarks.
"""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tailsum.kernels.table import fits_budget, tile_size
from tailsum.layers import Given, visits
from tailsum.propose import Sweep
from tailsum.select import Optimal, Selection, Subset
from tailsum.sweep import known


class GraphSweep(Sweep):
    """What landmarks say of all states of a graph, the batch flattened.

    The tables of all pairs of landmarks of all factors should stay a small part of the table budget: where a graph has
    many factors, there are fewer landmarks than asked for.
    """

    def __init__(self, model: Any) -> None:
        self.model, self.batch = model, model.batch_shape.numel()
        nodes = model.node_scores() if model.kept is None else model.node_scores() + model.log_weight
        self.nodes = nodes.reshape(self.batch, *nodes.shape[-2:])
        self.belief = self.nodes
        self.landmarks: Tensor | None = None  # [B, V, M]
        self.cavities: list[list[Tensor]] = []  # of landmarks, for each group of factors and position: [B, F, M]

    def look(self, landmarks: int, generator: torch.Generator | None) -> None:
        count = sum(map(len, self.model.variables)) * self.batch * self.nodes.element_size()
        while landmarks > 16 and not fits_budget(16 * count * landmarks**2):
            landmarks //= 2
        kept = self._selected(Optimal(landmarks), generator)
        shape = (*self.model.batch_shape, *kept.index.shape[1:])
        small = self.model.restrict(Subset(kept.index.reshape(shape), kept.log_weight.reshape(shape)))
        self.landmarks, self.cavities = kept.index, small.cavities()
        belief = self.nodes.clone()
        for g, variables in enumerate(self.model.variables):
            together = max(1, 4 * tile_size(belief.device) // max(1, self.batch * belief.shape[-1]))
            for start in range(0, len(variables), together):
                factors = torch.arange(start, min(start + together, len(variables)), device=belief.device)
                for position in range(variables.shape[1]):
                    sent = self._seen(Given(g, position, (), factors, variables[factors, position]))
                    belief.index_add_(1, variables[factors, position], sent)
        self.belief = belief

    def log_q(self, landmarks: int, generator: torch.Generator | None) -> Float[Tensor, "*batch V n"]:
        return self.belief.reshape(*self.model.batch_shape, *self.belief.shape[1:])

    def sequence(self, selection: Selection, generator: torch.Generator | None) -> Subset:
        index: dict[int, Tensor] = {}  # of each variable, and for each group, position and factor what it says: [B, K]
        said: dict[tuple[int, int, int], Tensor] = {}
        log_weight: dict[int, Tensor] = {}
        for layer in visits(self.model.variables, self.model.plan):
            q = self.nodes.index_select(1, layer.nodes)
            arrived = []
            for given in layer.given:
                sent = self._sent(given, index, said) if given.earlier else self._seen(given)
                q = q.index_add(1, given.put, sent)
                arrived.append(sent)
            kept = selection(q, generator)
            here = layer.nodes.tolist()
            index.update(zip(here, kept.index.unbind(1), strict=True))
            log_weight.update(zip(here, kept.log_weight.unbind(1), strict=True))
            for given, sent in zip(layer.given, arrived, strict=True):
                if len(given.earlier) + 1 == self.model.variables[given.group].shape[1]:
                    continue  # the last of its factor: nobody asks any more
                own = kept.index.index_select(1, given.put)
                total = q.index_select(1, given.put).gather(-1, own)
                cavity = torch.where(total > -math.inf, total - sent.gather(-1, own), -math.inf)
                cavity = cavity + kept.log_weight.index_select(1, given.put)
                for f, value in zip(given.factors.tolist(), cavity.unbind(1), strict=True):
                    said[given.group, given.position, f] = value
        nodes = range(self.nodes.shape[1])
        shape = (*self.model.batch_shape, self.nodes.shape[1], -1)
        return Subset(
            torch.stack([index[v] for v in nodes], 1).reshape(shape),
            torch.stack([log_weight[v] for v in nodes], 1).reshape(shape),
        )

    def _seen(self, given: Given) -> Tensor:
        """What factors say by landmarks of all their other variables, `[B, m, N]`; finite."""
        if self.landmarks is None:
            return self.nodes.new_zeros(self.batch, len(given.factors), self.nodes.shape[-1])
        variables = self.model.variables[given.group].index_select(0, given.factors)
        others = [
            None
            if axis == given.position
            else Subset(
                self.landmarks.index_select(1, variables[:, axis]),
                self.cavities[given.group][axis].index_select(1, given.factors),
            )
            for axis in range(variables.shape[1])
        ]
        return known(self.model.extend(given.group, given.factors, others))

    def _sent(self, given: Given, index: dict[int, Tensor], said: dict[tuple[int, int, int], Tensor]) -> Tensor:
        """What factors say by the kept states of the variables that were selected, and by landmarks of the others."""
        variables = self.model.variables[given.group].index_select(0, given.factors)
        factors = given.factors.tolist()
        others: list[Subset | None] = [None] * variables.shape[1]
        for axis in range(variables.shape[1]):
            if axis in given.earlier:
                others[axis] = Subset(
                    torch.stack([index[v] for v in variables[:, axis].tolist()], 1),
                    torch.stack([said[given.group, axis, f] for f in factors], 1),
                )
            elif axis != given.position and self.landmarks is not None:
                others[axis] = Subset(
                    self.landmarks.index_select(1, variables[:, axis]),
                    self.cavities[given.group][axis].index_select(1, given.factors),
                )
        return self.model.extend(given.group, given.factors, others)

    def _selected(self, selection: Selection, generator: torch.Generator | None) -> Subset:
        """A selection by the beliefs, some variables at a time: it works in double precision, and needs room."""
        together = max(1, tile_size(self.belief.device) // max(1, self.batch * self.belief.shape[-1]))
        kept = [selection(part, generator) for part in self.belief.split(together, 1)]
        return Subset(torch.cat([k.index for k in kept], 1), torch.cat([k.log_weight for k in kept], 1))
