"""Reads trees from a chart, from the top down."""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor


class TreeReader(ABC):
    """Reads trees from a chart."""

    possible: Tensor  # [B]: whether there is any tree
    width: int  # the largest number of logits of a choice

    @abstractmethod
    def read(self, length: Tensor, longest: int, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Trees as of `read_tree`; arbitrary where none is possible."""


class Walker(TreeReader):
    """Reads whole trees `[R, 2T-1, 3]`, of first and last position and state of each span, by `walk(batch)`."""

    width = 1

    def __init__(self, possible: Tensor, walk: Callable[[Tensor], Tensor]) -> None:
        self.possible, self.walk = possible, walk

    def read(self, length: Tensor, longest: int, batch: Tensor) -> tuple[Tensor, Tensor]:
        nodes = self.walk(batch)
        return nodes[..., :2], nodes[..., 2]


class Reader(TreeReader):
    """Reads a tree step by step: the state of the whole, then for each span its split and its children's states."""

    def read(self, length: Tensor, longest: int, batch: Tensor) -> tuple[Tensor, Tensor]:
        return read_tree(length, longest, batch, self)

    @abstractmethod
    def root(self, batch: Tensor) -> Tensor:
        """The state of the whole sentence `batch[r]`, for each row r: `[R]`."""

    @abstractmethod
    def expand(self, batch: Tensor, first: Tensor, last: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The last position of the left child, its state and the right child's, each `[R]`; arbitrary for leaves."""


def read_tree(length: Tensor, longest: int, batch: Tensor, reader: Reader) -> tuple[Tensor, Tensor]:
    """Trees `(spans [R, 2T-1, 2], states [R, 2T-1])` read top-down, parents first and left before right; -1 in padding.

    Row r is a tree over the `length[r]` positions of sentence `batch[r]`.
    """
    rows = torch.arange(len(length), device=length.device)
    stack = torch.full((len(length), longest + 2, 3), -1, device=length.device)
    stack[:, 0] = torch.stack((torch.zeros_like(length), length - 1, reader.root(batch)), -1)
    depth = torch.ones_like(length)
    nodes = torch.full((len(length), max(1, 2 * longest - 1), 3), -1, device=length.device)
    for step in range(2 * longest - 1):
        going = depth > 0
        item = stack[rows, (depth - 1).clamp(min=0)]
        first, last, state = torch.where(going[:, None], item, 0).unbind(-1)
        nodes[:, step] = torch.where(going[:, None], item, -1)
        inner = going & (last > first)
        depth = depth - going.long()
        if not inner.any():
            continue
        split, left, right = reader.expand(batch, first, last, state)
        place = torch.where(inner, depth, longest + 1)  # the last place of the stack takes the rows that are not inner
        stack[rows, place] = torch.stack((split + 1, last, right), -1)
        stack[rows, torch.where(inner, depth + 1, longest + 1)] = torch.stack((first, split, left), -1)
        depth = depth + 2 * inner.long()
    return nodes[..., :2], nodes[..., 2]
