"""Charts over the spans of a sentence, filled bottom-up by width, and trees read from them top-down.

A chart is a list: entry w-1 holds the spans of w positions as `[B, T-w+1, ...]`, by their first position.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Combine = Callable[[int, list[Tensor], list[Tensor]], Tensor]
Choose = Callable[[Tensor], Tensor]


class Reader(ABC):
    """How a tree is read from a chart: the state of the whole, then for each span its split and its children's states."""

    possible: Tensor  # [B]: whether there is any tree
    width: int  # how many alternatives a choice weighs up, at most

    @abstractmethod
    def root(self, batch: Tensor) -> Tensor:
        """The state of the whole sentence, for each row `[R]`, rows of sentence `batch [R]`."""

    @abstractmethod
    def expand(self, batch: Tensor, first: Tensor, last: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The last position of the left child, its state and the right child's, each `[R]`.

        What it says of a single position is not used.
        """


def fill_chart(leaves: Tensor, combine: Combine) -> list[Tensor]:
    """The chart over `leaves [B, T, ...]`.

    `combine(width, left, right)` gives the entry of one width from its left and right children, two lists by split: the
    left child has 1, 2, .. width-1 positions.
    """
    chart = [leaves]
    length = leaves.shape[1]
    for width in range(2, length + 1):
        count = length - width + 1
        left = [chart[size - 1][:, :count] for size in range(1, width)]
        right = [chart[width - size - 1][:, size : size + count] for size in range(1, width)]
        chart.append(combine(width, left, right))
    return chart


def by_width(spans: Tensor) -> list[Tensor]:
    """A chart from a square `[B, T, T, ...]` of first and last positions."""
    return [spans.diagonal(width, 1, 2).movedim(-1, 1) for width in range(spans.shape[1])]


def square(chart: Sequence[Tensor]) -> Tensor:
    """The chart as a square `[B, T, T, ...]` of first and last positions, minus infinity below the diagonal."""
    batch, length, *rest = chart[0].shape
    whole = chart[0].new_full((batch, length, length, *rest), -math.inf)
    for width, entry in enumerate(chart):
        first = torch.arange(length - width, device=entry.device)
        whole[:, first, first + width] = entry
    return whole


def of_length(chart: Sequence[Tensor], length: Tensor) -> Tensor:
    """The entries of the spans that are whole sentences: `[B, ...]` for sentences of `length [B]` positions."""
    whole = torch.stack([entry[:, 0] for entry in chart])
    return whole[length - 1, torch.arange(len(length), device=length.device)]


def read_tree(length: Tensor, longest: int, batch: Tensor, reader: Reader) -> tuple[Tensor, Tensor]:
    """Trees `(spans [R, 2T-1, 2], states [R, 2T-1])` read top-down, parents first and left before right; -1 in padding.

    Row r is a tree over the `length[r]` positions of sentence `batch[r]`.
    """
    rows = torch.arange(len(length), device=length.device)
    stack = torch.full((len(length), longest + 2, 3), -1, device=length.device)
    stack[:, 0] = torch.stack((torch.zeros_like(length), length - 1, reader.root(batch)), -1)
    depth = torch.ones_like(length)
    found = torch.full((len(length), max(1, 2 * longest - 1), 3), -1, device=length.device)
    for step in range(2 * longest - 1):
        going = depth > 0
        item = stack[rows, (depth - 1).clamp(min=0)]
        first, last, state = torch.where(going[:, None], item, 0).unbind(-1)
        found[:, step] = torch.where(going[:, None], item, -1)
        inner = going & (last > first)
        depth = depth - going.long()
        if not inner.any():
            continue
        split, left, right = reader.expand(batch, first, last, state)
        place = torch.where(inner, depth, longest + 1)  # the last place of the stack is for waste
        stack[rows, place] = torch.stack((split + 1, last, right), -1)
        stack[rows, torch.where(inner, depth + 1, longest + 1)] = torch.stack((first, split, left), -1)
        depth = depth + 2 * inner.long()
    return found[..., :2], found[..., 2]
