"""Inside and outside sums of all subtrees of dependency trees with a few states, without gradients.

Squares `[B, T, T, ..]` are indexed by first and last word. Items, K states of a head:
`right[i, j]` and `left[i, j] [K]`, the half subtrees of `projective.py`, with heads i and j;
`trees[s, e] [T, K]`, whole subtrees by their heads and the heads' states;
`sent[s, e] [T, K]`, messages from subtrees to each word outside as their head, by its state.
Widths are filled one after another: all spans of a width, and all their splits, at once.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tailsum.dependencies.projective import arc_table
from tailsum.dependencies.state_sums import LARGE, SIZES, takes, tree_example
from tailsum.numerics.fused.kernel import Kernel
from tailsum.numerics.reduce import LogProduct, column_tops, log_product


@dataclass(frozen=True)
class InsideOutside:
    """Arc and root scores of the restricted model, and its inside and outside log sums by first word, last word, head."""

    arc: Tensor  # [B, T, T]
    root: Tensor  # [B, T]
    inside: Tensor  # [B, T, T, T, M]
    outside: Tensor  # [B, T, T, T, M]: by the head that the subtree is attached to, and its state
    free: Tensor  # [B, T, T]: outside of a subtree under a root


@torch.no_grad()
def inside_outside(nodes: Tensor, arc: Tensor, pairs: Tensor, length: Tensor, multiroot: bool) -> InsideOutside:
    """The inside and outside sums, from scores as in `state_sums.py`."""
    trees, outside, free = _span_sums(nodes, arc, pairs, lengths=length, multiroot=multiroot)
    return InsideOutside(arc, arc.diagonal(dim1=1, dim2=2), trees, outside, free)


def _reference(
    nodes: Tensor, arc: Tensor, pairs: Tensor, lengths: Tensor, multiroot: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Inside sums, outside sums, and those of subtrees whose heads are roots.

    Underflow of products is checked once, at the end; if it was possible, all is computed again with a check of each product.
    """
    size = arc.shape[-1]
    pairs = pairs.expand(1, size, size, -1, -1) if pairs.dim() == 2 else pairs
    scores, root = arc_table(arc, pairs), arc.diagonal(dim1=1, dim2=2)
    products = _Products(scores)
    sums = _Sums(nodes, root, lengths, multiroot, products)
    if products.suspect():
        sums = _Sums(nodes, root, lengths, multiroot, LogProduct(scores))
    return sums.trees, sums.outside, sums.free


_span_sums = Kernel("subtree_sums", _reference, tree_example, SIZES, {**LARGE, "states": 50, "own": 4}, takes)


class _Products:
    """Log-space products of rows with a table of scores and its transpose, with flags for possible underflow."""

    def __init__(self, scores: Tensor) -> None:
        self.top, self.small = column_tops(scores), list[Tensor]()
        self.table = (scores - self.top).exp_()

    def __call__(self, x: Tensor) -> Tensor:
        return self._product(x, self.table) + self.top

    def back(self, x: Tensor) -> Tensor:
        return self._product(x + self.top, self.table.mT)

    def _product(self, x: Tensor, table: Tensor) -> Tensor:
        product, small = log_product(x, table)
        self.small.append((small & (x > -math.inf).any(-1, keepdim=True)).any())
        return product

    def suspect(self) -> bool:
        return bool(torch.stack(self.small).any()) if self.small else False


class _Sums:
    """The items of all spans, minus infinity where there is none."""

    def __init__(
        self, nodes: Tensor, root: Tensor, length: Tensor, multiroot: bool, products: _Products | LogProduct
    ) -> None:
        self.nodes, self.root, self.products = nodes, root, products
        batch, size, states = nodes.shape
        self.position = torch.arange(size, device=nodes.device)
        self.left, self.right = (nodes.new_full((batch, size, size, states), -math.inf) for _ in range(2))
        self.trees, self.sent = (nodes.new_full((batch, size, size, size, states), -math.inf) for _ in range(2))
        self.left[:, self.position, self.position] = self.right[:, self.position, self.position] = 0.0
        for width in range(1, size + 1):
            self._fill(width)
        self.free = _under_roots(self.trees, root, length, multiroot)
        self.of_left, self.of_right = (torch.full_like(self.left, -math.inf) for _ in range(2))  # outside sums
        self.outside = torch.full_like(self.sent, -math.inf)
        self.above = torch.full_like(self.trees, -math.inf)  # outside sums of trees, with their heads' node scores
        for width in range(size, 0, -1):
            self._pass_down(width)

    def _spans(self, width: int) -> tuple[Tensor, Tensor]:
        first = self.position[: len(self.position) - width + 1]
        return first, first + width - 1

    def _fill(self, width: int) -> None:
        """The inside sums of all spans of a width."""
        first, last = self._spans(width)
        i, j = first[:, None], last[:, None]
        if width > 1:  # the outermost child covers the words from s on, or up to e
            s = i + self.position[1:width]
            rights = self.right[:, i, s - 1] + self.sent[:, s, j, i]
            lefts = self.left[:, s, j] + self.sent[:, i, s - 1, j]
            both = torch.stack((rights, lefts)).logsumexp(3)
            self.right[:, first, last], self.left[:, first, last] = both
        m = i + self.position[:width]
        trees = self.left[:, i, m] + self.right[:, m, j] + self.nodes[:, m]
        self.trees[:, i, j, m] = trees
        if width < len(self.position):
            sent = self.products(self.trees[:, first, last].flatten(2)).unflatten(-1, self.trees.shape[-2:])
            self.sent[:, first, last] = self._outside_of(sent, i, j)

    def _outside_of(self, x: Tensor, first: Tensor, last: Tensor) -> Tensor:
        """Minus infinity for heads within the span."""
        within = (self.position >= first) & (self.position <= last)
        return x.masked_fill(within[..., None], -math.inf)

    def _pass_down(self, width: int) -> None:
        """The outside sums of the trees and halves of a width, from those of larger spans."""
        size = len(self.position)
        first, last = self._spans(width)
        i, j = first[:, None], last[:, None]
        h = self.position.expand(len(first), -1)
        # As the outermost child of a head before or after it: the rest of the half of that head, and outside of this half.
        before = self.of_right[:, h, j] + self.right[:, h, (i - 1).clamp(min=0)]
        after = self.of_left[:, i, h] + self.left[:, (j + 1).clamp(max=size - 1), h]
        head = torch.where((h < i)[..., None], before, after)
        head = self._outside_of(head, i, j)  # [B, n, T, K]
        self.outside[:, first, last] = head
        above = self.free[:, first, last, None] + self.root[:, None]
        above = above[..., None].expand(*above.shape, head.shape[-1])
        if width < size:
            above = torch.logaddexp(above, self.products.back(head.flatten(2)).unflatten(-1, head.shape[-2:]))
        within = ((h >= i) & (h <= j))[..., None]
        self.above[:, first, last] = (above + self.nodes[:, None]).masked_fill(~within, -math.inf)
        self._pass_to_halves(first, last)

    def _pass_to_halves(self, first: Tensor, last: Tensor) -> None:
        """The outside sums of halves: within a larger half with one more child, and within a tree with the other half."""
        i, j, p = first[:, None], last[:, None], self.position
        next_word, previous = (j + 1).clamp(max=len(p) - 1), (i - 1).clamp(min=0)
        rights = self.of_right[:, i, p] + self.sent[:, next_word, p, i], self.above[:, p, j, i] + self.left[:, p, i]
        lefts = self.of_left[:, p, j] + self.sent[:, p, previous, j], self.above[:, i, p, j] + self.right[:, j, p]
        both = torch.stack((torch.cat(rights, 2), torch.cat(lefts, 2))).logsumexp(3)
        self.of_right[:, first, last], self.of_left[:, first, last] = both


def _under_roots(trees: Tensor, root: Tensor, length: Tensor, multiroot: bool) -> Tensor:
    """Outside log sums `[B, T, T]` of subtrees (first and last word) whose heads are roots."""
    size = root.shape[-1]
    bound = torch.arange(size + 1, device=length.device)
    if not multiroot:
        whole = (bound[:-1, None] == 0) & (bound[:-1] == length[:, None, None] - 1)
        return torch.where(whole, 0.0, -math.inf).to(trees.dtype)
    alone = (trees + root[:, None, None, :, None]).flatten(3).logsumexp(-1)  # [B, s, e]
    after = torch.where(bound == length[:, None], 0.0, -math.inf).to(alone.dtype)  # the words from s on
    before = torch.where(bound == 0, 0.0, -math.inf).to(alone.dtype).repeat(len(alone), 1)  # the words before s
    for s in range(size - 1, -1, -1):
        ways = (alone[:, s, s:] + after[:, s + 1 :]).logsumexp(-1)
        after[:, s] = torch.where(s < length, ways, after[:, s])
    for e in range(size):
        before[:, e + 1] = (before[:, : e + 1] + alone[:, : e + 1, e]).logsumexp(-1)
    return before[:, :-1, None] + after[:, None, 1:]
