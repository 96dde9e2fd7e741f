"""Acyclic graphs in levels: which arcs lie on a path from the first node to the last, and where they stand in a lattice.

Arcs are `[G, 2, E]`, from and to nodes 0 .. n-1 of each of G graphs, -1 in the padding; the last node is the end. The level of
a node is the length of the longest path to it. Levels of all graphs are summed side by side.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.numerics.levels import path_sums, path_sums_before
from tailsum.numerics.moves import Listed
from tailsum.numerics.reduce import Reduce, highest
from tailsum.numerics.transforms import values_of


@dataclass(frozen=True)
class Topology:
    """Graphs in levels. `slots` say which of the `G * E` arcs stands where in the tables of `moves`, `G * E` for none.

    `ends` are the rows of the ends in a table of nodes, `depth [G, E]` the level of the node that an arc leaves, and
    `longest` the number of arcs of the longest path.
    """

    arcs: Tensor  # as it was given, to be recognised
    moves: Listed
    slots: Int[Tensor, " slots"]
    ends: Int[Tensor, " G"]
    depth: Int[Tensor, "G E"]
    longest: int

    def total(self, scores: Float[Tensor, "C arcs"], reduce: Reduce) -> Float[Tensor, "C G"]:
        """The reduction over the paths of each graph, for C tables of scores of all arcs."""
        columns = torch.arange(len(scores), device=scores.device)[:, None]
        return path_sums(self._in_slots(scores), self.moves, self.ends * len(scores) + columns, reduce)

    def highest_before(self, scores: Float[Tensor, "C arcs"]) -> Float[Tensor, "C arcs"]:
        """The highest score of a path to each arc, without its own; minus infinity for arcs that lie on no path."""
        before = path_sums_before(self._in_slots(scores), self.moves, highest)
        none = before.new_full((len(scores), scores.shape[1] + 1), -torch.inf)
        return none.index_copy_(1, self.slots, before.mT)[:, :-1]

    def _in_slots(self, scores: Float[Tensor, "C arcs"]) -> Float[Tensor, "slots C"]:
        return F.pad(scores, (0, 1), value=-torch.inf).index_select(1, self.slots).mT.contiguous()


def topology(arcs: Int[Tensor, "*batch 2 E"], n_nodes: Int[Tensor, "*batch"]) -> Topology:
    """The levels of graphs with checked node numbers; a ValueError where one has a cycle or no path to its end."""
    graphs, sizes = arcs.reshape(-1, *arcs.shape[-2:]).cpu(), n_nodes.flatten().tolist()
    width, count = max(sizes, default=0), graphs.shape[-1]
    rows = [
        _levels(graph.tolist(), size, "" if arcs.dim() == 2 else f" of graph {g}")
        for g, (graph, size) in enumerate(zip(graphs, sizes, strict=True))
    ]
    level = torch.tensor([row + [-1] * (width - len(row)) for row in rows], dtype=torch.long).reshape(len(sizes), width)
    depth, into = (level.gather(1, graphs[:, i].clamp(min=0)) if width else graphs[:, i] for i in (0, 1))
    used = ((graphs >= 0).all(1) & (depth >= 0) & (into >= 0)).flatten().nonzero()[:, 0]
    first = width * torch.arange(len(sizes))
    tail, head = ((graphs[:, i] + first[:, None]).flatten()[used] for i in (0, 1))
    with torch.inference_mode(False):  # tables are saved for backward passes
        moves, slots, row_of = _placed(level.flatten(), tail, head, first)
        slots = torch.cat((used, torch.tensor([graphs.shape[0] * count])))[slots]
        ends = row_of[first + torch.tensor(sizes, dtype=torch.long) - 1]
    # A transform would wrap them, and not see them in what it unwraps again.
    source, into, slots, ends, depth = (
        values_of(x.to(arcs.device)) for x in (moves.source, moves.head, slots, ends, depth)
    )
    moves = Listed(source, into, moves.starts, moves.sizes)
    return Topology(arcs, moves, slots, ends, depth, int(level.max()) if level.numel() else 0)


def _levels(arcs: Sequence[Sequence[int]], n_nodes: int, where: str) -> list[int]:
    """The level of each node of a graph, -1 for those that lie on no path from the first to the last."""
    after = [list[int]() for _ in range(n_nodes)]
    for tail, head in zip(*arcs, strict=True):
        if tail >= 0:
            after[tail].append(head)
    order = _in_order(after, where)
    level, leads = [-1] * n_nodes, [False] * n_nodes
    level[0], leads[-1] = 0, True
    for node in order:
        if level[node] >= 0:
            for head in after[node]:
                level[head] = max(level[head], level[node] + 1)
    if level[-1] < 0:
        raise ValueError(f"arcs must lead from node 0 to the last node, {n_nodes - 1}: got none that do{where}")
    for node in reversed(order):
        leads[node] = leads[node] or any(leads[head] for head in after[node])
    return [place if used else -1 for place, used in zip(level, leads, strict=True)]


def _in_order(after: Sequence[Sequence[int]], where: str) -> list[int]:
    """The nodes in an order in which every arc leads forth, from the nodes that follow each."""
    missing = [0] * len(after)  # arcs into each node from nodes that are not in order yet
    for heads in after:
        for head in heads:
            missing[head] += 1
    order = [node for node, count in enumerate(missing) if not count]
    for node in order:  # which grows
        for head in after[node]:
            missing[head] -= 1
            if not missing[head]:
                order.append(head)
    if len(order) < len(after):
        node = next(node for node, count in enumerate(missing) if count)
        raise ValueError(f"arcs must form no cycle: got one{where} that leads to node {node}")
    return order


def _placed(level: Tensor, tail: Tensor, head: Tensor, starts: Tensor) -> tuple[Listed, Tensor, Tensor]:
    """Where arcs stand: the moves, the arc in each slot (the number of arcs for none), and the row of each node.

    Of a level in which few nodes have many arcs, those with about as many stand together, so that rows have few empty slots.
    """
    degree = torch.zeros_like(level).index_add_(0, head, torch.ones_like(head))
    node = (level > 0).nonzero()[:, 0]
    by_level = level[node]
    n_levels = int(by_level.max()) + 1 if len(node) else 0
    widest = torch.zeros(n_levels, dtype=torch.long).scatter_reduce_(0, by_level, degree[node], "amax")
    wasteful = widest * by_level.bincount(minlength=n_levels) > 4 * level[head].bincount(minlength=n_levels)
    alike = torch.where(wasteful[by_level], (2 * degree[node] - 1).double().log2().long(), 0)
    key, order = (64 * by_level + alike).sort(stable=True)
    node = torch.cat((starts, node[order]))
    row_of = torch.full_like(level, -1).index_copy_(0, node, torch.arange(len(node)))
    _, group, sizes = key.unique_consecutive(return_inverse=True, return_counts=True)
    widths = torch.zeros_like(sizes).scatter_reduce_(0, group, degree[node[len(starts) :]], "amax")
    first = (widths * sizes).cumsum(0) - widths * sizes
    by_head = row_of[head].sort(stable=True)
    row, arc = by_head.values - len(starts), by_head.indices
    entered = degree[node[len(starts) :]]
    nth = torch.arange(len(arc)) - (entered.cumsum(0) - entered)[row]
    place = row - (sizes.cumsum(0) - sizes)[group[row]]
    slot = first[group[row]] + nth * sizes[group[row]] + place
    count = int((widths * sizes).sum())
    slots = torch.full((count,), len(arc)).index_copy_(0, slot, arc)
    source, into = (torch.zeros(count, dtype=torch.long).index_copy_(0, slot, row_of[x[arc]]) for x in (tail, head))
    return Listed(source, into, len(starts), list(zip(widths.tolist(), sizes.tolist(), strict=True))), slots, row_of
