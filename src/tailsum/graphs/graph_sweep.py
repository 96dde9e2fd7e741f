"""Lookahead on a graph: messages from a few landmark states of each variable to all states of its neighbours.

Variables are visited layer after layer. Those already visited send messages from the states selected at them, the others
from the landmarks of the previous round, if there was one. The graph restricted to the new landmarks is a small graph of
the same kind, whose messages are iterated until they converge. Landmarks are selected from the last layer to the first
(on a tree, from the leaves to the roots), and the final selection goes the other way.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.graphs.layers import Given, Plan, visits
from tailsum.graphs.propagate import normalised
from tailsum.numerics.table import fits_budget, tile_size
from tailsum.sketch.selection import Optimal, Selection, Subset
from tailsum.sketch.sweep import Sweep, fill_unreached

# Messages of factors of a group to all states of the variable at a position, from some states of the others:
# (group, factors [m], position, others by position) -> [B, m, N].
Extend = Callable[[int, Tensor, int, Sequence[Subset | None]], Tensor]


@dataclass
class _Senders:
    """States of each variable that send messages, and their cavities."""

    index: Tensor  # [B, V, K]
    cavities: list[list[Tensor]]  # for each group of factors and position, [B, F, K]

    def of(self, given: Given, variables: Tensor, axis: int) -> Subset:
        """The states of the variables on one axis of some factors, with their cavities as weights."""
        return Subset(
            self.index.index_select(1, variables[:, axis]),
            self.cavities[given.group][axis].index_select(1, given.factors),
        )


class GraphSweep(Sweep):
    """Messages from landmarks to all states of a graph, the batch flattened.

    The tables of all pairs of landmarks of all factors must stay a small part of the table budget: graphs with many
    factors get fewer landmarks than requested.
    """

    def __init__(
        self,
        nodes: Float[Tensor, "*batch V n"],
        variables: Sequence[Int[Tensor, "_ _"]],
        plan: Plan,
        extend: Extend,
        cavities: Callable[[Subset | None], list[list[Tensor]]],
    ) -> None:
        self.shape, self.nodes = nodes.shape, nodes.reshape(nodes.shape[:-2].numel(), *nodes.shape[-2:])
        self.variables, self.plan, self.extend, self.cavities = variables, plan, extend, cavities
        self.landmark: _Senders | None = None

    def look(self, landmarks: int, generator: torch.Generator | None) -> None:
        batch, _, n = self.nodes.shape
        if landmarks >= n:  # the graph itself, which may share tables that a restricted one does not
            self.set_landmarks(torch.arange(n, device=self.nodes.device).expand(self.nodes.shape), self.cavities(None))
            return
        count = sum(map(len, self.variables)) * batch * 3 * self.nodes.element_size()  # scores and indices
        while landmarks > 16 and not fits_budget(2 * count * landmarks**2):
            landmarks //= 2
        kept = self._walk(Optimal(landmarks), generator, back=True)
        self.set_landmarks(kept.index, self.cavities(self._in_batch(kept)))

    def set_landmarks(self, marks: Int[Tensor, "B V m"], cavities: list[list[Tensor]]) -> None:
        """Set the landmarks, and their cavities for each group of factors and position, `[B, F, m]`."""
        self.landmark = _Senders(marks, cavities)

    def log_q(self, landmarks: int, generator: torch.Generator | None) -> Float[Tensor, "*batch V n"]:
        belief = self.nodes.clone()
        for g, variables in enumerate(self.variables):
            together = max(1, 4 * tile_size(belief.device) // max(1, belief.shape[0] * belief.shape[-1]))
            for start in range(0, len(variables), together):
                factors = torch.arange(start, min(start + together, len(variables)), device=belief.device)
                for position in range(variables.shape[1]):
                    put = variables[factors, position]
                    belief.index_add_(1, put, self._sent(Given(g, position, (), factors, put), None))
        return belief.reshape(self.shape)

    def sequence(self, selection: Selection, generator: torch.Generator | None) -> Subset:
        return self._in_batch(self._walk(selection, generator, back=False))

    def _walk(self, selection: Selection, generator: torch.Generator | None, *, back: bool) -> Subset:
        """Select layer after layer, `[B, V, K]`."""
        kept: Subset | None = None
        senders: _Senders | None = None
        for layer in visits(self.variables, self.plan, back=back):
            # Normalised: where paths meet again, a common factor would be counted once for each.
            arrived = [normalised(self._sent(given, senders)) for given in layer.given]
            q = self.nodes.index_select(1, layer.nodes)
            for given, message in zip(layer.given, arrived, strict=True):
                q = q.index_add(1, given.put, message)
            chosen = selection(q, generator)
            if kept is None or senders is None:  # the first layer determines K
                kept, senders = self._empty(chosen)
            kept.index.index_copy_(1, layer.nodes, chosen.index)
            kept.log_weight.index_copy_(1, layer.nodes, chosen.log_weight)
            for given, message in zip(layer.given, arrived, strict=True):
                if len(given.earlier) + 1 == self.variables[given.group].shape[1]:
                    continue  # the last variable of its factors: its cavity is not used
                own = chosen.index.index_select(1, given.put)
                total = q.index_select(1, given.put).gather(-1, own)
                cavity = torch.where(total > -math.inf, total - message.gather(-1, own), -math.inf)
                cavity = cavity + chosen.log_weight.index_select(1, given.put)
                senders.cavities[given.group][given.position].index_copy_(1, given.factors, cavity)
        assert kept is not None  # a graph has at least one variable
        return kept

    def _empty(self, chosen: Subset) -> tuple[Subset, _Senders]:
        """Places for the kept states of all variables, as many as of the first layer, and for their cavities."""
        batch, _, k = chosen.index.shape
        weight, shape = chosen.log_weight, (batch, self.nodes.shape[1], k)
        kept = Subset(chosen.index.new_zeros(shape), weight.new_zeros(shape))
        return kept, _Senders(kept.index, [[weight.new_zeros(batch, len(v), k) for _ in v[0]] for v in self.variables])

    def _in_batch(self, kept: Subset) -> Subset:
        shape = (*self.shape[:-1], kept.index.shape[-1])
        return Subset(kept.index.reshape(shape), kept.log_weight.reshape(shape))

    def _sent(self, given: Given, kept: _Senders | None) -> Tensor:
        """Messages `[B, m, N]` of factors from the kept states of variables in earlier layers and landmarks of the others.

        Only kept states rule out a state: where landmarks are used, minus infinity is filled in.
        """
        variables = self.variables[given.group].index_select(0, given.factors)
        all_kept = len(given.earlier) + 1 == variables.shape[1]
        if self.landmark is None and not all_kept:
            return self.nodes.new_zeros(len(self.nodes), len(given.factors), self.nodes.shape[-1])
        senders = [kept if axis in given.earlier else self.landmark for axis in range(variables.shape[1])]
        others = [
            None if sender is None or axis == given.position else sender.of(given, variables, axis)
            for axis, sender in enumerate(senders)
        ]
        sent = self.extend(given.group, given.factors, given.position, others)
        return sent if all_kept else fill_unreached(sent)
