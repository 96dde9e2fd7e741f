"""Lookahead on a graph: messages that a few landmark states of each variable send to all states of its neighbours.

Variables are visited layer after layer. Those already visited speak by the states that were selected at them, the others
by the landmarks of the round before, if there was one. The graph restricted to the landmarks so found is a small graph of
the same kind, whose messages are iterated to the end. Landmarks are found from the last layer to the first (on a tree, from
the leaves to the roots), and the final selection goes the other way.
"""

import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.graphs.layers import Given, Plan, visits
from tailsum.graphs.propagate import normalised
from tailsum.numerics.table import fits_budget, tile_size
from tailsum.sketch.selection import Optimal, Selection, Subset
from tailsum.sketch.sweep import Sweep, fill_unreached

# What factors of a group say of all states of the variable at a position, where of the others some states speak:
# (group, factors [m], position, others by position) -> [B, m, N].
Extend = Callable[[int, Tensor, int, Sequence[Subset | None]], Tensor]


class GraphSweep(Sweep):
    """What landmarks say of all states of a graph, the batch flattened.

    The tables of all pairs of landmarks of all factors should stay a small part of the table budget: where a graph has
    many factors, there are fewer landmarks than asked for.
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
        self.variables, self.plan, self.extend, self.cavities_of = variables, plan, extend, cavities
        self.marks: Tensor | None = None  # the landmarks [B, V, M]
        self.cavities: list[list[Tensor]] = []  # of landmarks, for each group of factors and position: [B, F, M]

    def look(self, landmarks: int, generator: torch.Generator | None) -> None:
        batch, _, n = self.nodes.shape
        if landmarks >= n:  # the graph itself, which may share tables that a restricted one does not
            self.see(torch.arange(n, device=self.nodes.device).expand(self.nodes.shape), self.cavities_of(None))
            return
        count = sum(map(len, self.variables)) * batch * 3 * self.nodes.element_size()  # scores and indices
        while landmarks > 16 and not fits_budget(2 * count * landmarks**2):
            landmarks //= 2
        kept = self._walk(Optimal(landmarks), generator, back=True)
        self.see(kept.index, self.cavities_of(self._in_batch(kept)))

    def see(self, marks: Int[Tensor, "B V m"], cavities: list[list[Tensor]]) -> None:
        """Take these landmarks, and what the rest of the graph says of them to each factor."""
        self.marks, self.cavities = marks, cavities

    def log_q(self, landmarks: int, generator: torch.Generator | None) -> Float[Tensor, "*batch V n"]:
        belief = self.nodes.clone()
        for g, variables in enumerate(self.variables):
            together = max(1, 4 * tile_size(belief.device) // max(1, belief.shape[0] * belief.shape[-1]))
            for start in range(0, len(variables), together):
                factors = torch.arange(start, min(start + together, len(variables)), device=belief.device)
                for position in range(variables.shape[1]):
                    put = variables[factors, position]
                    belief.index_add_(1, put, self._seen(Given(g, position, (), factors, put)))
        return belief.reshape(self.shape)

    def sequence(self, selection: Selection, generator: torch.Generator | None) -> Subset:
        return self._in_batch(self._walk(selection, generator, back=False))

    def _walk(self, selection: Selection, generator: torch.Generator | None, *, back: bool) -> Subset:
        """Select layer after layer, `[B, V, K]`."""
        variables = self.variables
        chosen = _Chosen(self.nodes, variables)
        for layer in visits(variables, self.plan, back=back):
            sent = [self._sent(given, chosen) if given.earlier else self._seen(given) for given in layer.given]
            arrived = [normalised(x) for x in sent]  # where paths meet again, a common factor would count once for each
            q = self.nodes.index_select(1, layer.nodes)
            for given, message in zip(layer.given, arrived, strict=True):
                q = q.index_add(1, given.put, message)
            kept = selection(q, generator)
            chosen.keep(layer.nodes, kept)
            for given, message in zip(layer.given, arrived, strict=True):
                if len(given.earlier) + 1 == variables[given.group].shape[1]:
                    continue  # the last of its factor: nobody asks any more
                own = kept.index.index_select(1, given.put)
                total = q.index_select(1, given.put).gather(-1, own)
                cavity = torch.where(total > -math.inf, total - message.gather(-1, own), -math.inf)
                chosen.tell(given, cavity + kept.log_weight.index_select(1, given.put))
        return chosen.kept

    def _in_batch(self, kept: Subset) -> Subset:
        shape = (*self.shape[:-1], kept.index.shape[-1])
        return Subset(kept.index.reshape(shape), kept.log_weight.reshape(shape))

    def _seen(self, given: Given) -> Tensor:
        """What factors say by landmarks of all their other variables, `[B, m, N]`; finite."""
        if self.marks is None:
            return self.nodes.new_zeros(len(self.nodes), len(given.factors), self.nodes.shape[-1])
        variables = self.variables[given.group].index_select(0, given.factors)
        axes = range(variables.shape[1])
        others = [None if axis == given.position else self._landmarks(given, variables, axis) for axis in axes]
        return fill_unreached(self.extend(given.group, given.factors, given.position, others))

    def _sent(self, given: Given, chosen: "_Chosen") -> Tensor:
        """What factors say by the kept states of the variables that were selected, and by landmarks of the others.

        Kept states alone say what is impossible; landmarks do not.
        """
        variables = self.variables[given.group].index_select(0, given.factors)
        all_kept = len(given.earlier) + 1 == variables.shape[1]
        if self.marks is None and not all_kept:
            return self._seen(given)
        others = [
            chosen.speaking(given, variables, axis)
            if axis in given.earlier
            else None
            if axis == given.position
            else self._landmarks(given, variables, axis)
            for axis in range(variables.shape[1])
        ]
        sent = self.extend(given.group, given.factors, given.position, others)
        return sent if all_kept else fill_unreached(sent)

    def _landmarks(self, given: Given, variables: Tensor, axis: int) -> Subset:
        """The landmarks of the variables on one axis of some factors, and what the rest of the graph says of them."""
        assert self.marks is not None
        return Subset(
            self.marks.index_select(1, variables[:, axis]),
            self.cavities[given.group][axis].index_select(1, given.factors),
        )


class _Chosen:
    """The states selected so far, and what each variable tells its factors by them."""

    def __init__(self, nodes: Tensor, variables: Sequence[Tensor]) -> None:
        self.nodes, self.variables = nodes, variables
        self.kept = Subset(torch.empty(0, dtype=torch.long), torch.empty(0))  # [B, V, K]
        self.said: list[list[Tensor]] = []  # for each group of factors and position, [B, F, K]

    def keep(self, nodes: Tensor, kept: Subset) -> None:
        if not self.said:  # the first layer shows how many are kept
            batch, _, k = kept.index.shape
            shape = (batch, self.nodes.shape[1], k)
            self.kept = Subset(kept.index.new_zeros(shape), kept.log_weight.new_zeros(shape))
            self.said = [[kept.log_weight.new_zeros(batch, len(v), k) for _ in v[0]] for v in self.variables]
        self.kept.index.index_copy_(1, nodes, kept.index)
        self.kept.log_weight.index_copy_(1, nodes, kept.log_weight)

    def tell(self, given: Given, cavity: Tensor) -> None:
        self.said[given.group][given.position].index_copy_(1, given.factors, cavity)

    def speaking(self, given: Given, variables: Tensor, axis: int) -> Subset:
        """The kept states of the variables on one axis of some factors, and what they tell these."""
        return Subset(
            self.kept.index.index_select(1, variables[:, axis]),
            self.said[given.group][axis].index_select(1, given.factors),
        )
