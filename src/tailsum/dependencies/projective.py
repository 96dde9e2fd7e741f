"""Charts of projective dependency trees, and trees read from them.

The items are half subtrees: `right[i, j]` has its head at i and covers the words i .. j, `left[i, j]` has its head at j;
`[B, T, T, K]`, K the states of the head (one where words have none). Neither includes the score of the head's state.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from tailsum.numerics.charts import square
from tailsum.numerics.fused.kernel import Example, Kernel
from tailsum.numerics.kernels import fused
from tailsum.numerics.noise import Choose, Drawn, most_likely, seed_from
from tailsum.numerics.reduce import LogProduct, Reduce, highest, log_sum_exp, shares, suited
from tailsum.numerics.two_passes import Passes, by_ends, by_first, filled


class Halves(NamedTuple):
    """Half subtrees to the left and right of their heads, `[B, T, T, K]`; minus infinity below the diagonal."""

    left: Tensor
    right: Tensor


# Eisner's algorithm on one chart by first position of (arcs to the right, right halves, left halves), `[T, 3, B, T]`, and
# one by last position of (right halves, left halves, arcs to the left). See `numerics/two_passes.py`; an arc over d words
# has the place of a span of d words. Scores are `[T, 2, B, T]` by distance and first position: of arcs to the right, and left.


def _inside(arcs: Tensor, reduce: Reduce) -> tuple[Tensor, Tensor]:
    reduce, (length, _, batch, _) = suited(reduce, arcs), arcs.shape
    first, last = (arcs.new_zeros(length, 3, batch, length) for _ in range(2))
    for splits in range(1, length):
        count = length - splits
        left, right = first[:splits, ..., :count], last[count:, ..., splits:]
        joined = reduce(left[:, 1] + right[:, 1], 0)
        first[splits - 1, 0, :, :count] = joined + arcs[splits, 0, :, :count]
        last[count, 2, :, splits:] = joined + arcs[splits, 1, :, :count]
        halves = reduce(left[:, ::2] + right[:, ::2], 0)  # the longest arc and the shortest half, and so on
        first[splits, 1:, :, :count] = halves
        last[count - 1, :2, :, splits:] = halves
    return first, last


def _outside(first: Tensor, last: Tensor, grad: Tensor, reduce: Reduce) -> Tensor:
    of_first, of_last = grad.clone(memory_format=torch.contiguous_format), torch.zeros_like(last)
    of_arcs = torch.zeros_like(first[:, :2], memory_format=torch.contiguous_format)
    for splits in range(len(first) - 1, 0, -1):
        count = len(first) - splits
        left, right = first[:splits, ..., :count], last[count:, ..., splits:]
        of_left, of_right = of_first[:splits, ..., :count], of_last[count:, ..., splits:]
        of_halves = of_first[splits, 1:, :, :count] + of_last[count - 1, :2, :, splits:]
        passed = shares(reduce, left[:, ::2] + right[:, ::2]).mul_(of_halves)
        of_left[:, ::2].add_(passed)
        of_right[:, ::2].add_(passed)
        both = torch.stack((of_left[-1, 0], of_right[0, 2]), out=of_arcs[splits, ..., :count])
        passed = shares(reduce, left[:, 1] + right[:, 1]).mul_(both.sum(0))
        of_left[:, 1].add_(passed)
        of_right[:, 1].add_(passed)
    return of_arcs


def _eisner(arc: Tensor, reduce: Reduce) -> tuple[Tensor, Tensor]:
    """Right and left halves by width and first position, `[T+1, B, T+1]`, from scores `arc [B, T, T]` (head, child): T^3.

    The root is a word before all others, and its children are the roots: its right halves are trees with any number of roots.
    """
    rooted = torch.cat((arc.diagonal(dim1=1, dim2=2)[:, None], arc), 1)
    rooted = F.pad(rooted, (1, 0))  # no sum uses arcs to the root, whatever they score
    _, right, left = filled(by_first(torch.stack((rooted, rooted.mT))), reduce, Passes(_inside, _outside)).unbind(1)
    return right, left


def eisner(arc: Tensor, multiroot: bool, reduce: Reduce) -> tuple[Halves, list[Tensor]]:
    """Half subtrees of words without states, and `roots`: the reductions over all trees of the words 0 .. j."""
    right, left = (by_ends(x, -math.inf)[..., None] for x in _eisner(arc, reduce))
    halves = Halves(left[:, 1:, 1:], right[:, 1:, 1:])
    if multiroot:
        return halves, list(right[:, 0, 1:, 0].unbind(1))
    nodes = arc.new_zeros(*arc.shape[:-1], 1)
    return halves, roots(halves, nodes, arc.diagonal(dim1=1, dim2=2), multiroot, reduce)


def eisner_total(arc: Tensor, length: Tensor, multiroot: bool, reduce: Reduce) -> Tensor:
    """The reduction over all trees of the first `length [B]` words, from `arc [B, T, T]` (head, child; roots on the diagonal)."""
    if reduce is log_sum_exp:
        return projective_sum(arc, lengths=length, multiroot=multiroot)
    return _eisner_total(arc, length, multiroot, reduce)


def _eisner_total(arc: Tensor, lengths: Tensor, multiroot: bool, reduce: Reduce = log_sum_exp) -> Tensor:
    right, left = _eisner(arc, reduce)
    row = torch.arange(len(lengths), device=lengths.device)
    if multiroot:
        return right[lengths, row, 0]
    # The words before the one root, the root, and the words after it: left[1, m] and right[m, length].
    word = torch.arange(arc.shape[-1], device=lengths.device)
    after = lengths[:, None] - word - 1
    ways = left[:-1, :, 1].mT + arc.diagonal(dim1=1, dim2=2) + right[after.clamp(min=0), row[:, None], word + 1]
    return suited(reduce, arc)(ways.masked_fill(after < 0, -math.inf), -1)


def _best_heads(arc: Tensor, lengths: Tensor, multiroot: bool) -> Tensor:
    with torch.inference_mode(False), torch.enable_grad():
        arc, lengths = arc.detach().clone().requires_grad_(), lengths.clone()  # not those of inference mode
        total = _eisner_total(arc, lengths, multiroot, highest)
        (used,) = torch.autograd.grad(total.masked_fill(total == -math.inf, 0.0).sum(), arc)
    return used.argmax(-2).masked_fill(used.sum(-2) == 0, -1)


def _example(batch: int, length: int, multiroot: int) -> Example:
    lengths = torch.randint(1, length + 1, (batch,))
    return Example((torch.randn(batch, length, length),), {"lengths": lengths, "multiroot": bool(multiroot)})


_SIZES: Any = {
    "example": _example,
    "sizes": [{"batch": 2, "length": 5, "multiroot": m} for m in (0, 1)] + [{"batch": 1, "length": 1, "multiroot": 0}],
    "large": {"batch": 16, "length": 40, "multiroot": 0},
}

projective_sum = Kernel("projective", _eisner_total, **_SIZES)

# The heads of the best tree of each sentence, `[B, T]`; -1 in the padding and where no tree is possible.
best_projective = Kernel("projective_trees", _best_heads, **_SIZES)


@torch.no_grad()
def drawn_projective(
    arc: Tensor, length: Tensor, multiroot: bool, generator: torch.Generator | None
) -> Callable[[int], Tensor]:
    """A function that draws the heads of a number of trees, `[count, B, T]`, by kernels; the charts are filled once."""
    from tailsum.numerics.fused.projective_trees import projective_inside, read  # noqa: PLC0415  (needs Triton)

    chart, *_ = projective_inside(arc, length, multiroot, maxima=False)
    return lambda count: read(chart, length, count, seed_from(generator))


# From subtrees `[B, n, w, K]` (first word, head, state of the head) and their first words `[n]` to the messages to every
# word as their head, `[B, n, T, K]`.
Attach = Callable[[Tensor, Tensor], Tensor]


def attach_by(arc: Tensor, pairs: Tensor, reduce: Reduce) -> Attach:
    """By scores `pairs [K, K]` (state of the head, state of the child), or `[G, T, T, K, K]` for each head and child."""
    return _shared_attach(arc, pairs, reduce) if pairs.dim() == 2 else _own_attach(arc, pairs, reduce)


def _shared_attach(arc: Tensor, pairs: Tensor, reduce: Reduce) -> Attach:
    product = LogProduct(pairs.mT, reduce)

    def attach(trees: Tensor, first: Tensor) -> Tensor:
        sent = product(trees.reshape(-1, trees.shape[-1])).reshape(trees.shape)
        child = first[:, None] + torch.arange(trees.shape[2], device=first.device)
        scores = arc.mT[:, child]  # [B, n, w, T]: child, head
        return LogProduct(scores, reduce)(sent.mT).mT

    return attach


def _own_attach(arc: Tensor, pairs: Tensor, reduce: Reduce) -> Attach:
    shape = (pairs.shape[1], pairs.shape[-2])
    product = LogProduct(arc_table(arc, pairs), reduce)

    def attach(trees: Tensor, first: Tensor) -> Tensor:
        batch, count, width, size = trees.shape
        spread = trees.new_full((batch, count, shape[0], size), -math.inf)
        child = first[:, None] + torch.arange(width, device=first.device)
        spread[:, torch.arange(count, device=first.device)[:, None], child] = trees
        return product(spread.flatten(2)).unflatten(-1, shape)

    return attach


def arc_table(arc: Tensor, pairs: Tensor) -> Tensor:
    """Scores `[B, T K, T K]`, by child and its state, then head and its state, from pairs `[G, T, T, K, K]`."""
    return (pairs + arc[..., None, None]).permute(0, 2, 4, 1, 3).flatten(3).flatten(1, 2)


def stateful(nodes: Tensor, attach: Attach, reduce: Reduce) -> Halves:
    """Half subtrees of words with states.

    Both sides of a word have the same state, so a child is attached with both at once: a subtree sends a message to each word
    outside it. Cost: T^3 N^2 for shared pair scores, and T^4 N.
    """
    batch, length, size = nodes.shape
    left, right = [nodes.new_zeros(batch, length, size)], [nodes.new_zeros(batch, length, size)]
    sent = list[Tensor]()
    for width in range(1, length + 1):
        count = length - width + 1
        first = torch.arange(count, device=nodes.device)
        last = first + width - 1
        if width > 1:  # the outermost child covers the words from s on, or up to e
            reach = range(1, width)
            rights = [right[s - 1][:, :count] + sent[width - s - 1][:, s : s + count][:, first, first] for s in reach]
            lefts = [left[width - e - 1][:, e : e + count] + sent[e - 1][:, :count][:, first, last] for e in reach]
            right.append(reduce(torch.stack(rights), 0))
            left.append(reduce(torch.stack(lefts), 0))
        if width < length:
            places = [slice(m, m + count) for m in range(width)]  # of the head
            trees = [left[m][:, :count] + right[width - m - 1][:, p] + nodes[:, p] for m, p in enumerate(places)]
            sent.append(attach(torch.stack(trees, 2), first))
    return Halves(square(left), square(right))


def roots(halves: Halves, nodes: Tensor, root: Tensor, multiroot: bool, reduce: Reduce) -> list[Tensor]:
    """The reductions over all trees of the words 0 .. j, `[B]` for every j: their roots are attached last."""
    left, right = halves
    before: list[Tensor] = []
    alone = nodes + root[..., None]
    for last in range(left.shape[1]):
        # The words s .. m .. last under one root m; all before s under earlier roots.
        if multiroot:
            start = torch.stack([torch.zeros_like(root[:, 0]), *before], 1)  # by s
            ways = reduce(left[:, : last + 1, : last + 1] + start[:, :, None, None], 1)  # [B, m, K]
        else:
            ways = left[:, 0, : last + 1]
        ways = ways + alone[:, : last + 1] + right[:, : last + 1, last]
        before.append(reduce(ways.flatten(1), 1))
    return before


class Charts(NamedTuple):
    """Scores of projective trees, reduced over labels, and the charts computed from them."""

    arc: Tensor  # [B, T, T]
    root: Tensor  # [B, T]
    nodes: Tensor  # [B, T, K]
    pairs: Tensor  # [K, K] or [G, T, T, K, K]
    halves: Halves
    before: list[Tensor]  # by last word j, [B]: the reduction over all trees of the words 0 .. j


def read_dependencies(
    charts: Charts, length: Tensor, batch: Tensor, multiroot: bool, choose: Choose
) -> tuple[Tensor, Tensor]:
    """Heads and states `[R, T]` of trees, read from the top down with each choice by `choose(logits [R, n])`.

    Row r is a tree of sentence `batch[r]`: -1 in the padding, and throughout where no tree is possible. Each row has a
    stack of items (kind, first, last, state of the head); the kind is 0 for a left half, 1 for a right half, and 2 for
    all words up to `last` under their roots.
    """
    arc, root, nodes, pairs, (left, right), before = charts
    if fused(arc, nodes, pairs) and (choose is most_likely or isinstance(choose, Drawn)):
        from tailsum.numerics.fused.read_subtrees import read_subtrees  # noqa: PLC0415  (needs Triton)

        seed = seed_from(choose.generator) if isinstance(choose, Drawn) else None
        scores, chart = (nodes, arc, pairs), (left, right, torch.stack(before, 1))
        return read_subtrees(scores, chart, length, batch, multiroot, seed)
    longest, size = left.shape[1], left.shape[-1]
    position = torch.arange(longest, device=batch.device)
    rows = torch.arange(len(batch), device=batch.device)
    group = batch if len(pairs) > 1 else torch.zeros_like(batch)
    # Sums over the words before s, by s: zero for none.
    earlier = torch.stack([torch.zeros_like(before[0]), *before[:-1]], 1)
    if not multiroot:
        earlier = torch.where(position == 0, earlier, -math.inf)
    heads, states = (torch.full((len(batch), longest + 1), -1, device=batch.device) for _ in range(2))
    stack = torch.zeros(len(batch), longest + 3, 4, dtype=torch.long, device=batch.device)
    stack[:, 0, 0], stack[:, 0, 2] = 2, length[batch] - 1
    possible = torch.stack(before)[length - 1, torch.arange(len(length), device=batch.device)] > -math.inf
    depth = possible[batch].long()
    while bool((depth > 0).any()):
        going = depth > 0
        kind, first, last, state = torch.where(going[:, None], stack[rows, (depth - 1).clamp(min=0)], 0).unbind(-1)
        depth = depth - going.long()
        to_left, whole = kind == 0, kind == 2
        head = torch.where(to_left, last, first)
        # One child covers the words `begin` to `end`: up to the last of a right half, from the first of a left half.
        columns = pairs[state][:, None] if pairs.dim() == 2 else pairs[group, head, :, state]  # [R, 1 or m, K]
        attached = arc[batch, head][..., None] + columns
        attached = torch.where(whole[:, None, None], root[batch][..., None], attached) + nodes[batch]  # [R, m, K]
        # [R, end or begin, m, K]: the side decides which of the two is chosen.
        free_end = right[batch].transpose(1, 2) + left[batch, first][:, None]
        free_begin = left[batch] + right[batch, :, last][:, None]
        rest_left = F.pad(left[batch, :, last, :], (0, 0, 0, 1), value=-math.inf)[:, 1:]  # after end, by end
        rest_right = F.pad(right[batch, first], (0, 0, 1, 0), value=-math.inf)[:, :-1]  # before begin, by begin
        kept = torch.where(to_left[:, None, None], rest_left, rest_right)
        kept = kept.take_along_dim(state[:, None, None], -1)[..., 0]
        kept = torch.where(whole[:, None], earlier[batch], kept)
        within = torch.where(
            to_left[:, None],
            (position >= first[:, None]) & (position < last[:, None]),
            (position <= last[:, None]) & (position >= torch.where(whole, 0, first + 1)[:, None]),
        )
        ways = (
            torch.where(to_left[:, None, None, None], free_end, free_begin) + attached[:, None] + kept[..., None, None]
        )
        pick = choose(ways.masked_fill(~within[:, :, None, None], -math.inf).flatten(1))
        bound, child, below = pick // (longest * size), pick // size % longest, pick % size
        place = torch.where(going, child, longest)
        heads[rows, place] = torch.where(whole, child, head)
        states[rows, place] = below
        begin, end = torch.where(to_left, first, bound), torch.where(to_left, bound, last)
        rest_first = torch.where(to_left, bound + 1, first)
        rest_last = torch.where(to_left, last, bound - 1)
        items = (
            (kind, rest_first, rest_last, state, torch.where(whole, bound > 0, rest_last > rest_first)),
            (torch.zeros_like(kind), begin, child, below, child > begin),
            (torch.ones_like(kind), child, end, below, end > child),
        )
        for *item, there in items:
            push = going & there
            stack[rows, torch.where(push, depth, longest + 2)] = torch.stack(item, -1)
            depth = depth + push.long()
    return heads[:, :-1], states[:, :-1]
