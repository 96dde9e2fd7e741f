"""The order in which a graph's variables are visited: layers, such that variables that share a factor never share one.

From the first variable of each connected component the graph is walked breadth first, and each variable stands one layer
behind the last of those it shares a factor with that were met before it. On a forest a layer is what hangs below the
layer before: messages sent layer by layer to the roots and back are exact. On other graphs the same walk is a good
order too, in which news crosses the whole graph at once.
"""

import functools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor


class Block(NamedTuple):
    """Factors that send their messages together, in ascending order.

    `variables [F, r]` come in the order of their layers; `axes` says which axis of the factor's table each one is.
    """

    group: int
    factors: Int[Tensor, " F"]
    axes: tuple[int, ...]
    variables: Int[Tensor, "F r"]


class Incoming(NamedTuple):
    """Messages that arrive at some variables: `take`, in order, of those that a block sends to one of its positions."""

    block: int
    position: int
    take: Int[Tensor, " m"]
    put: Int[Tensor, " m"]


@dataclass(frozen=True)
class Update:
    """Block `block` sends messages to the positions `to`.

    For that it needs what the other factors say of the variables at the positions `needs`: `incoming` at the variables
    `nodes`, among which `place` says where those of each position stand.
    """

    block: int
    to: tuple[int, ...]
    needs: tuple[int, ...]
    nodes: Int[Tensor, " S"]
    place: tuple[Int[Tensor, " F"], ...]
    incoming: tuple[Incoming, ...]


@dataclass(frozen=True)
class Plan:
    """How messages travel: the updates of one iteration, in stages; all updates of a stage read what earlier stages left."""

    layer: Int[Tensor, " V"]
    forest: bool
    blocks: tuple[Block, ...]
    stages: tuple[tuple[Update, ...], ...]

    @property
    def exact(self) -> bool:
        """Whether one iteration gives the messages for good."""
        return self.forest and len(self.stages) != 1


def plan(groups: Sequence[Int[Tensor, "_ _"]], n_nodes: int, schedule: str, device: torch.device) -> Plan:
    """The plan for factors over the given variables, each group of one arity, by schedule "sweep" or "flooding"."""
    with torch.device(device), torch.inference_mode(False):
        return _plan(tuple(tuple(map(tuple, group.tolist())) for group in groups), n_nodes, schedule, device)


@functools.lru_cache(maxsize=32)
def _plan(groups: tuple[tuple[tuple[int, ...], ...], ...], n_nodes: int, schedule: str, _: torch.device) -> Plan:
    layer, components = _layers([factor for group in groups for factor in group], n_nodes)
    joined = sum(len(factor) - 1 for group in groups for factor in group)
    blocks = _blocks(groups, layer, layered=schedule == "sweep")
    arriving: list[list[tuple[int, int, int]]] = [[] for _ in range(n_nodes)]  # block, position, factor
    for b, block in enumerate(blocks):
        for f, variables in enumerate(block.variables.tolist()):
            for position, node in enumerate(variables):
                arriving[node].append((b, position, f))
    orders: list[list[tuple[int, tuple[int, ...]]]] = []  # for each stage, blocks and the positions they send to
    if schedule == "flooding":
        orders.append([(b, tuple(range(len(block.axes)))) for b, block in enumerate(blocks)])
    else:
        of_depth: dict[int, list[int]] = {}
        for b, block in enumerate(blocks):
            of_depth.setdefault(layer[block.variables[0].tolist()[0]], []).append(b)
        by_depth = [of_depth[depth] for depth in sorted(of_depth)]
        orders += [[(b, (0,)) for b in stage] for stage in reversed(by_depth)]
        orders += [[(b, tuple(range(1, len(blocks[b].axes)))) for b in stage] for stage in by_depth]
    stages = tuple(tuple(_update(b, to, blocks, arriving) for b, to in stage) for stage in orders if stage)
    return Plan(torch.tensor(layer, dtype=torch.long), joined == n_nodes - components, tuple(blocks), stages)


def _layers(factors: list[tuple[int, ...]], n_nodes: int) -> tuple[list[int], int]:
    """The layer of every variable, and the number of connected components."""
    neighbours: list[set[int]] = [set() for _ in range(n_nodes)]
    for factor in factors:
        for node in factor:
            neighbours[node].update(factor)
    layer, met, components = [-1] * n_nodes, [False] * n_nodes, 0
    for root in range(n_nodes):
        if met[root]:
            continue
        components += 1
        met[root] = True
        queue = deque([root])
        while queue:
            node = queue.popleft()
            layer[node] = 1 + max((layer[other] for other in neighbours[node] if other != node), default=-1)
            fresh = sorted(other for other in neighbours[node] if not met[other])
            for other in fresh:
                met[other] = True
            queue.extend(fresh)
    return layer, components


def _blocks(groups: tuple[tuple[tuple[int, ...], ...], ...], layer: list[int], *, layered: bool) -> list[Block]:
    """The factors, each kind that can be computed together as one block, and if `layered` each layer on its own."""
    found: dict[tuple[int, int, tuple[int, ...]], list[int]] = {}
    for g, group in enumerate(groups):
        for f, variables in enumerate(group):
            axes = tuple(range(len(variables)))
            depth = 0
            if layered:
                axes = tuple(sorted(axes, key=lambda a: layer[variables[a]]))
                depth = layer[variables[axes[0]]]
            found.setdefault((depth, g, axes), []).append(f)
    return [
        Block(g, torch.tensor(factors), axes, torch.tensor([[groups[g][f][a] for a in axes] for f in factors]))
        for (_, g, axes), factors in sorted(found.items())
    ]


def _update(b: int, to: tuple[int, ...], blocks: list[Block], arriving: list[list[tuple[int, int, int]]]) -> Update:
    arity = len(blocks[b].axes)
    needs = tuple(q for q in range(arity) if any(p != q for p in to))
    variables = blocks[b].variables[:, needs]
    nodes, place = variables.unique(return_inverse=True)
    incoming: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for local, node in enumerate(nodes.tolist()):
        for block, position, factor in arriving[node]:
            incoming.setdefault((block, position), []).append((factor, local))
    return Update(
        b,
        to,
        needs,
        nodes,
        tuple(place.reshape(variables.shape).unbind(1)),
        tuple(Incoming(*key, *torch.tensor(sorted(found)).T) for key, found in incoming.items()),
    )


class Given(NamedTuple):
    """Factors of a group that reach a layer at `position`, the variables on their axes `earlier` being known already."""

    group: int
    position: int
    earlier: tuple[int, ...]
    factors: Int[Tensor, " m"]
    put: Int[Tensor, " m"]


class Visit(NamedTuple):
    """One layer: its variables, and the factors that speak to them."""

    nodes: Int[Tensor, " S"]
    given: tuple[Given, ...]


def visits(groups: Sequence[Int[Tensor, "_ _"]], plan: Plan, *, back: bool = False) -> list[Visit]:
    """Layer after layer, or back from the last: which factors speak to its variables, and what is known of them by then."""
    layer = (plan.layer.max() - plan.layer if back else plan.layer).tolist()
    found: list[dict[tuple[int, int, tuple[int, ...]], tuple[list[int], list[int]]]] = [{} for _ in set(layer)]
    nodes: list[list[int]] = [[] for _ in found]
    for node, depth in enumerate(layer):
        nodes[depth].append(node)
    local = {node: place for layer_nodes in nodes for place, node in enumerate(layer_nodes)}
    for g, group in enumerate(groups):
        for f, variables in enumerate(group.tolist()):
            for position, node in enumerate(variables):
                earlier = tuple(a for a, other in enumerate(variables) if layer[other] < layer[node])
                take, put = found[layer[node]].setdefault((g, position, earlier), ([], []))
                take.append(f)
                put.append(local[node])
    with torch.device(plan.layer.device):
        return [
            Visit(
                torch.tensor(here),
                tuple(Given(*key, torch.tensor(take), torch.tensor(put)) for key, (take, put) in sorted(ways.items())),
            )
            for here, ways in zip(nodes, found, strict=True)
        ]
