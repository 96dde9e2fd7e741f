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

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.numerics.fused.kernel import Example, Kernel
from tailsum.numerics.gradients import gradients
from tailsum.numerics.moves import Listed, Moves, Steps
from tailsum.numerics.reduce import Reduce, highest, log_sum_exp, shares


def path_sums(
    scores: Float[Tensor, "..."], moves: Moves, ends: Int[Tensor, "..."], reduce: Reduce = log_sum_exp
) -> Float[Tensor, "..."]:
    """The reduction over all paths from a start to each of the `ends`, places in the flattened table of nodes; in float64.

    `scores` of arcs are laid out as `moves` say. Of paths to a node, the gradient is in the scores of their arcs.
    """
    sums = _sums_by_steps if isinstance(moves, Steps) else _sums_by_arcs
    return sums(scores, moves=moves, ends=ends, reduce=reduce)


@torch.no_grad()
def path_sums_before(scores: Float[Tensor, "..."], moves: Moves, reduce: Reduce) -> Float[Tensor, "..."]:
    """For each arc the reduction over all paths from a start to the node that it comes from, without gradients."""
    return moves.tails(_Inside.apply(scores, moves, torch.zeros(0, dtype=torch.long, device=scores.device), reduce)[1])


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


# Both again as kernels, in one launch; a launch for each operation is faster where there are few levels, all of them wide.

_WIDE = 1 << 15


def _plain(scores: Tensor, *, moves: Moves, ends: Tensor, reduce: Reduce) -> Tensor:
    return _Inside.apply(scores, moves, ends, reduce)[0]


def _example_of_steps(levels: int, batch: int, places: int, shared: int) -> Example:
    """With `shared`, one score for all steps into a place, some of which are closed."""
    closed = torch.zeros(3, batch, places).masked_fill(torch.rand(3, batch, places) < 0.2, -torch.inf)
    steps = [(1, 0), (1, 1), (1, 2)] if shared else [(2, 1), (1, 1), (1, 0)]
    moves = Steps(steps, levels, places, closed if shared else None)
    last = torch.full((batch, 2), min(levels, places) - 1) - torch.arange(2).clamp(max=places - 1)
    ends = moves.at(torch.randint((levels + 1) // 2, levels + 1, (batch,)), last.clamp(min=0))
    return Example(
        (torch.randn(levels, 1 if shared else 3, batch, places),), {"moves": moves, "ends": ends, "reduce": log_sum_exp}
    )


_sums_by_steps = Kernel(
    "level_steps",
    _plain,
    _example_of_steps,
    sizes=(
        {"levels": 5, "batch": 2, "places": 7, "shared": 0},
        {"levels": 4, "batch": 2, "places": 5, "shared": 1},
        {"levels": 1, "batch": 1, "places": 1, "shared": 1},
    ),
    large={"levels": 500, "batch": 32, "places": 121, "shared": 1},
    takes=lambda _, *, moves, **__: moves.places < _WIDE,
)


def _example_of_arcs(levels: int, columns: int, nodes: int, arcs: int) -> Example:
    """Arcs into each node of a level, from any nodes before; few into the nodes of the last level."""
    sizes = [*[(arcs, nodes)] * (levels - 1), (1, nodes)]
    counts = [k * n for k, n in sizes]
    of_slot = torch.arange(levels).repeat_interleave(torch.tensor(counts))
    source = (torch.rand(len(of_slot)) * (1 + of_slot * nodes)).long()
    head = torch.cat([1 + level * nodes + torch.arange(n).repeat(k) for level, (k, n) in enumerate(sizes)])
    ends = torch.arange(1 + (levels - 1) * nodes * columns, (1 + levels * nodes) * columns)
    settings = {"moves": Listed(source, head, 1, sizes), "ends": ends, "reduce": log_sum_exp}
    return Example((torch.randn(len(source), columns),), settings)


_sums_by_arcs = Kernel(
    "level_arcs",
    _plain,
    _example_of_arcs,
    sizes=(
        {"levels": 3, "columns": 2, "nodes": 3, "arcs": 2},
        {"levels": 2, "columns": 1, "nodes": 1, "arcs": 19},
    ),
    large={"levels": 500, "columns": 16, "nodes": 20, "arcs": 3},
    takes=lambda _, *, moves, **__: len(moves.source) < _WIDE * len(moves.sizes),
)
