"""Scores computed by a user's function."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Num
from torch import Tensor

from tailsum.numerics.check import are_scores, check_device, check_scores
from tailsum.numerics.tensors import without_nan
from tailsum.scores.potential import Columns, Dense, Potential, Rows


class Scored(Potential):
    """Scores from any differentiable function of two index tensors, for instance a network over state embeddings.

    `function(i, j)` takes tensors of state ids that broadcast together and returns one score for each pair. With
    `context [*lead, c]`, for scores that vary with time or sequence, it is called as `function(i, j, context)`, where the
    context is `[*lead, 1, 1, c]`. Exact inference evaluates all pairs; a sketch only those of the states it keeps.

    >>> states = torch.randn(1000, 8)
    >>> potential = Scored(lambda i, j: -(states[i] - states[j]).square().sum(-1), 1000, 1000)
    >>> potential.at(torch.tensor(3), torch.tensor(3)).item()
    -0.0
    """

    trailing = 1
    time_per_score = 64

    def __init__(
        self,
        function: Callable[..., Tensor],
        n_from: int,
        n_to: int,
        context: Num[Tensor, "*lead c"] | None = None,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if not callable(function):
            raise ValueError(f"function must be callable with two index tensors: got {type(function).__name__}")
        if not isinstance(n_from, int) or not isinstance(n_to, int) or n_from < 1 or n_to < 1:
            raise ValueError(f"n_from and n_to must be at least 1: got {n_from} and {n_to}")
        self.function, self.n_from, self.n_to, self.context = function, n_from, n_to, context
        self.tensors = () if context is None else (context,)
        self.lead = torch.Size() if context is None else context.shape[:-1]
        self._device = device if context is None else context.device
        self.dtype = dtype  # of the scores; None for the dtype that the function returns

    def __repr__(self) -> str:
        name = getattr(self.function, "__name__", type(self.function).__name__)
        return f"Scored({name}, {self.n_from}, {self.n_to})"

    def _changed(self, **fields: Any) -> "Scored":
        own = {name: getattr(self, name) for name in ("function", "n_from", "n_to", "context", "dtype")}
        return Scored(**{**own, "device": self._device, **fields})

    @property
    def device(self) -> torch.device:
        return self._device or torch.device("cpu")

    @property
    def requires_grad(self) -> bool:
        first = torch.zeros((), dtype=torch.long, device=self.device)
        return self.at(first, first).requires_grad

    def check(self, name: str) -> None:
        for tensor in self.tensors:
            if tensor.is_floating_point():
                check_scores(name, tensor)

    def check_tensors(self, name: str, device: torch.device) -> None:
        for tensor in self.tensors:  # of any type
            check_device(name, tensor, device)

    def unmasked(self) -> "Scored":  # what the function gives is unmasked once it is evaluated
        return self

    def without_nan(self) -> "Scored":  # whose scores would be rejected
        return self.map(without_nan)

    def map(self, change: Callable[[Tensor], Tensor]) -> "Scored":
        return self if self.context is None else self._changed(context=change(self.context))

    def evaluated(self) -> Dense:
        return self.tabled()

    def to(self, dtype: torch.dtype) -> "Scored":
        return self._changed(dtype=dtype)

    def on(self, device: torch.device) -> "Scored":
        return self._changed(device=device)

    def block(self, rows: Rows = None, cols: Columns = None) -> Float[Tensor, "*lead a b"]:
        rows = torch.arange(self.n_from, device=self._device) if rows is None else rows
        cols = torch.arange(self.n_to, device=self._device) if cols is None else cols
        extra = () if self.context is None else (self.context[..., None, None, :],)
        scores = self.function(rows[..., :, None], cols[..., None, :], *extra)
        lead = torch.broadcast_shapes(self.lead, rows.shape[:-1], cols.shape[:-1])
        shape = (*lead, rows.shape[-1], cols.shape[-1])
        check_result(scores, shape, "pair")
        return scores if self.dtype is None else scores.to(self.dtype)

    def transposed(self) -> "Scored":
        def function(i: Tensor, j: Tensor, *context: Tensor) -> Tensor:
            return self.function(j.mT, i.mT, *context).mT

        return self._changed(function=function, n_from=self.n_to, n_to=self.n_from)

    def columns(self, start: int, stop: int) -> "Scored":
        def function(i: Tensor, j: Tensor, *context: Tensor) -> Tensor:
            return self.function(i, j + start, *context)

        return self._changed(function=function, n_to=stop - start)


def check_result(scores: object, shape: tuple[int, ...], states: str) -> None:
    """Checks what a user's function gave for each of some `states`, pairs or triples."""
    if not isinstance(scores, Tensor):
        raise ValueError(f"function must give a tensor of scores: got {type(scores).__name__}")
    if not scores.is_floating_point() or scores.shape != shape:
        raise ValueError(
            f"function must give one floating-point score for each {states}, {list(shape)}: "
            f"got {scores.dtype} {list(scores.shape)}"
        )
    if not are_scores(scores):
        raise ValueError("function gave a score that is NaN or +inf: scores must be finite, or -inf for forbidden")
