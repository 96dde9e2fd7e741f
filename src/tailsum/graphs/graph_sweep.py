"""Lookahead on a graph: messages from a few landmark states of each variable to all states of its neighbours.

Variables are visited layer after layer. Those already visited send messages from their selected states, the others
from their landmarks of the previous round, if there was one. The graph restricted to the new landmarks is a small graph
of the same kind, whose messages are iterated until they converge. Landmarks are selected from the last layer to the
first (on a tree, from the leaves to the roots), and the final selection goes the other way.

With neighbours, pair factors send messages to all states in each walk, and the next walk, in the other direction, reads
them. The final selection on a forest is then depth first: the messages of the kept states of one branch are known before
the next branch is entered, so that the errors of branches do not multiply.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.graphs.depth_first import Arrival, depth_first
from tailsum.graphs.layers import Links, Plan, visits
from tailsum.graphs.near_pairs import NearPairs
from tailsum.graphs.propagate import normalised
from tailsum.numerics.tiles import fits_budget, tile_size
from tailsum.scores.potential import Potential
from tailsum.sketch.neighbours import Neighbours
from tailsum.sketch.selection import Optimal, Selection, Subset
from tailsum.sketch.sweep import Sweep, fill_unreached

# Messages from factors of a group to all states of the variable at a position, by selected states of the others:
# (group, factors [m], position, others by position) -> [B, m, N].
Extend = Callable[[int, Tensor, int, Sequence[Subset | None]], Tensor]


@dataclass
class _Senders:
    """States of each variable that send messages, and their cavities."""

    index: Tensor  # [B, V, K]
    cavities: list[list[Tensor]]  # for each group of factors and position, [B, F, K]
    learned: Tensor  # [B, V, K]: added to all cavities of a variable

    def of(self, links: Links, variables: Tensor, axis: int) -> Subset:
        """The states of the variables on one axis of the factors, with their cavities as weights."""
        nodes = variables[:, axis]
        cavity = self.cavities[links.group][axis].index_select(1, links.factors)
        return Subset(self.index.index_select(1, nodes), cavity + self.learned.index_select(1, nodes))


class GraphSweep(Sweep):
    """Messages from landmarks to all states of a graph, the batch flattened.

    The tables of all pairs of landmarks of all factors must stay a small part of the table budget: graphs with many
    factors get fewer landmarks than requested. With neighbours at all factors there are no such tables.
    """

    def __init__(
        self,
        nodes: Float[Tensor, "*batch V n"],
        variables: Sequence[Int[Tensor, "_ _"]],
        plan: Plan,
        extend: Extend,
        cavities: Callable[[Subset | None], list[list[Tensor]]],
        pairs: Sequence[Potential | None],
    ) -> None:
        """`pairs` are the scores of each group of factors over pairs of variables with the same states; None for others."""
        self.shape, self.nodes = nodes.shape, nodes.reshape(nodes.shape[:-2].numel(), *nodes.shape[-2:])
        self.variables, self.plan, self.extend, self.cavities, self.pairs = variables, plan, extend, cavities, pairs
        self.landmark: _Senders | None = None
        self.near: list[NearPairs | None] = [None] * len(variables)
        self.looked = False

    def set_neighbours(self, neighbours: Neighbours | int, landmarks: int) -> None:
        for g, (pairs, variables) in enumerate(zip(self.pairs, self.variables, strict=True)):
            if pairs is not None:
                zeros = self.nodes.new_zeros(len(self.nodes), len(variables), self.nodes.shape[-1])
                near = NearPairs(pairs, neighbours, self.shape[:-2], zeros)
                if self.plan.forest or near.lists is not None:
                    self.near[g] = near
                if len(self.pairs) == 1:
                    self.lists = near.lists

    def look(self, landmarks: int, generator: torch.Generator | None) -> None:
        batch, _, n = self.nodes.shape
        if landmarks >= n and not any(self.near):
            # The graph itself: it may share tables that a restricted graph would not share.
            self.set_landmarks(torch.arange(n, device=self.nodes.device).expand(self.nodes.shape), self.cavities(None))
            return
        if not all(self.near):
            count = sum(map(len, self.variables)) * batch * 3 * self.nodes.element_size()  # scores and indices
            while landmarks > 16 and not fits_budget(2 * count * landmarks**2):
                landmarks //= 2
        if any(self.near) and self.looked:
            self._guess(Optimal(max(1, landmarks // 2)), generator, back=False)
        kept = self._guess(Optimal(landmarks), generator, back=True)
        self.looked = True
        if not all(self.near):
            self.set_landmarks(kept.index, self.cavities(self._in_batch(kept)))

    def set_landmarks(self, marks: Int[Tensor, "B V m"], cavities: list[list[Tensor]]) -> None:
        """Set the landmarks, and their cavities for each group of factors and position, `[B, F, m]`."""
        self.landmark = _Senders(marks, cavities, torch.zeros_like(marks, dtype=self.nodes.dtype))

    def log_q(self, landmarks: int, generator: torch.Generator | None) -> Float[Tensor, "*batch V n"]:
        if any(self.near):
            self._guess(Optimal(landmarks), generator, back=False)
        belief = self.nodes.clone()
        for g, variables in enumerate(self.variables):
            together = max(1, 4 * tile_size(belief.device) // max(1, belief.shape[0] * belief.shape[-1]))
            for start in range(0, len(variables), together):
                factors = torch.arange(start, min(start + together, len(variables)), device=belief.device)
                for position in range(variables.shape[1]):
                    put = variables[factors, position]
                    belief.index_add_(1, put, self._sent(Links(g, position, (), factors, put), None))
        return belief.reshape(self.shape)

    def sequence(self, selection: Selection, generator: torch.Generator | None) -> Subset:
        if self.plan.forest and self.near and all(self.near):
            arrivals = depth_first(self.variables, self.nodes.shape[1], self.nodes.device)
        else:
            arrivals = [Arrival(visit, []) for visit in visits(self.variables, self.plan)]
        return self._in_batch(self._walk(arrivals, selection, generator))

    def _guess(self, selection: Selection, generator: torch.Generator | None, *, back: bool) -> Subset:
        """Select landmarks layer after layer; their messages, with those of neighbours, are guesses for all states."""
        arrivals = [Arrival(visit, []) for visit in visits(self.variables, self.plan, back=back)]
        return self._walk(arrivals, selection, generator, guess=True)

    def _walk(
        self, arrivals: list[Arrival], selection: Selection, generator: torch.Generator | None, *, guess: bool = False
    ) -> Subset:
        """Select layer after layer, `[B, V, K]`; a `guess` sends messages along neighbours too."""
        kept: Subset | None = None
        senders: _Senders | None = None
        for layer, ended in arrivals:
            for links in itertools.chain(*ended):
                self._learn(links, senders)
            # Normalised: where paths meet again, a common factor would be counted once for each path.
            arrived = [normalised(self._sent(links, senders, guess=guess)) for links in layer.links]
            q = self.nodes.index_select(1, layer.nodes)
            for links, message in zip(layer.links, arrived, strict=True):
                q = q.index_add(1, links.put, message)
            chosen = selection(q, generator)
            if kept is None or senders is None:  # the first layer determines K
                kept, senders = self._empty(chosen)
            kept.index.index_copy_(1, layer.nodes, chosen.index)
            kept.log_weight.index_copy_(1, layer.nodes, chosen.log_weight)
            for links, message in zip(layer.links, arrived, strict=True):
                index = chosen.index.index_select(1, links.put)
                log_weight = chosen.log_weight.index_select(1, links.put)
                total, near = q.index_select(1, links.put), self.near[links.group]
                cavity = torch.where(total > -math.inf, total - message, -math.inf)
                if guess and near is not None:
                    if not links.earlier:
                        near.send(links.factors, 1 - links.position, cavity, Subset(index, log_weight))
                    continue
                cavity = cavity.gather(-1, index) + log_weight
                senders.cavities[links.group][links.position].index_copy_(1, links.factors, cavity)
        assert kept is not None  # a graph has at least one variable
        return kept

    def _learn(self, links: Links, senders: _Senders | None) -> None:
        """Replace the guess by the message from the kept states of a branch."""
        near = self.near[links.group]
        assert senders is not None
        assert near is not None
        variables = self.variables[links.group].index_select(0, links.factors)
        kept = senders.of(links, variables, 1 - links.position)
        more = near.correction(links.factors, links.position, kept, senders.index.index_select(1, links.put))
        senders.learned.index_add_(1, links.put, more)

    def _empty(self, chosen: Subset) -> tuple[Subset, _Senders]:
        """Empty kept states of all variables, as many per variable as in the first layer, and empty cavities."""
        batch, _, k = chosen.index.shape
        weight, shape = chosen.log_weight, (batch, self.nodes.shape[1], k)
        kept = Subset(chosen.index.new_zeros(shape), weight.new_zeros(shape))
        cavities = [[weight.new_zeros(batch, len(v), k) for _ in v[0]] for v in self.variables]
        return kept, _Senders(kept.index, cavities, weight.new_zeros(shape))

    def _in_batch(self, kept: Subset) -> Subset:
        shape = (*self.shape[:-1], kept.index.shape[-1])
        return Subset(kept.index.reshape(shape), kept.log_weight.reshape(shape))

    def _sent(self, links: Links, kept: _Senders | None, *, guess: bool = False) -> Tensor:
        """Messages `[B, m, N]` of factors from the kept states of variables in earlier layers and landmarks of the others.

        Only kept states rule out a state: where landmarks are used, minus infinity is filled in. With neighbours, a `guess`
        reads the messages sent last.
        """
        near = self.near[links.group]
        if near is not None and (guess or not links.earlier):
            return near.sent(links.factors, links.position)
        variables = self.variables[links.group].index_select(0, links.factors)
        all_kept = len(links.earlier) + 1 == variables.shape[1]
        if self.landmark is None and not all_kept:
            return self.nodes.new_zeros(len(self.nodes), len(links.factors), self.nodes.shape[-1])
        senders = [kept if axis in links.earlier else self.landmark for axis in range(variables.shape[1])]
        others = [
            None if sender is None or axis == links.position else sender.of(links, variables, axis)
            for axis, sender in enumerate(senders)
        ]
        sent = self.extend(links.group, links.factors, links.position, others)
        return sent if all_kept else fill_unreached(sent)
