"""Layers of a graph's variables (variables that share a factor are in different layers), and message schedules.

The graph is searched breadth first from the first variable of each connected component. Each variable is one layer below
the lowest of its neighbours visited before it. On a forest, messages sent layer by layer to the roots and back are
exact. On other graphs this order carries messages across the whole graph in one iteration.
"""

import functools
import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor


class Block(NamedTuple):
    """Factors that send their messages together, in ascending order."""

    group: int
    factors: Int[Tensor, " F"]
    axes: tuple[int, ...]  # of each position, the axis of the factor's table
    variables: Int[Tensor, "F r"]  # in the order of their layers


class Incoming(NamedTuple):
    """The messages of the factors `take` of a block to one position; each is added to its variable, number `put`."""

    block: int
    position: int
    take: Int[Tensor, " m"]
    put: Int[Tensor, " m"]


@dataclass(frozen=True)
class Update:
    """Block `block` sends messages to the positions `to`, from the cavities of the positions `needs`."""

    block: int
    to: tuple[int, ...]
    needs: tuple[int, ...]
    nodes: Int[Tensor, " S"]  # the variables at these positions
    place: tuple[Int[Tensor, " F"], ...]  # for each of these positions, the place of its variables in `nodes`
    incoming: tuple[Incoming, ...]  # all messages to `nodes`


@dataclass(frozen=True, eq=False)
class Plan:
    """The updates of one iteration, in stages; all updates of a stage read the messages of earlier stages."""

    scoreless: ClassVar[bool] = True  # no scores in it: `structure.terms.tensors_in` leaves it out

    layer: Int[Tensor, " V"]
    forest: bool
    scopes: tuple[tuple[int, ...], ...]  # the variables of every factor
    blocks: tuple[Block, ...]
    order: tuple[tuple[tuple[int, tuple[int, ...]], ...], ...]  # for each stage, blocks and the positions they send to

    @property
    def forest_iterations(self) -> int:
        """The number of iterations after which the messages of a forest are final: one unless the schedule is flooding."""
        return 2 * int(self.layer.max()) + 1 if len(self.order) == 1 else 1

    @functools.cached_property
    def stages(self) -> tuple[tuple[Update, ...], ...]:
        """The updates. Kernels go without them, and there are many on a large graph."""
        arriving: list[list[tuple[int, int, int]]] = [[] for _ in self.layer]  # block, position, factor
        for b, block in enumerate(self.blocks):
            for f, variables in enumerate(block.variables.tolist()):
                for position, node in enumerate(variables):
                    arriving[node].append((b, position, f))
        with torch.device(self.layer.device), torch.inference_mode(False):
            return tuple(tuple(_update(b, to, self.blocks, arriving) for b, to in stage) for stage in self.order)

    @functools.cached_property
    def places(self) -> dict[tuple[int, int], Int[Tensor, " F"]]:
        """For each group of factors and each axis, the places of its messages among all, which are block after block."""
        starts = [0, *itertools.accumulate(len(block.factors) * len(block.axes) for block in self.blocks)]
        found: dict[tuple[int, int], Tensor] = {}
        with torch.inference_mode(False):
            for g in {block.group for block in self.blocks}:
                own = [(start, block) for start, block in zip(starts, self.blocks, strict=False) if block.group == g]
                order = torch.cat([block.factors for _, block in own]).argsort()
                for axis in range(len(own[0][1].axes)):
                    first = [(start + block.axes.index(axis) * len(block.factors), block) for start, block in own]
                    pieces = itertools.chain.from_iterable(range(x, x + len(block.factors)) for x, block in first)
                    found[g, axis] = torch.tensor(list(pieces), device=order.device)[order]
        return found


def plan(groups: Sequence[Int[Tensor, "_ _"]], n_nodes: int, schedule: str, device: torch.device) -> Plan:
    """The plan for factors over the given variables (a group has one arity); `schedule` is "sweep" or "flooding"."""
    given = tuple((group.shape[1], _bytes(group)) for group in groups)
    with torch.inference_mode(False):
        return _plan(given, n_nodes, schedule, device)


def _bytes(group: Int[Tensor, "_ _"]) -> bytes:
    whole = group.long().cpu().contiguous()
    try:
        return whole.numpy().tobytes()
    except RuntimeError:  # within a transform of torch.func tensors have no memory of their own
        return np.array(whole.tolist(), np.int64).tobytes()


@functools.lru_cache(maxsize=32)
def _plan(given: tuple[tuple[int, bytes], ...], n_nodes: int, schedule: str, device: torch.device) -> Plan:
    """Groups are given by their arity, and their variables as bytes, which are hashed and compared at once."""
    groups = tuple(
        tuple(map(tuple, np.frombuffer(held, np.int64).reshape(-1, arity).tolist())) for arity, held in given
    )
    scopes = tuple(factor for group in groups for factor in group)
    layer, components = _layers(scopes, n_nodes)
    joined = sum(len(factor) - 1 for factor in scopes)
    blocks, depths = _blocks(groups, layer, device, layered=schedule == "sweep")
    orders: list[list[tuple[int, tuple[int, ...]]]] = []
    if schedule == "flooding":
        orders.append([(b, tuple(range(len(block.axes)))) for b, block in enumerate(blocks)])
    else:
        by_depth = [list(stage) for _, stage in itertools.groupby(range(len(blocks)), lambda b: depths[b])]
        orders += [[(b, (0,)) for b in stage] for stage in reversed(by_depth)]
        orders += [[(b, tuple(range(1, len(blocks[b].axes)))) for b in stage] for stage in by_depth]
    order = tuple(tuple(stage) for stage in orders if stage)
    layers = torch.tensor(layer, dtype=torch.long, device=device)
    return Plan(layers, joined == n_nodes - components, scopes, tuple(blocks), order)


def _layers(factors: Sequence[tuple[int, ...]], n_nodes: int) -> tuple[list[int], int]:
    """The layer of every variable, and the number of connected components."""
    neighbours: list[set[int]] = [set() for _ in range(n_nodes)]
    for factor in factors:
        for node in factor:
            neighbours[node].update(factor)
    layer, met, components = [-1] * n_nodes, set[int](), 0
    for root in range(n_nodes):
        if root in met:
            continue
        components += 1
        met.add(root)
        queue = deque([root])
        while queue:
            node = queue.popleft()
            layer[node] = 1 + max((layer[other] for other in neighbours[node] if other != node), default=-1)
            fresh = sorted(neighbours[node] - met)
            met.update(fresh)
            queue.extend(fresh)
    return layer, components


def _blocks(
    groups: tuple[tuple[tuple[int, ...], ...], ...], layer: list[int], device: torch.device, *, layered: bool
) -> tuple[list[Block], list[int]]:
    """Blocks of factors of one group and one order of axes and, if `layered`, of one layer; in order of layers, and these."""
    blocks: dict[tuple[int, int, tuple[int, ...]], list[int]] = {}
    for g, group in enumerate(groups):
        for f, variables in enumerate(group):
            axes, depth = tuple(range(len(variables))), 0
            if layered:
                axes = tuple(sorted(axes, key=lambda a: layer[variables[a]]))
                depth = layer[variables[axes[0]]]
            blocks.setdefault((depth, g, axes), []).append(f)
    found = sorted(blocks.items())
    variables = [groups[g][f][a] for (_, g, axes), factors in found for f in factors for a in axes]
    # Two copies to the device, not two for each block.
    all_factors = torch.tensor([f for _, factors in found for f in factors], dtype=torch.long, device=device)
    all_variables = torch.tensor(variables, dtype=torch.long, device=device)
    pieces = all_factors.split([len(factors) for _, factors in found]) if found else ()
    ends = all_variables.split([len(factors) * len(key[2]) for key, factors in found]) if found else ()
    made = [
        Block(g, factors, axes, of_block.view(-1, len(axes)))
        for ((_, g, axes), _), factors, of_block in zip(found, pieces, ends, strict=True)
    ]
    return made, [depth for (depth, _, _), _ in found]


def _update(b: int, to: tuple[int, ...], blocks: Sequence[Block], arriving: list[list[tuple[int, int, int]]]) -> Update:
    needs = tuple(q for q in range(len(blocks[b].axes)) if any(p != q for p in to))
    variables = blocks[b].variables[:, needs]
    nodes, place = variables.unique(return_inverse=True)
    incoming: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for local, node in enumerate(nodes.tolist()):
        for block, position, factor in arriving[node]:
            incoming.setdefault((block, position), []).append((factor, local))
    arrived = tuple(Incoming(*key, *torch.tensor(sorted(pairs)).T) for key, pairs in incoming.items())
    return Update(b, to, needs, nodes, tuple(place.reshape(variables.shape).unbind(1)), arrived)


class Links(NamedTuple):
    """Factors of a group, and their variables at one position, which are in one layer."""

    group: int
    position: int
    earlier: tuple[int, ...]  # axes of the variables in earlier layers
    factors: Int[Tensor, " m"]
    put: Int[Tensor, " m"]  # the place of the variable in the layer


class Visit(NamedTuple):
    """One layer: its variables and their factors."""

    nodes: Int[Tensor, " S"]
    links: tuple[Links, ...]


def visits(groups: Sequence[Int[Tensor, "_ _"]], plan: Plan, *, back: bool = False) -> list[Visit]:
    """The layers from the first to the last, or `back` from the last to the first."""
    return visits_of(groups, (plan.layer.max() - plan.layer if back else plan.layer).tolist(), plan.layer.device)


def visits_of(groups: Sequence[Int[Tensor, "_ _"]], layer: list[int], device: torch.device) -> list[Visit]:
    """The layers from the first to the last, from the layer of every variable."""
    links: list[dict[tuple[int, int, tuple[int, ...]], list[tuple[int, int]]]] = [{} for _ in set(layer)]
    nodes: list[list[int]] = [[] for _ in links]
    for node, depth in enumerate(layer):
        nodes[depth].append(node)
    local = {node: place for layer_nodes in nodes for place, node in enumerate(layer_nodes)}
    for g, group in enumerate(groups):
        for f, variables in enumerate(group.tolist()):
            for position, node in enumerate(variables):
                earlier = tuple(a for a, other in enumerate(variables) if layer[other] < layer[node])
                links[layer[node]].setdefault((g, position, earlier), []).append((f, local[node]))
    with torch.device(device):
        return [
            Visit(torch.tensor(ids), tuple(Links(*key, *torch.tensor(pairs).T) for key, pairs in sorted(of.items())))
            for ids, of in zip(nodes, links, strict=True)
        ]
