"""Exponentiated pair scores, the matrices of a sum over paths, as an operator: what a chain multiplies its messages by.

Here and in the chains time comes first: `[T, B, N]`. The scores of an operator are *flat*, `[G, S, N, M]`. G is 1 if the batch
shares them, and B if each sequence has its own; S is 1 if the steps share them, and T-1 if each step has its own.

Column j is divided by `exp(scale_j)`, about its largest entry, so that products neither overflow nor vanish.
"""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor


class Products(ABC):
    """`exp(scores - scale)` and its products with messages, without gradients in the scores."""

    kept: Tensor | None = None  # the entries `[G, S, N, M]`, if they exist
    small: Tensor | None = None  # the same as `[S, G, N, M]`, if calls take longer than arithmetic
    suits_kernels = False  # whether kernels can multiply by it, by two more fields:
    storage: Tensor  # the entries, filled up with zeros
    precision: str

    def __init__(self, pairs: Any, scale: Tensor) -> None:
        self.pairs = pairs
        self.groups, self.steps = pairs.lead
        self.n_from, self.n_to, self.device = pairs.n_from, pairs.n_to, scale.device
        limits = torch.finfo(scale.dtype)
        self.floor = limits.tiny / limits.eps * 100 * self.n_from  # in smaller products, terms may have underflowed
        # The scale [G, S, M] in two parts, so that an offset common to all scores costs no digits.
        self.scale = scale[:, :, None]
        scale = self.scales = scale.transpose(0, 1).contiguous()
        self.centre = scale.amax(-1).double()  # [S, G]
        self.column_scale = scale - scale.amax(-1, keepdim=True)

    @abstractmethod
    def push(self, t: int, x: Tensor) -> Tensor:
        """`x [B, N]` times the table of step t: `[B, M]`."""

    @abstractmethod
    def pull(self, t: int, y: Tensor) -> Tensor:
        """`y [B, M]` times the transposed table of step t: `[B, N]`."""

    @abstractmethod
    def gradient(self, x: Tensor, y: Tensor, tensors: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
        """The gradient of `sum_t x_t @ table_t @ y_t` in the tensors of the scores, for x `[T-1, B, N]` and y `[T-1, B, M]`.

        From all steps at once; differentiable in x, y and `tensors`.
        """

    def reach(self, allowed: Tensor) -> Tensor:
        """Where some allowed path from the start arrives, `[T, B, N]`; `allowed` are the states that may be used."""
        if self.pairs.always_finite:
            for t in range(1, len(allowed)):
                allowed[t] &= self.highest(allowed[t - 1].to(self.scale.dtype))[:, None] > 0
            return allowed
        open_edges = self.of(self.pairs.map(lambda x: torch.zeros_like(x).masked_fill_(x == -torch.inf, -torch.inf)))
        for t in range(1, len(allowed)):
            allowed[t] &= open_edges.push(t - 1, allowed[t - 1].to(self.scale.dtype)) > 0
        return allowed

    @abstractmethod
    def of(self, pairs: Any) -> "Products":
        """The same operator of other scores."""

    # Reductions over all states, which an operator distributed over several devices overrides.

    def highest(self, x: Tensor) -> Tensor:
        """The maximum over the states, the last dimension."""
        return x.amax(-1)

    def summed(self, x: Tensor) -> Tensor:
        """The sum over the states."""
        return x.sum(-1)

    def anywhere(self, x: Tensor) -> bool:
        """Whether any entry is true."""
        return bool(x.any())

    # Messages of all steps, and the rows that share a table.

    def by_table(self, x: Tensor) -> Tensor:
        """`[T-1, B, N]` as `[G, S, R, N]`: the R rows of each table together."""
        steps, batch, size = x.shape
        together = batch // max(1, self.groups)
        x = x.reshape(steps, self.groups, together, size).movedim(1, 0)
        return x.reshape(self.groups, self.steps, steps // self.steps * together, size)

    def by_step(self, x: Tensor, steps: int) -> Tensor:
        """The inverse of `by_table`: `[G, S, R, N]` as `[T-1, B, N]`, where `steps` is T-1."""
        *_, rows, size = x.shape
        together = rows * self.steps // max(1, steps)
        return x.reshape(self.groups, steps, together, size).movedim(1, 0).reshape(steps, self.groups * together, size)


def grouped(x: Tensor, groups: int) -> Tensor:
    """`[B, N]` as `[G, B/G, N]`."""
    return x.reshape(groups, len(x) // max(1, groups), x.shape[-1])
