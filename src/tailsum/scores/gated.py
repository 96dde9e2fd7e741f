"""Scores that are inner products of embeddings, with a weight for each coordinate that may change at every step."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from tailsum.numerics.check import check_tensor
from tailsum.numerics.tensors import without_nan
from tailsum.scores.factored import Factored, check_factors
from tailsum.scores.potential import Columns, Potential, Rows


class Gated(Potential):
    """Scores `sum_d gate[d] left[i, d] right[j, d]`, with a gate for each step of each sequence.

    `left [n_from, d]` and `right [n_to, d]` are usually shared (or have leading dimensions too); `gate [*lead, d]`
    broadcasts against the model's `[*batch, steps]`. So N d and T d numbers define different scores at every step. Exact
    inference needs all N^2 scores of each step and sequence; a sketch only those of the states that it keeps.

    >>> states = torch.randn(1000, 8)
    >>> Gated(states, states, torch.rand(2, 4, 8)).at_step(0).block(torch.tensor([1, 2, 3]), None).shape
    torch.Size([2, 3, 1000])
    """

    def __init__(
        self,
        left: Float[Tensor, "*#lead n_from d"],
        right: Float[Tensor, "*#lead n_to d"],
        gate: Float[Tensor, "*#lead d"],
    ) -> None:
        check_tensor("gate", gate)
        factors = Factored(left, right)
        if not gate.dim() or gate.shape[-1] != left.shape[-1]:
            raise ValueError(
                f"gate must be [*lead, {left.shape[-1]}], as wide as left and right: got {list(gate.shape)}"
            )
        try:
            self.lead = torch.broadcast_shapes(factors.lead, gate.shape[:-1])
        except RuntimeError:
            raise ValueError(
                f"gate must have leading dimensions that broadcast with those of left and right, {list(factors.lead)}: "
                f"got {list(gate.shape)}"
            ) from None
        self.left, self.right = left, right
        self.tensors = (left, right, gate.unsqueeze(-2))
        self.n_from, self.n_to = factors.n_from, factors.n_to

    @property
    def gate(self) -> Float[Tensor, "*lead d"]:
        """The weight of each coordinate."""
        return self.tensors[2].squeeze(-2)

    def map(self, change: Callable[[Tensor], Tensor]) -> "Gated":
        left, right, gate = map(change, self.tensors)
        return Gated(left, right, gate.squeeze(-2))

    def block(self, rows: Rows = None, cols: Columns = None) -> Float[Tensor, "*lead a b"]:
        return self.gather(rows, cols).block()

    def gather(self, rows: Rows, cols: Columns) -> Factored:
        """Factors, with the gate multiplied into the side with fewer states."""
        part = Factored(self.left, self.right).gather(rows, cols)
        gate = self.tensors[2]
        if part.n_from <= part.n_to:
            return Factored(part.left * gate, part.right)
        return Factored(part.left, part.right * gate)

    def evaluated(self) -> Factored:
        return self.gather(None, None)

    def without_nan(self) -> "Gated":
        return self.map(without_nan)

    def check(self, name: str) -> None:
        check_factors(name, *self.tensors)

    def bound(self) -> float:
        return self.evaluated().bound()

    def finite(self) -> "Gated":
        return self

    def unmasked(self) -> "Gated":
        return self

    def forbidden(self, dtype: torch.dtype) -> Factored:
        return Factored(self.left, self.right).forbidden(dtype)

    def scaled(self, factor: Float[Tensor, ""] | float) -> "Gated":
        return Gated(self.left, self.right, self.gate * factor)

    def transposed(self) -> "Gated":
        return Gated(self.right, self.left, self.gate)

    def columns(self, start: int, stop: int) -> "Gated":
        return Gated(self.left, self.right[..., start:stop, :], self.gate)

    def operator(self) -> Potential:
        return self.evaluated().operator()

    def within(self, room: int) -> Potential:
        return self.evaluated().within(room)

    @torch.no_grad()
    def message(self, index: Tensor | None, value: Tensor) -> Tensor:
        return self.gather(index, None).message(None, value)
