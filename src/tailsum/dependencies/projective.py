"""Charts of projective dependency trees, and trees read from them.

Half subtrees are the items: `right[i, j]` has its head at i and covers the words i .. j, `left[i, j]` has its head at j;
each `[B, n, K]` by width, as in `spans.py`, with a state of the head as the last dimension (one state where words have
none). The head's own score is in neither.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from tailsum.numerics.charts import square
from tailsum.numerics.noise import Choose
from tailsum.numerics.reduce import LogProduct, Reduce


class Halves(NamedTuple):
    """Half subtrees to the left and to the right of their heads, by width."""

    left: list[Tensor]
    right: list[Tensor]


def eisner(arc: Tensor, reduce: Reduce) -> Halves:
    """Half subtrees of words without states, from scores `arc [B, T, T]` (head, child): Eisner's algorithm, T^3."""
    length = arc.shape[-1]
    ones = arc.new_zeros(*arc.shape[:-1], 1)
    left, right = [ones], [ones]
    arcs: list[tuple[Tensor, Tensor]] = []  # by distance: from the right word to the left one, and the reverse
    for width in range(2, length + 1):
        count = length - width + 1
        joined = reduce(
            torch.stack(
                [right[k][:, :count] + left[width - 2 - k][:, k + 1 : k + 1 + count] for k in range(width - 1)]
            ),
            0,
        )
        arcs.append(
            (
                joined + arc.diagonal(1 - width, 1, 2)[..., None],
                joined + arc.diagonal(width - 1, 1, 2)[..., None],
            )
        )
        reach = range(width - 1)
        rightwards = [arcs[k][1][:, :count] + right[width - 2 - k][:, k + 1 : k + 1 + count] for k in reach]
        leftwards = [left[k][:, :count] + arcs[width - 2 - k][0][:, k : k + count] for k in reach]
        right.append(reduce(torch.stack(rightwards), 0))
        left.append(reduce(torch.stack(leftwards), 0))
    return Halves(left, right)


class Attach(ABC):
    """How subtrees are attached to heads outside of them."""

    @abstractmethod
    def __call__(self, trees: Tensor, first: Tensor) -> Tensor:
        """What subtrees `[B, n, w, K]` (first word, head, state of the head) give every word as their head: `[B, n, T, K]`."""


class SharedAttach(Attach):
    """All arcs share the scores `pairs [N, N]` (state of the head, state of the child)."""

    def __init__(self, arc: Tensor, pairs: Tensor, reduce: Reduce) -> None:
        self.arc, self.reduce = arc, reduce
        self.pairs = LogProduct(pairs.mT, reduce)

    def __call__(self, trees: Tensor, first: Tensor) -> Tensor:
        sent = self.pairs(trees.reshape(-1, trees.shape[-1])).reshape(trees.shape)
        child = first[:, None] + torch.arange(trees.shape[2], device=first.device)
        scores = self.arc.mT[:, child]  # [B, n, w, T]: child, head
        return LogProduct(scores, self.reduce)(sent.mT).mT


class OwnAttach(Attach):
    """Every arc has scores of its own: `pairs [G, T, T, K, K]` (head, child, state of the head, state of the child)."""

    def __init__(self, arc: Tensor, pairs: Tensor, reduce: Reduce) -> None:
        scores = (pairs + arc[..., None, None]).permute(0, 2, 4, 1, 3)  # child and its state, head and its state
        self.shape = scores.shape[-2:]
        self.table = LogProduct(scores.flatten(3).flatten(1, 2), reduce)

    def __call__(self, trees: Tensor, first: Tensor) -> Tensor:
        batch, count, width, size = trees.shape
        spread = trees.new_full((batch, count, self.shape[0], size), -math.inf)
        child = first[:, None] + torch.arange(width, device=first.device)
        spread[:, torch.arange(count, device=first.device)[:, None], child] = trees
        return self.table(spread.flatten(2)).unflatten(-1, self.shape)


Watch = Callable[[int, Tensor], Tensor]


def stateful(
    nodes: Tensor, attach: Attach, reduce: Reduce, watch: Watch = lambda _, sent: sent
) -> tuple[Halves, list[Tensor]]:
    """Half subtrees of words with states, and whole subtrees `[B, n, w, K]` by width (first word, head, its state).

    The states of a word's two sides are the same, so a child is attached with both sides at once: a subtree of the words
    s .. e sends each word outside of it what it would give as its child. T^3 N^2 for shared pair scores, and T^4 N.
    `watch` sees what subtrees of each width send, and may change it.
    """
    batch, length, size = nodes.shape
    left, right = [nodes.new_zeros(batch, length, size)], [nodes.new_zeros(batch, length, size)]
    trees, sent = list[Tensor](), list[Tensor]()
    for width in range(1, length + 1):
        count = length - width + 1
        first = torch.arange(count, device=nodes.device)
        if width > 1:  # the last child takes the words from s on, or up to e
            rights = [
                right[s - 1][:, :count] + _head(sent[width - s - 1][:, s : s + count], first) for s in range(1, width)
            ]
            lefts = [
                left[width - e - 1][:, e : e + count] + _head(sent[e - 1][:, :count], first + width - 1)
                for e in range(1, width)
            ]
            right.append(reduce(torch.stack(rights), 0))
            left.append(reduce(torch.stack(lefts), 0))
        whole = [
            left[m][:, :count] + right[width - m - 1][:, m : m + count] + nodes[:, m : m + count] for m in range(width)
        ]
        trees.append(torch.stack(whole, 2))
        if width < length:
            sent.append(watch(width, attach(trees[-1], first)))
    return Halves(left, right), trees


def _head(sent: Tensor, head: Tensor) -> Tensor:
    """What the subtrees `[B, n, T, K]` send one word each."""
    return sent[:, torch.arange(len(head), device=head.device), head]


def roots(halves: Halves, nodes: Tensor, root: Tensor, multiroot: bool, reduce: Reduce) -> list[Tensor]:
    """Sums (or maxima) over all trees of the words 0 .. j, `[B]`, for every j: their roots are attached last."""
    left, right = square(halves.left), square(halves.right)
    length = left.shape[1]
    before: list[Tensor] = []
    never = torch.full_like(root[:, 0], -math.inf)
    alone = nodes + root[..., None]
    for last in range(length):
        # The words s .. m .. last under one root m; all before s under earlier roots.
        if multiroot:
            start = torch.stack([torch.zeros_like(never), *before], 1)  # by s
            ways = reduce(left[:, : last + 1, : last + 1] + start[:, :, None, None], 1)  # [B, m, K]
        else:
            ways = left[:, 0, : last + 1]
        ways = ways + alone[:, : last + 1] + right[:, : last + 1, last]
        before.append(reduce(ways.flatten(1), 1))
    return before


class TreeScores(NamedTuple):
    """What the words of a tree score, to read trees from charts: pair scores by `columns(batch, head, state)`."""

    arc: Tensor  # [B, T, T]
    root: Tensor  # [B, T]
    nodes: Tensor  # [B, T, K]
    columns: Callable[[Tensor, Tensor, Tensor], Tensor]  # [R, T, K]: from a head in a state to every word and state


def read_dependencies(
    halves: Halves,
    before: list[Tensor],
    scores: TreeScores,
    length: Tensor,
    batch: Tensor,
    multiroot: bool,
    choose: Choose,
) -> tuple[Tensor, Tensor]:
    """Heads and states `[R, T]` of trees read from the top down, each choice by `choose(logits [R, n])`; -1 in padding.

    They are -1 throughout where no tree is possible. Row r is a tree of sentence `batch[r]`. Items wait on a stack: (kind, first, last, state of the head), where a kind
    is a half to the left, one to the right, or all words up to `last` under their roots.
    """
    left, right = square(halves.left), square(halves.right)
    longest, size = left.shape[1], left.shape[-1]
    position = torch.arange(longest, device=batch.device)
    rows = torch.arange(len(batch), device=batch.device)
    # Sums over the words before s, by s: one for none.
    earlier = torch.stack([torch.zeros_like(before[0]), *before[:-1]], 1)
    if not multiroot:
        earlier = torch.where(position == 0, earlier, -math.inf)
    heads, states = (torch.full((len(batch), longest + 1), -1, device=batch.device) for _ in range(2))
    stack = torch.full((len(batch), longest + 3, 4), -1, device=batch.device)
    stack[:, 0] = torch.stack(
        (torch.full_like(batch, 2), torch.zeros_like(batch), length[batch] - 1, torch.zeros_like(batch)), -1
    )
    possible = torch.stack(before)[length - 1, torch.arange(len(length), device=batch.device)] > -math.inf
    depth = possible[batch].long()
    while bool((depth > 0).any()):
        going = depth > 0
        kind, first, last, state = torch.where(going[:, None], stack[rows, (depth - 1).clamp(min=0)], 0).unbind(-1)
        depth = depth - going.long()
        to_left, whole = kind == 0, kind == 2
        head = torch.where(to_left, last, first)
        # The words from `begin` to `end` become one child's: of a right half up to its last, of a left half from its first.
        own = scores.arc[batch, head][..., None] + scores.columns(batch, head, state)
        own = torch.where(whole[:, None, None], scores.root[batch][..., None], own) + scores.nodes[batch]  # [R, m, K]
        # [R, end or begin, m, K]: which of the two is free depends on the side.
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
        ways = torch.where(to_left[:, None, None, None], free_end, free_begin) + own[:, None]
        ways = ways + kept[..., None, None]
        ways = ways.masked_fill(~within[:, :, None, None], -math.inf)
        pick = choose(ways.flatten(1))
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
