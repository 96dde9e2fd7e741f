"""Charts of projective dependency trees, and trees read from them.

The items are half subtrees: `right[i, j]` has its head at i and covers the words i .. j, `left[i, j]` has its head at j;
charts by width (`charts.py`) with entries `[B, n, K]`, K the states of the head (one where words have none). The score
of the head's own state is in neither.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from tailsum.numerics.charts import Aligned, Watch, keep, square
from tailsum.numerics.kernels import fused
from tailsum.numerics.noise import Choose
from tailsum.numerics.reduce import LogProduct, Reduce, log_sum_exp, suited


class Halves(NamedTuple):
    """Half subtrees to the left and to the right of their heads, by width."""

    left: list[Tensor]
    right: list[Tensor]


def eisner(arc: Tensor, reduce: Reduce) -> Halves:
    """Half subtrees of words without states, from scores `arc [B, T, T]` (head, child): Eisner's algorithm, T^3."""
    length = arc.shape[-1]
    ones = arc.new_zeros(arc.shape[:-1])
    halves, chart = Halves([ones], [ones]), [Aligned(length) for _ in range(4)]
    left, right, to_left, to_right = chart  # arcs by distance: the child is the left word, or the right one
    left.add(ones)
    right.add(ones)
    for width in range(2, length + 1):
        shape = length - width + 1, width - 1
        joined = reduce(right.starts(*shape) + left.ends(*shape), -1)
        to_left.add(joined + arc.diagonal(1 - width, 1, 2))
        to_right.add(joined + arc.diagonal(width - 1, 1, 2))
        # Both have the longest arc and the shortest half, and so on.
        halves.right.append(reduce(to_right.starts(*shape) + right.ends(*shape), -1))
        halves.left.append(reduce(left.starts(*shape) + to_left.ends(*shape), -1))
        right.add(halves.right[-1])
        left.add(halves.left[-1])
    return Halves(*([x[..., None] for x in side] for side in halves))


def eisner_total(arc: Tensor, length: Tensor, multiroot: bool, reduce: Reduce) -> Tensor:
    """The reduction over all trees of the first `length [B]` words, from `arc [B, T, T]` (head, child; roots on the diagonal)."""
    if reduce is log_sum_exp and fused(arc):
        from tailsum.numerics.fused.projective import projective_sum  # noqa: PLC0415  (needs Triton)

        return projective_sum(arc, length, multiroot, lambda arc: _eisner_total(arc, length, multiroot, reduce))
    return _eisner_total(arc, length, multiroot, reduce)


def _eisner_total(arc: Tensor, length: Tensor, multiroot: bool, reduce: Reduce) -> Tensor:
    nodes, reduce = arc.new_zeros(*arc.shape[:-1], 1), suited(reduce, arc)
    before = roots(eisner(arc, reduce), nodes, arc.diagonal(dim1=1, dim2=2), multiroot, reduce)
    return torch.stack(before).gather(0, length[None] - 1)[0]


# From subtrees `[B, n, w, K]` (first word, head, state of the head) and their first words `[n]` to the messages that
# they send to every word as their head, `[B, n, T, K]`.
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
    scores = (pairs + arc[..., None, None]).permute(0, 2, 4, 1, 3)  # child and its state, head and its state
    shape = scores.shape[-2:]
    product = LogProduct(scores.flatten(3).flatten(1, 2), reduce)

    def attach(trees: Tensor, first: Tensor) -> Tensor:
        batch, count, width, size = trees.shape
        spread = trees.new_full((batch, count, shape[0], size), -math.inf)
        child = first[:, None] + torch.arange(width, device=first.device)
        spread[:, torch.arange(count, device=first.device)[:, None], child] = trees
        return product(spread.flatten(2)).unflatten(-1, shape)

    return attach


def stateful(nodes: Tensor, attach: Attach, reduce: Reduce, watch: Watch = keep) -> tuple[Halves, list[Tensor]]:
    """Half subtrees of words with states, and whole subtrees `[B, n, w, K]` by width (first word, head, its state).

    Both sides of a word have the same state, so a child is attached with both sides at once: a subtree of the words
    s .. e sends a message to each word outside it. Cost: T^3 N^2 for shared pair scores, and T^4 N.
    `watch(width, messages)` is called with the messages of each width, and returns those to use.
    """
    batch, length, size = nodes.shape
    left, right = [nodes.new_zeros(batch, length, size)], [nodes.new_zeros(batch, length, size)]
    trees, sent = list[Tensor](), list[Tensor]()
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
        whole = [
            left[m][:, :count] + right[width - m - 1][:, m : m + count] + nodes[:, m : m + count] for m in range(width)
        ]
        trees.append(torch.stack(whole, 2))
        if width < length:
            sent.append(watch(width, attach(trees[-1], first)))
    return Halves(left, right), trees


def roots(halves: Halves, nodes: Tensor, root: Tensor, multiroot: bool, reduce: Reduce) -> list[Tensor]:
    """The reductions over all trees of the words 0 .. j, `[B]` for every j: their roots are attached last."""
    left, right = square(halves.left), square(halves.right)
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
    """Heads and states `[R, T]` of trees read from the top down, each choice by `choose(logits [R, n])`.

    Row r is a tree of sentence `batch[r]`: -1 in the padding, and throughout where no tree is possible. Each row has a
    stack of items (kind, first, last, state of the head); the kind is 0 for a left half, 1 for a right half, and 2 for
    all words up to `last` under their roots.
    """
    arc, root, nodes, pairs, (left, right), before = charts
    left, right = square(left), square(right)
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
        own = arc[batch, head][..., None] + columns
        own = torch.where(whole[:, None, None], root[batch][..., None], own) + nodes[batch]  # [R, m, K]
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
        ways = torch.where(to_left[:, None, None, None], free_end, free_begin) + own[:, None] + kept[..., None, None]
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
