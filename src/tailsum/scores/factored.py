"""Scores that are inner products of embeddings."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from tailsum.numerics.check import check_scores, check_tensor, first_index
from tailsum.numerics.kernels import WIDEST
from tailsum.numerics.precision import product
from tailsum.numerics.stream import Parts
from tailsum.numerics.tensors import largest, take, working_type
from tailsum.numerics.transforms import every, values_of
from tailsum.scores.base import Scores
from tailsum.scores.potential import Columns, Potential, Rows, column_sums


class Factored(Potential):
    """Scores that are inner products, `left[i] . right[j]`. A large table of all pairs is never built.

    As a transition, `left [*lead, n_from, d]` and `right [*lead, n_to, d]` hold state embeddings. As an emission,
    `Factored(context [*batch, T, d], states [N, d])` scores position t with state i as `context[t] . states[i]`.

    >>> states = torch.randn(1000, 8)
    >>> Factored(states, states).block(torch.tensor([1, 2, 3]), None).shape
    torch.Size([3, 1000])
    """

    def __init__(self, left: Float[Tensor, "*#lead n_from d"], right: Float[Tensor, "*#lead n_to d"]) -> None:
        check_tensor("left", left)
        check_tensor("right", right)
        if min(left.dim(), right.dim()) < 2 or left.shape[-1] != right.shape[-1]:
            raise ValueError(
                f"left and right must have two or more dimensions and the same last one: "
                f"got {list(left.shape)} and {list(right.shape)}"
            )
        try:
            same = left.shape[:-2] == right.shape[:-2]  # broadcast_shapes is slow
            self.lead = left.shape[:-2] if same else torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])
        except RuntimeError:
            raise ValueError(
                f"left and right must have leading dimensions that broadcast: got {list(left.shape)} and {list(right.shape)}"
            ) from None
        self.left, self.right, self.tensors = left, right, (left, right)
        self.n_from, self.n_to = left.shape[-2], right.shape[-2]

    def map(self, change: Callable[[Tensor], Tensor]) -> "Factored":
        return Factored(change(self.left), change(self.right))

    def block(self, rows: Rows = None, cols: Columns = None) -> Float[Tensor, "*lead a b"]:
        part = self.gather(rows, cols)
        return product(part.left, part.right.mT)

    def gather(self, rows: Rows, cols: Columns) -> "Factored":
        left = self.left if rows is None else take(self.left, rows)
        right = self.right if cols is None else take(self.right, cols)
        return Factored(left, right)

    @property
    def numbers_per_score(self) -> int:
        return self.left.shape[-1]

    def of_nodes(self) -> "Factored":
        states = self.right if self.right.dim() == 2 else self.right[..., None, :, :]
        return Factored(self.left[..., :, None, :], states)

    def as_given(self) -> "Factored":
        states = self.right if self.right.dim() == 2 else self.right.squeeze(-3)
        return Factored(self.left.squeeze(-2), states)

    def check(self, name: str) -> None:
        check_factors(name, *self.tensors)

    def bound(self) -> float:
        return largest(self.left.norm(dim=-1)) * largest(self.right.norm(dim=-1))

    def finite(self) -> "Factored":
        return self

    def unmasked(self) -> "Factored":
        return self

    def forbidden(self, dtype: torch.dtype) -> "Factored":
        return self.map(lambda x: torch.zeros_like(x[..., :1], dtype=dtype))  # its scores are finite

    def scaled(self, factor: Float[Tensor, ""] | float) -> "Factored":
        return Factored(self.left * factor, self.right)

    def plus(self, other: Scores) -> Scores:
        return self.side_by_side(other) if isinstance(other, Factored) else super().plus(other)

    def side_by_side(self, other: "Factored") -> "Factored":
        """The sum of two factored scores: their factors concatenated."""

        def joined(a: Tensor, b: Tensor) -> Tensor:
            lead = torch.broadcast_shapes(a.shape[:-1], b.shape[:-1])
            return torch.cat((a.expand(*lead, -1), b.expand(*lead, -1)), -1)

        return Factored(joined(self.left, other.left), joined(self.right, other.right))

    def transposed(self) -> "Factored":
        return Factored(self.right, self.left)

    def columns(self, start: int, stop: int) -> "Factored":
        return Factored(self.left, self.right[..., start:stop, :])

    always_finite = in_slices = True

    def operator(self) -> Potential:
        return self.tabled() if self.left.shape[-1] > min(self.n_from, self.n_to) else self  # a table would be smaller

    @property
    def for_kernels(self) -> tuple[Tensor, ...] | None:
        return self.tensors if self.left.shape[-1] <= WIDEST else None

    def parts(self) -> Parts:
        return Parts((self.left,), (self.right,))

    def scores_of(self, parts: Parts) -> Tensor:
        return product(parts.rows[0], parts.whole[0].mT)

    def slopes(self, of_scores: Tensor, parts: Parts) -> Parts:
        return Parts((product(of_scores, parts.whole[0]),), (product(of_scores.mT, parts.rows[0]),))

    @torch.no_grad()
    def message(self, index: Tensor | None, value: Tensor) -> Tensor:
        values = Factored(value[..., None], value.new_ones(self.n_to, 1))  # one more factor: the product adds them
        both = self.gather(index, None).side_by_side(values)
        return column_sums(lambda *cut: both.columns(*cut).block(), self.n_to, value)


def check_factors(name: str, *factors: Tensor) -> None:
    """A ValueError unless the factors are finite, and their products too."""
    for tensor in factors:
        check_scores(name, tensor)
        if not every(tensor > -math.inf):
            raise ValueError(f"{name} must have finite factors: got -inf at {first_index(tensor == -math.inf)}")
    sizes = [values_of(x).detach().abs().max().item() if x.numel() else 0.0 for x in factors]
    dtype = working_type(*factors)
    if math.prod(sizes) * factors[0].shape[-1] > torch.finfo(dtype).max:
        numbers = " and ".join(f"{size:.3g}" for size in sizes)
        raise ValueError(f"{name} must have factors whose inner products fit {dtype}: got numbers up to {numbers}")


def embedding_norms(nodes: Potential | None, pairs: Potential | None, needed: str) -> Tensor:
    """The L1 norms of the state embeddings, from the scores of pairs or else of nodes; an error names what is `needed`."""
    if isinstance(pairs, Factored) and not pairs.lead:
        return pairs.left.abs().sum(-1)
    if isinstance(nodes, Factored):
        return nodes.right.abs().sum(-1)
    raise ValueError(f"the global proposal needs state embeddings: {needed}")
