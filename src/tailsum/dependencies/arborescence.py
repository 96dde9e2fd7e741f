"""Sums, best trees and samples of non-projective dependency trees.

Scores are `arc [B, T, T]` (head, child; roots on the diagonal); words from `length [B]` on are padding. With `multiroot` a tree has any number of roots, else exactly one. A tree is the head of each word: itself for a
root, -1 in the padding and where no tree is possible.

The sum over all trees is a determinant (the matrix-tree theorem), but computing it subtracts, which loses all digits for
peaked scores. Here words are eliminated one by one: the weight of each path through a word is added to the arc between its
ends. Nothing is subtracted, so this works in log space for scores of any range.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad, softplus

from tailsum.numerics.fused.kernel import Example, Kernel
from tailsum.numerics.kernels import fused
from tailsum.numerics.noise import seed_from
from tailsum.numerics.reduce import Draw, Reduce, log_sum_exp

LONGEST = 1023  # words of a sentence that kernels take: a row of weights, with the root, is one tile


def total(arc: Tensor, length: Tensor, multiroot: bool, reduce: Reduce) -> Tensor:
    """The reduction over all trees, `[B]`: sums by elimination, others by the score of the best or of a drawn tree."""
    if reduce is log_sum_exp:
        return log_sum(arc, lengths=length, multiroot=multiroot)
    if isinstance(reduce, Draw):
        heads = sample(arc, length, multiroot, 1, reduce.generator)[0]
    else:
        heads = best(arc, lengths=length, multiroot=multiroot)
    of_arcs = arc.take_along_dim(heads.clamp(min=0)[:, None], 1)[:, 0]
    score = torch.where(heads < 0, 0.0, of_arcs).sum(-1)
    if isinstance(reduce, Draw):  # the value of the sum, with the gradient of the tree
        score = log_sum(arc, lengths=length, multiroot=multiroot).detach() + score - score.detach()
    return score.masked_fill((heads < 0).all(-1), -math.inf)


def _log_sum(arc: Tensor, lengths: Tensor, multiroot: bool) -> Tensor:
    weight = _weights(arc, lengths)
    if not multiroot:
        weight = _reordered(weight, _elimination_order(weight.detach(), lengths))
    entering = torch.stack([step.entering for step in _eliminate(weight, lengths, multiroot)], -1)
    impossible = (entering == -math.inf).any(-1)
    log_z = entering.masked_fill(impossible[:, None], 0.0).sum(-1).masked_fill(impossible, -math.inf)
    return log_z.to(arc.dtype)


@torch.no_grad()
def sample(arc: Tensor, length: Tensor, multiroot: bool, count: int, generator: torch.Generator | None) -> Tensor:
    """Exact and independent samples: heads `[count, B, T]`. The elimination (T^3) is shared, and a sample adds T^2 log T.

    Eliminated words are restored one by one. Each arc in a tree of the other words is either direct or a path through the
    eliminated word c, drawn in proportion to the two weights. If no arc passes through c, c is a leaf and draws its head.
    Otherwise the children of these arcs become children of c, and the head of c is the first of their heads that reaches
    the root without c. Each such head is a fair draw, as the weight of a path through c is a product.
    """
    batch, n_words, _ = arc.shape
    if fused(arc) and n_words <= LONGEST:
        from tailsum.numerics.fused.drawn_arborescences import drawn  # noqa: PLC0415  (needs Triton)

        return drawn(arc, length, multiroot, count, seed_from(generator))
    weight = _weights(arc, length)
    order = torch.arange(n_words, device=arc.device).expand(batch, n_words)
    if not multiroot:
        order = _elimination_order(weight, length)
        weight = _reordered(weight, order)
    possible = torch.ones_like(length, dtype=torch.bool)
    levels: list[tuple[Tensor, Tensor]] = []
    for step in _eliminate(weight, length, multiroot):
        possible &= step.entering > -math.inf
        through = (step.through - step.rest).exp().masked_fill(step.rest == -math.inf, 0.0)
        levels.append((step.chances.cumsum(-1), through))
    levels.pop()  # the last word is a root
    row = torch.zeros(batch, count, 1, dtype=torch.long, device=arc.device)  # of the head: 0 is the root
    while levels:
        cumulative, through = levels.pop()
        row = _restore(row, cumulative, through, generator)
    word = torch.cat((torch.full_like(order[:, :1], -1), order), 1)  # by row
    head = word[:, None].expand(-1, count, -1).gather(-1, row)
    place = order[:, None].expand(-1, count, -1)
    heads = torch.empty_like(head).scatter(-1, place, torch.where(row == 0, place, head))
    return heads.masked_fill(~(possible[:, None] & _inside(order, length))[:, None], -1).transpose(0, 1)


@torch.no_grad()
def _best(arc: Tensor, lengths: Tensor, multiroot: bool) -> Tensor:
    weight = _weights(arc, lengths).cpu().numpy()
    heads = np.full(tuple(arc.shape[:2]), -1, dtype=np.int64)
    for b, n in enumerate(lengths.tolist()):
        row = _best_rows(weight[b, : n + 1, :n], multiroot)
        if row is not None:
            heads[b, :n] = np.where(row == 0, np.arange(n), row - 1)
    return torch.from_numpy(heads).to(arc.device)


def _example(batch: int, length: int, multiroot: int) -> Example:
    lengths = torch.randint(1, length + 1, (batch,))
    return Example((torch.randn(batch, length, length),), {"lengths": lengths, "multiroot": bool(multiroot)})


_DECLARED: Any = {
    "example": _example,
    "sizes": [{"batch": 2, "length": 5, "multiroot": m} for m in (0, 1)] + [{"batch": 1, "length": 1, "multiroot": 0}],
    "large": {"batch": 16, "length": 40, "multiroot": 0},
    "takes": lambda arc, **_: arc.shape[-1] <= LONGEST,
}

# Log of the sum over all trees, `[B]`: T steps over T^2 numbers, in float64. Derivatives of every order are finite, and zero where
# no tree is possible and the value is minus infinity.
log_sum = Kernel("elimination", _log_sum, **_DECLARED)

# The heads `[B, T]` of a tree with the highest score (Chu-Liu-Edmonds; the reference on the CPU): T^2 per batch element.
best = Kernel("arborescences", _best, **_DECLARED)


def _inside(words: Tensor, length: Tensor) -> Tensor:
    return torch.arange(words.shape[-1], device=words.device) < length[:, None]


def _weights(arc: Tensor, length: Tensor) -> Tensor:
    """Log weights `[B, 1 + T, T]` by head (the root first) and child."""
    inside, root = _inside(arc, length), arc.diagonal(dim1=1, dim2=2)
    loops = torch.eye(root.shape[-1], dtype=torch.bool, device=root.device)
    allowed = inside[:, :, None] & inside[:, None] & ~loops
    root, arc = root.masked_fill(~inside, -math.inf), arc.masked_fill(~allowed, -math.inf)
    return torch.cat((root[:, None], arc), 1).double()


def _reordered(weight: Tensor, order: Tensor) -> Tensor:
    rows = pad(order + 1, (1, 0))
    weight = weight.gather(1, rows[:, :, None].expand(weight.shape))
    return weight.gather(2, order[:, None].expand(weight.shape))


class _Step(NamedTuple):
    """The elimination of the last of n words."""

    entering: Tensor  # [B]: log of the total weight of its heads
    chances: Tensor  # [B, n]: the probability of each head (the root first), if the word is a leaf
    through: Tensor  # [B, n, n - 1]: log weights of the paths through the word, head to child
    rest: Tensor  # [B, n, n - 1]: log weights of the smaller graph


def _eliminate(weight: Tensor, length: Tensor, multiroot: bool) -> Iterator[_Step]:
    """Eliminates the last word, then the one before it, up to the first."""
    for n in range(weight.shape[-1], 0, -1):
        into, out_of, direct = weight[:, :-1, -1], weight[:, -1, :-1], weight[:, :-1, :-1]
        choices = into
        if not multiroot and n > 1:
            # One root: the first-order term in a factor on the root scores. Only the last word attaches to the root.
            choices = into.masked_fill(torch.arange(n, device=into.device) == 0, -math.inf)
        entering = log_sum_exp(choices, -1).masked_fill(length < n, 0.0)
        divisor = entering.masked_fill(entering == -math.inf, 0.0)[:, None]
        through = (into - divisor)[:, :, None] + out_of[:, None]
        weight = _log_add(direct, through)  # also from a word to itself, which is never read
        yield _Step(entering, (choices.detach() - divisor.detach()).exp(), through, weight)


def _log_add(a: Tensor, b: Tensor) -> Tensor:
    """`logaddexp` with finite derivatives of every order, which saves one tensor for the backward pass."""
    swap = b > a
    high, low = torch.where(swap, b, a), torch.where(swap, a, b)
    empty = high == -math.inf
    high = high.masked_fill(empty, 0.0)
    return (high + softplus(low - high)).masked_fill(empty, -math.inf)


def _elimination_order(weight: Tensor, length: Tensor) -> Tensor:
    """An order `[B, T]` of the words, the first eliminated last and the padding at the end, for a single root.

    A word that is the only possible root must be eliminated last. Eliminating a likely root early divides by a small number
    and multiplies by it later, and their logarithms (-1e30 for a mask) cancel badly. So elimination is run once with max in
    place of sum, and each step takes the word with the largest margin of its best head over its score as root. The last
    word is then the root of a best tree.
    """
    root, arc = weight[:, 0].clone(), weight[:, 1:].clone()
    lowest, highest = torch.finfo(arc.dtype).min, torch.finfo(arc.dtype).max
    padding, gone = ~_inside(root, length), torch.zeros_like(root, dtype=torch.bool)
    order = []
    for _ in range(root.shape[-1]):
        entering = arc.amax(1)
        urgency = (entering - root).nan_to_num(lowest, highest, lowest)
        urgency = urgency.masked_fill(padding, math.inf).masked_fill(gone, -math.inf)
        word = urgency.argmax(-1, keepdim=True)
        order.append(word)
        into = arc.gather(2, word[:, None].expand(-1, arc.shape[1], -1))
        out_of = arc.gather(1, word[:, :, None].expand(-1, -1, arc.shape[2]))
        divisor = entering.gather(1, word)
        divisor = divisor.masked_fill(divisor == -math.inf, 0.0)
        root = torch.maximum(root, root.gather(1, word) - divisor + out_of[:, 0])
        arc = torch.maximum(arc, into - divisor[:, None] + out_of)
        gone = gone.scatter(1, word, True)
        arc = arc.masked_fill(gone[:, None] | gone[:, :, None], -math.inf)
        arc.diagonal(dim1=1, dim2=2).fill_(-math.inf)
    return torch.cat(order[::-1], 1)


def _restore(row: Tensor, cumulative: Tensor, through: Tensor, generator: torch.Generator | None) -> Tensor:
    """Add the last eliminated word to trees `row [B, S, n - 1]` of the others: `[B, S, n]`."""
    batch, n, _ = through.shape
    drawn = torch.rand(batch, row.shape[1], n, dtype=through.dtype, device=row.device, generator=generator)
    place = row * (n - 1) + torch.arange(n - 1, device=row.device)
    moved = drawn[..., 1:] < through.flatten(1).gather(1, place.flatten(1)).view(row.shape)
    # Rows that reach the root only through the word, by ancestors 1, 2, 4, ... steps above. Only those of heads are used, so
    # paths of at most n - 2 words matter.
    ancestor, below = pad(row, (1, 0)), pad(moved, (1, 0))
    for _ in range(max(0, n - 3).bit_length()):
        below = below | below.gather(-1, ancestor)
        ancestor = ancestor.gather(-1, ancestor)
    fair = moved & ~below.gather(-1, row)
    first = fair.to(torch.uint8).argmax(-1, keepdim=True)
    # The last quotient is exactly 1, above every draw, so a head of probability 0 is never taken.
    leaf = ((cumulative / cumulative[:, -1:])[:, None] <= drawn[..., :1]).sum(-1, keepdim=True)
    head = torch.where(moved.any(-1, keepdim=True), row.gather(-1, first), leaf)
    return torch.cat((row.masked_fill(moved, n), head), -1)


def _best_rows(weight: np.ndarray, multiroot: bool) -> np.ndarray | None:
    """The row of each word's head in `weight [1 + n, n]` (0: the root) in a best tree, or None if there is no tree.

    From each word the best heads are followed up to the root or to a settled node; a cycle on the way is contracted to one
    node (Tarjan). For a single root, the root is chosen as head only if there is no other head: trees with fewer roots come
    first, exactly and for any scores.
    """
    graph = _Contracted(weight)
    settled: set[int] = set()
    for word in range(weight.shape[1]):
        node, path = int(graph.node[1 + word]), []
        while node not in settled:
            row = graph.choose(node, multiroot)
            if row is None:
                return None
            path.append(node)
            node = int(graph.node[row])
            if row == 0 or node in settled:
                settled.update(path)
                break
            if node in path:
                start = path.index(node)
                node = graph.contract(path[start:])
                del path[start:]
    rows = graph.expand()
    return None if not multiroot and (rows == 0).sum() > 1 else rows


class _Contracted:
    """A graph with cycles contracted to nodes: 0 to n - 1 are the words, then come the cycles."""

    def __init__(self, weight: np.ndarray) -> None:
        n = weight.shape[1]
        self.node = np.arange(-1, n)  # [1 + n]: the outermost node of each row, -1 for the root
        self.gain = list(weight.T)  # by node, [1 + n]: the score of each head over the head chosen inside the node
        self.word = [np.full(1 + n, c) for c in range(n)]  # by node, [1 + n]: the child of each head
        self.chosen = [(0, c) for c in range(n)]  # by node: head and child
        self.cycle = [-1] * n  # by node: the cycle that it was contracted to

    def choose(self, node: int, multiroot: bool) -> int | None:
        gain = self.gain[node]
        row = int(gain.argmax()) if multiroot else 1 + int(gain[1:].argmax())
        row = row if gain[row] > -math.inf else 0
        self.chosen[node] = row, int(self.word[node][row])
        return row if gain[row] > -math.inf else None

    def contract(self, cycle: list[int]) -> int:
        gain = np.stack([self.gain[i] - self.gain[i][self.chosen[i][0]] for i in cycle])
        which = gain.argmax(0)[None]
        node, inside = len(self.gain), np.isin(self.node, cycle)
        self.gain.append(np.where(inside, -math.inf, np.take_along_axis(gain, which, 0)[0]))
        self.word.append(np.take_along_axis(np.stack([self.word[i] for i in cycle]), which, 0)[0])
        self.chosen.append((0, 0))
        self.cycle.append(-1)
        for i in cycle:
            self.cycle[i] = node
        self.node[inside] = node
        return node

    def expand(self) -> np.ndarray:
        """The row of each word's head: the arc into a cycle replaces the chosen one of every node that it enters."""
        for node in range(len(self.chosen) - 1, -1, -1):  # outer cycles first
            _, inner = self.chosen[node]
            while inner != node:
                self.chosen[inner], inner = self.chosen[node], self.cycle[inner]
        return np.array([row for row, _ in self.chosen[: len(self.node) - 1]])
