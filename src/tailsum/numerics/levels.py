"""Sums over the paths of a lattice, level by level, differentiable any number of times.

The nodes of a lattice stand in *levels*: an arc leads from a node to one of a later level, its *head*. `Moves` say where arcs
come from, and lay out nodes and arcs; there are two kinds. In `Steps` every level has the same places, and the same steps enter
each: no table of indices is needed. `Listed` arcs are given one by one. Within a level arcs are `[K, ...]`, where `...` are its
nodes: K arcs enter each, some of them impossible.

A sum goes from level to level. Its gradient, the probability of each arc, goes back: a node gives it to those before it, in
the shares of their arcs. The gradient of that goes forth and back once more. Higher derivatives are autograd's, of
two linear passes over tables of the shares. Nodes are summed in float64: a sum over ten thousand levels keeps its digits, and so
do scores beside a mask of -1e9.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.numerics.gradients import gradients
from tailsum.numerics.reduce import Reduce, highest, log_sum_exp, shares
from tailsum.numerics.tensors import finite


def path_sums(
    scores: Float[Tensor, "..."], moves: "Moves", ends: Int[Tensor, "..."], reduce: Reduce = log_sum_exp
) -> Float[Tensor, "..."]:
    """The reduction over all paths from a start to each of the `ends`, places in the flattened table of nodes; in float64.

    `scores` of arcs are laid out as `moves` say. Of paths to a node, the gradient is in the scores of their arcs.
    """
    return _Inside.apply(scores, moves, ends, reduce)[0]


@torch.no_grad()
def path_sums_before(scores: Float[Tensor, "..."], moves: "Moves", reduce: Reduce) -> Float[Tensor, "..."]:
    """For each arc the reduction over all paths from a start to the node that it comes from, without gradients."""
    return moves.tails(_Inside.apply(scores, moves, torch.zeros(0, dtype=torch.long, device=scores.device), reduce)[1])


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


class _Inside(torch.autograd.Function):
    """Scores of arcs to the sums at `ends` and at all nodes."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, moves: Moves, ends: Tensor, reduce: Reduce) -> tuple[Tensor, Tensor]:
        nodes, reduced = moves.start(scores), highest if reduce is highest else torch.logsumexp
        opened = moves.opened(nodes)
        for level, row in enumerate(moves.rows(scores)):
            opened.heads[level].copy_(reduced(opened.entering(level, row), 0))
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(scores, ends, nodes)
        ctx.how = moves, reduce
        return nodes.flatten()[ends], nodes

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        scores, ends, nodes = ctx.saved_tensors
        grad = torch.zeros_like(nodes) if grads[1] is None else grads[1].clone()
        if grads[0] is not None:
            grad.view(-1).index_add_(0, ends.flatten(), grads[0].flatten())
        moves, reduce = ctx.how
        slopes = _Slopes.apply if torch.is_grad_enabled() else _slopes
        return slopes(scores, grad, nodes.detach(), moves, reduce), None, None, None


def _slopes(scores: Tensor, grad: Tensor, nodes: Tensor, moves: Moves, reduce: Reduce) -> Tensor:
    """The gradient in the scores from that in the nodes, which is spread in place; shares are made level by level."""
    slopes, values, given = torch.empty_like(scores), moves.opened(nodes), moves.opened(grad)
    rows, into = moves.rows(scores), moves.rows(slopes)
    for level in reversed(range(len(rows))):
        share = shares(reduce, values.entering(level, rows[level])).mul_(given.heads[level])
        into[level].copy_(share.sum_to_size(into[level].shape))
        given.give(level, share)
    return slopes


class _Slopes(torch.autograd.Function):
    """The same with derivatives."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, grad: Tensor, nodes: Tensor, moves: Moves, reduce: Reduce) -> Tensor:
        spread = grad.clone()
        slopes = _slopes(scores, spread, nodes, moves, reduce)
        ctx.save_for_backward(scores, grad, nodes, spread)
        ctx.how = moves, reduce
        return slopes

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        scores, grad, nodes, spread = ctx.saved_tensors
        moves, reduce = ctx.how
        if reduce is not log_sum_exp:  # a choice, which is constant
            return None, None, None, None, None
        if torch.is_grad_enabled():
            slopes = lambda x: _recorded_slopes(x[0], x[1], moves)  # noqa: E731
            of_scores, of_grad = gradients(slopes, (scores, grad), (True, True), grads[0])
        else:
            of_scores, of_grad = _curves(scores, nodes, spread, grads[0], moves)
        return of_scores, of_grad, None, None, None


def _curves(scores: Tensor, nodes: Tensor, spread: Tensor, along: Tensor, moves: Moves) -> tuple[Tensor, Tensor]:
    """The gradient of the sum of slopes times `along`, in the scores and in the gradient in the nodes.

    This sum is the mean of the sum of `along` over paths, so its gradient in a score is their covariance. First the means over
    the paths to each node go forth, which are the gradient in the gradient; then deviations from them go back.
    """
    means, back, curves = torch.zeros_like(nodes), torch.zeros_like(nodes), torch.empty_like(scores)
    values, mean, given, outside = (moves.opened(x) for x in (nodes, means, back, spread))
    rows, slopes, into = (moves.rows(x) for x in (scores, along, curves))
    for level, row in enumerate(rows):
        share = shares(log_sum_exp, values.entering(level, row))
        mean.heads[level].copy_(mean.tails(level).add_(slopes[level]).mul_(share).sum(0))
    for level in reversed(range(len(rows))):
        share = shares(log_sum_exp, values.entering(level, rows[level]))
        deviation = mean.tails(level).add_(slopes[level]).sub_(mean.heads[level])
        share.mul_(deviation.mul_(outside.heads[level]).add_(given.heads[level]))
        into[level].copy_(share.sum_to_size(into[level].shape))
        given.give(level, share)
    return curves, means


# Slopes that autograd can differentiate any number of times, from tables of all levels.


def _recorded_slopes(scores: Tensor, grad: Tensor, moves: Moves) -> Tensor:
    nodes = _Inside.apply(scores, moves, torch.zeros(0, dtype=torch.long, device=scores.device), log_sum_exp)[1]
    share = moves.shares(scores, nodes)
    slopes = share * moves.heads(_Spread.apply(share, grad, moves))
    return slopes.sum_to_size(scores.shape).to(scores.dtype)


class _Spread(torch.autograd.Function):
    """Each node gives its value to those before it, in the shares of its arcs."""

    @staticmethod
    def forward(ctx: Any, share: Tensor, nodes: Tensor, moves: Moves) -> Tensor:
        out, rows = nodes.clone(), moves.rows(share)
        opened = moves.opened(out)
        for level in reversed(range(len(rows))):
            opened.give(level, rows[level] * opened.heads[level])
        ctx.save_for_backward(share, out)
        ctx.moves = moves
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (share, out), moves = ctx.saved_tensors, ctx.moves
        grad = _Collect.apply(share, grads[0], moves)
        return moves.tails(grad) * moves.heads(out), grad, None


class _Collect(torch.autograd.Function):
    """Each node adds the mean of the values before it, by the shares of its arcs: the transpose."""

    @staticmethod
    def forward(ctx: Any, share: Tensor, nodes: Tensor, moves: Moves) -> Tensor:
        out = nodes.clone()
        opened = moves.opened(out)
        for level, row in enumerate(moves.rows(share)):
            opened.heads[level].add_(opened.tails(level).mul_(row).sum(0))
        ctx.save_for_backward(share, out)
        ctx.moves = moves
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (share, out), moves = ctx.saved_tensors, ctx.moves
        grad = _Spread.apply(share, grads[0], moves)
        return moves.tails(out) * moves.heads(grad), grad, None


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
        nodes[self.before - 1, :, self.margin] = 0.0
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

    def start(self, scores: Tensor) -> Tensor:
        count = self.starts + sum(n for _, n in self.sizes)
        nodes = torch.full((count, scores.shape[1]), -math.inf, dtype=torch.float64, device=scores.device)
        nodes[: self.starts] = 0.0
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
