"""Rules scored from vectors of the three states: what trilinear embeddings and rules of low rank share."""

import math
from abc import abstractmethod
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.numerics.reduce import LogProduct, Reduce
from tailsum.numerics.stream import Parts, streamed
from tailsum.numerics.table import fits_budget, tile_size
from tailsum.numerics.tensors import scaled, take
from tailsum.trees.rules.dense import DenseRule
from tailsum.trees.rules.pairwise import PairwiseRule
from tailsum.trees.rules.rule import Kind
from tailsum.trees.rules.span_rule import SpanRule, as_rules_number


class FactorRule(PairwiseRule):
    """Rules scored from a vector for each head, each left and each right child: `[*lead, N, d]`, `[*lead, N+P, d]` twice.

    A sketch needs no more than the vectors of the states it keeps. Exact sums need the table of all rules; where it does
    not fit `table_budget`, they build it a few heads at a time, once for each width of spans.
    """

    trailing = 2

    def __init__(
        self,
        head: Float[Tensor, "*#lead N d"],
        left: Float[Tensor, "*#lead C d"],
        right: Float[Tensor, "*#lead C d"],
    ) -> None:
        if min(head.dim(), left.dim(), right.dim()) < 2 or left.shape[-2] != right.shape[-2]:
            raise ValueError(
                "head, left and right must be [*lead, N, d], [*lead, N+P, d] and [*lead, N+P, d]: "
                f"got {list(head.shape)}, {list(left.shape)} and {list(right.shape)}"
            )
        if not head.shape[-1] == left.shape[-1] == right.shape[-1] > 0:
            raise ValueError(
                "head, left and right must have the same last dimension, of at least 1: "
                f"got {list(head.shape)}, {list(left.shape)} and {list(right.shape)}"
            )
        try:
            torch.broadcast_shapes(head.shape[:-2], left.shape[:-2], right.shape[:-2])
        except RuntimeError:
            raise ValueError(
                "head, left and right must have leading dimensions that broadcast: "
                f"got {list(head.shape)}, {list(left.shape)} and {list(right.shape)}"
            ) from None
        self.head, self.left, self.right = head, left, right
        self.n_heads, self.n_children = head.shape[-2], left.shape[-2]
        self._table: DenseRule | None = None
        self.factor: Tensor | None = None  # what every score is multiplied by, if anything

    @staticmethod
    @abstractmethod
    def scores(
        head: Float[Tensor, "*#lead a d"], left: Float[Tensor, "*#lead b d"], right: Float[Tensor, "*#lead c d"]
    ) -> Float[Tensor, "*lead a b c"]:
        """Scores of all given heads with all given left and right children."""

    @abstractmethod
    def with_span_vectors(self, vectors: list[Tensor]) -> SpanRule:
        """The rules between the states that spans keep, from their vectors `[*lead, T, T, K, d]` in each role."""

    def at_spans(self, index: Int[Tensor, "*lead T T k"]) -> SpanRule:
        head, child = (x.flatten(-3) for x in as_rules_number(index, self.n_heads, self.n_children))
        given = zip(self.tensors, (head, child, child), strict=True)
        return self.with_span_vectors([take(x, i).unflatten(-2, index.shape[-3:]) for x, i in given])

    @property
    def lead(self) -> torch.Size:
        return torch.broadcast_shapes(*(x.shape[:-2] for x in (self.head, self.left, self.right)))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.head, self.left, self.right

    def map(self, change: Callable[[Tensor], Tensor]) -> "FactorRule":
        return self._times(self.factor, *map(change, self.tensors))

    def _times(self, factor: Tensor | None, *tensors: Tensor) -> "FactorRule":
        other = type(self)(*(tensors or self.tensors))
        other.factor = factor
        return other

    def scaled(self, factor: Float[Tensor, ""] | float) -> "FactorRule":
        factor = torch.as_tensor(factor, dtype=self.head.dtype, device=self.head.device)
        return self._times(factor if self.factor is None else self.factor * factor)

    def block(self) -> Float[Tensor, "*lead N C C"]:
        """The whole table."""
        return self._scores(self.factor, *self.tensors)

    def tabled(self) -> DenseRule:
        return DenseRule(self.block())

    def _scores(self, factor: Tensor | None, *tensors: Tensor) -> Tensor:
        plain = self.scores(*tensors)
        return plain if factor is None else scaled(plain, factor)

    def at(
        self, head: Int[Tensor, "*lead m"], left: Int[Tensor, "*lead m"], right: Int[Tensor, "*lead m"]
    ) -> Float[Tensor, "*lead m"]:
        vectors = (take(x, i)[..., None, :] for x, i in zip(self.tensors, (head, left, right), strict=True))
        return self._scores(self.factor, *vectors)[..., 0, 0, 0]

    def between(
        self, head: Int[Tensor, "G *lead a"], left: Int[Tensor, "G *lead b"], right: Int[Tensor, "G *lead c"]
    ) -> Float[Tensor, "G *lead a b c"]:
        def vectors(x: Tensor, index: Tensor) -> Tensor:
            return take(x, index.flatten(1)).unflatten(1, index.shape[1:])

        given = zip(self.tensors, (head, left, right), strict=True)
        return self._scores(self.factor, *(vectors(x, index) for x, index in given))

    def rows(self, batch: Int[Tensor, " r"], head: Int[Tensor, " r"]) -> Float[Tensor, "r C C"]:
        one, left, right = (x[batch if len(x) > 1 else torch.zeros_like(batch)] for x in self.tensors)
        return self._scores(self.factor, one.take_along_dim(head[:, None, None], 1), left, right)[:, 0]

    def _fits(self) -> bool:
        """Whether the table, its exponentials and, if recorded, their gradients fit the budget for tables."""
        copies = 4 if torch.is_grad_enabled() else 2
        entries = math.prod(self.lead) * self.n_heads * self.n_children**2
        return fits_budget(copies * entries * self.head.element_size())

    def contract_pairs(self, pairs: Float[Tensor, "G r pair"], kind: Kind, reduce: Reduce) -> Float[Tensor, "G r N"]:
        if self._table is None and self._fits():
            self._table = DenseRule(self.block())
        if self._table is not None:
            return self._table.contract_pairs(pairs, kind, reduce)
        left, right = (x[..., self.children(leaf), :] for x, leaf in zip(self.tensors[1:], kind, strict=True))

        def tile(parts: Parts) -> Parts:
            (head,), (pairs, left, right, *factor) = parts
            table = self._scores(factor[0] if factor else None, head, left, right)
            return Parts((LogProduct(table.flatten(-2).mT, reduce)(pairs).mT,))

        whole = (pairs, left, right) if self.factor is None else (pairs, left, right, self.factor)
        chunk = max(1, 4 * tile_size(pairs.device) // max(1, left.shape[-2] * right.shape[-2]))
        return streamed(tile, Parts((self.head,), whole), chunk, 1).rows[0].mT
