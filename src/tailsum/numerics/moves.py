"""Where the arcs of a lattice come from, and how tables of its nodes and arcs are laid out: the same steps at every level, or a list.

Sums over the paths are in `levels.py`, which says what levels are.
"""

import functools
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from tailsum.numerics.tensors import finite


class Moves(ABC):
    """Where the arcs of a lattice come from, and how tables of nodes and arcs are laid out."""

    @abstractmethod
    def start(self, scores: Tensor) -> Tensor:
        """A new table of nodes in float64, zero at the starts and minus infinity elsewhere."""

    @abstractmethod
    def rows(self, arcs: Tensor) -> Sequence[Tensor]:
        """Views of a table of arcs, `[K, ...]` for each level."""

    @abstractmethod
    def opened(self, nodes: Tensor) -> "Opened":
        """Views of a table of nodes by level."""

    @abstractmethod
    def tails(self, nodes: Tensor) -> Tensor:
        """For each arc the value of the node that it comes from."""

    @abstractmethod
    def heads(self, nodes: Tensor) -> Tensor:
        """For each arc the value of the node that it enters, or a shape that broadcasts to this."""

    @abstractmethod
    def shares(self, scores: Tensor, nodes: Tensor) -> Tensor:
        """The share of each arc in the sum at its head; finite, and nothing more, where that is minus infinity."""


class Opened(ABC):
    """A table of nodes by level: views `heads` of the nodes of each, the starts left out, and access to where arcs come from."""

    heads: Sequence[Tensor]

    @abstractmethod
    def tails(self, level: int) -> Tensor:
        """A new tensor `[K, ...]` with the values of the nodes from which arcs enter a level."""

    def entering(self, level: int, scores: Tensor) -> Tensor:
        """A new tensor `[K, ...]`: the same plus the scores of the arcs."""
        return self.tails(level).add_(scores)

    @abstractmethod
    def give(self, level: int, arcs: Tensor) -> None:
        """Adds values `[K, ...]` of the arcs that enter a level to the nodes that they come from."""


class Steps(Moves):
    """The same `steps` into each of `places` at each of `levels`, for a batch of B: tables of arcs are `[levels, K or 1, B, places]`.

    Step `(back, by)` enters place p of a level from place p - by, `back` levels before. The only start is place 0 of the level
    before the first. `closed [K, B, places]` is added to all scores: zero or minus infinity.
    """

    def __init__(
        self, steps: Sequence[tuple[int, int]], levels: int, places: int, closed: Tensor | None = None
    ) -> None:
        self.steps, self.levels, self.places, self.closed = steps, levels, places, closed
        self.before, self.margin = max(back for back, _ in steps), max(by for _, by in steps)

    def at(self, level: Int[Tensor, " B"], places: Int[Tensor, "B n"]) -> Int[Tensor, "B n"]:
        """Where the `places` of a level are in the flattened table of nodes; the first level is 1, and 0 that of the start."""
        row = (level + self.before - 1) * len(level) + torch.arange(len(level), device=level.device)
        return row[:, None] * (self.places + self.margin) + self.margin + places

    def start(self, scores: Tensor) -> Tensor:
        # Levels before the start and places before the first, which are never reached.
        shape = self.levels + self.before, scores.shape[2], self.places + self.margin
        nodes = torch.full(shape, -math.inf, dtype=torch.float64, device=scores.device)
        nodes[self.before - 1, :, self.margin].zero_()
        return nodes

    def rows(self, arcs: Tensor) -> Sequence[Tensor]:
        return arcs.unbind(0)

    def opened(self, nodes: Tensor) -> "_Places":
        return _Places(self, nodes)

    def sources(self, nodes: Tensor) -> list[Tensor]:
        """For each step the places that it comes from, `[levels, B, places]`."""
        return [
            nodes[self.before - back :][: self.levels, :, self.margin - by :][..., : self.places]
            for back, by in self.steps
        ]

    def tails(self, nodes: Tensor) -> Tensor:
        return torch.stack(self.sources(nodes), 1)

    def heads(self, nodes: Tensor) -> Tensor:
        return nodes[self.before :, None, :, self.margin :]

    def shares(self, scores: Tensor, nodes: Tensor) -> Tensor:
        x = self.tails(nodes) + scores
        x = x if self.closed is None else x + self.closed
        return x.clamp(min=torch.finfo(x.dtype).min).softmax(1)


class _Places(Opened):
    def __init__(self, steps: Steps, nodes: Tensor) -> None:
        self.heads = nodes[steps.before :, :, steps.margin :].unbind(0)
        self.sources = list(zip(*(x.unbind(0) for x in steps.sources(nodes)), strict=True))
        self.closed = steps.closed

    def tails(self, level: int) -> Tensor:
        return torch.stack(self.sources[level])

    def entering(self, level: int, scores: Tensor) -> Tensor:
        x = super().entering(level, scores)
        return x if self.closed is None else x.add_(self.closed)

    def give(self, level: int, arcs: Tensor) -> None:
        for source, values in zip(self.sources[level], arcs.unbind(0), strict=True):
            source.add_(values)


@dataclass(frozen=True)
class Listed(Moves):
    """Arcs in slots, those into one level side by side as `[K, nodes of the level]`, for C columns of scores.

    Tables of arcs are `[slots, C]`, of nodes `[nodes, C]`, the first of them the starts, and the others by level. `source` and
    `head` are the nodes of the arc in each slot; an empty slot has the source 0 and scores minus infinity. `sizes` are K and
    the number of nodes of each level.
    """

    source: Int[Tensor, " slots"]
    head: Int[Tensor, " slots"]
    starts: int
    sizes: Sequence[tuple[int, int]]

    @functools.cached_property
    def levels(self) -> Int[Tensor, "levels 3"]:
        """The first slot of each level and its size, where the slots are."""
        counts = [k * n for k, n in self.sizes]
        first = itertools.accumulate(counts, initial=0)
        rows = [(slot, *size) for slot, size in zip(first, self.sizes, strict=False)]
        return torch.tensor(rows, device=self.source.device).reshape(-1, 3)

    def start(self, scores: Tensor) -> Tensor:
        count = self.starts + sum(n for _, n in self.sizes)
        nodes = torch.full((count, scores.shape[1]), -math.inf, dtype=torch.float64, device=scores.device)
        nodes[: self.starts].zero_()
        return nodes

    def rows(self, arcs: Tensor) -> Sequence[Tensor]:
        rows = arcs.split([k * n for k, n in self.sizes])
        return [row.view(k, n, -1) for row, (k, n) in zip(rows, self.sizes, strict=True)]

    def opened(self, nodes: Tensor) -> "_Nodes":
        return _Nodes(self, nodes)

    def tails(self, nodes: Tensor) -> Tensor:
        return nodes.index_select(0, self.source)

    def heads(self, nodes: Tensor) -> Tensor:
        return nodes.index_select(0, self.head)

    def shares(self, scores: Tensor, nodes: Tensor) -> Tensor:
        part = (self.tails(nodes) + scores - finite(self.heads(nodes.detach()))).exp()
        whole = torch.zeros_like(nodes).index_add(0, self.head, part)  # one, but for rounding
        return part / self.heads(whole + (whole == 0).to(whole.dtype))


class _Nodes(Opened):
    def __init__(self, listed: Listed, nodes: Tensor) -> None:
        self.nodes, self.sizes = nodes, listed.sizes
        self.heads = nodes[listed.starts :].split([n for _, n in listed.sizes])
        self.sources = listed.source.split([k * n for k, n in listed.sizes])

    def tails(self, level: int) -> Tensor:
        return self.nodes.index_select(0, self.sources[level]).unflatten(0, self.sizes[level])

    def give(self, level: int, arcs: Tensor) -> None:
        self.nodes.index_add_(0, self.sources[level], arcs.flatten(0, 1))
