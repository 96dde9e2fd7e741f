"""Scores from a function of the user's."""

import copy
import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int, Num
from torch import Tensor

from tailsum.scores.potential import Dense, Potential


class Scored(Potential):
    """Scores from any differentiable function of two index tensors, for instance a network over state embeddings.

    `function(i, j)` gets tensors of state numbers that broadcast together and gives one score for each pair. With
    `context [*lead, c]` it is called as `function(i, j, context)`, the context shaped `[*lead, 1, 1, c]` to broadcast
    with them: this is how scores vary with time or sequence. Exact inference evaluates all pairs; a sketch only those
    of the states it keeps.

    >>> states = torch.randn(1000, 8)
    >>> potential = Scored(lambda i, j: -(states[i] - states[j]).square().sum(-1), 1000, 1000)
    >>> potential.at(torch.tensor(3), torch.tensor(3)).item()
    -0.0
    """

    trailing = 1

    def __init__(
        self,
        function: Callable[..., Tensor],
        n_from: int,
        n_to: int,
        context: Num[Tensor, "*lead c"] | None = None,
        device: torch.device | None = None,
    ) -> None:
        if n_from < 1 or n_to < 1:
            raise ValueError(f"n_from and n_to must be at least 1: got {n_from} and {n_to}")
        self.function, self.context = function, context
        self.device = device if context is None else context.device
        self.dtype: torch.dtype | None = None  # what the function gives, unless a model asked for another
        self._n_from, self._n_to = n_from, n_to

    @property
    def lead(self) -> torch.Size:
        return torch.Size() if self.context is None else self.context.shape[:-1]

    @property
    def n_from(self) -> int:
        return self._n_from

    @property
    def n_to(self) -> int:
        return self._n_to

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return () if self.context is None else (self.context,)

    def _changed(self, **fields: object) -> "Scored":
        other = copy.copy(self)
        for name, value in fields.items():
            setattr(other, name, value)
        return other

    def map(self, change: Callable[[Tensor], Tensor]) -> "Scored":
        return self if self.context is None else self._changed(context=change(self.context))

    def evaluated(self) -> Dense:
        return self.tabled()

    def to(self, dtype: torch.dtype) -> "Scored":
        return self._changed(dtype=dtype)

    def on(self, device: torch.device) -> "Scored":
        return self._changed(device=device)

    def block(
        self, rows: Int[Tensor, "*#lead a"] | None = None, cols: Int[Tensor, "*#lead b"] | None = None
    ) -> Float[Tensor, "*lead a b"]:
        rows = torch.arange(self.n_from, device=self.device) if rows is None else rows
        cols = torch.arange(self.n_to, device=self.device) if cols is None else cols
        extra = () if self.context is None else (self.context[..., None, None, :],)
        scores = self.function(rows[..., :, None], cols[..., None, :], *extra)
        lead = torch.broadcast_shapes(self.lead, rows.shape[:-1], cols.shape[:-1])
        wanted = (*lead, rows.shape[-1], cols.shape[-1])
        if not scores.is_floating_point() or scores.shape != wanted:
            raise ValueError(
                f"function must give one floating-point score for each pair, {list(wanted)}: "
                f"got {scores.dtype} {list(scores.shape)}"
            )
        if not (scores < math.inf).all():
            raise ValueError("function gave a score that is NaN or +inf: scores must be finite, or -inf for forbidden")
        return scores if self.dtype is None else scores.to(self.dtype)

    def transposed(self) -> "Scored":
        def function(i: Tensor, j: Tensor, *context: Tensor) -> Tensor:
            return self.function(j.mT, i.mT, *context).mT

        return self._changed(function=function, _n_from=self.n_to, _n_to=self.n_from)

    def columns(self, start: int, stop: int) -> "Scored":
        def function(i: Tensor, j: Tensor, *context: Tensor) -> Tensor:
            return self.function(i, j + start, *context)

        return self._changed(function=function, _n_to=stop - start)
