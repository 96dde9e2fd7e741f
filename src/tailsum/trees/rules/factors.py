"""Rules scored from vectors of the three states: trilinear embeddings, or low rank. Conventions are those of `rule.py`."""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.numerics.precision import product
from tailsum.numerics.reduce import LogProduct, Reduce, log_sum_exp
from tailsum.numerics.stream import Parts, streamed
from tailsum.numerics.table import fits_budget, tile_size
from tailsum.numerics.tensors import largest, scaled, take
from tailsum.scores.factored import Factored
from tailsum.scores.potential import Potential
from tailsum.trees.rules.rule import DenseRule, Kind, Role, Rule


class FactorRule(Rule):
    """Rules scored from a vector for each head, each left and each right child: `[*lead, N, d]`, `[*lead, N+P, d]` twice.

    A sketch needs no more than the vectors of the states it keeps. Exact sums need the table of all rules; where it does
    not fit `table_budget`, they build it a few heads at a time, once for each width of spans.
    """

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
        return self._scores(self.factor, *self.tensors)

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

    def contract(self, pairs: Float[Tensor, "G r pair"], kind: Kind, reduce: Reduce) -> Float[Tensor, "G r N"]:
        if self._table is None and self._fits():
            self._table = DenseRule(self.block())
        if self._table is not None:
            return self._table.contract(pairs, kind, reduce)
        left, right = (x[..., self.children(leaf), :] for x, leaf in zip(self.tensors[1:], kind, strict=True))

        def tile(parts: Parts) -> Parts:
            (head,), (pairs, left, right, *factor) = parts
            table = self._scores(factor[0] if factor else None, head, left, right)
            return Parts((LogProduct(table.flatten(-2).mT, reduce)(pairs).mT,))

        whole = (pairs, left, right) if self.factor is None else (pairs, left, right, self.factor)
        chunk = max(1, 4 * tile_size(pairs.device) // max(1, left.shape[-2] * right.shape[-2]))
        return streamed(tile, Parts((self.head,), whole), chunk, 1).rows[0].mT


class FactoredRule(FactorRule):
    """Rules scored from embeddings: `score(a -> b c) = sum_d head[a, d] left[b, d] right[c, d]`.

    >>> N, P, d = 20, 30, 8
    >>> rule = FactoredRule(torch.randn(N, d), torch.randn(N + P, d), torch.randn(N + P, d))
    >>> rule.block().shape
    torch.Size([20, 50, 50])
    """

    @staticmethod
    def scores(
        head: Float[Tensor, "*#lead a d"], left: Float[Tensor, "*#lead b d"], right: Float[Tensor, "*#lead c d"]
    ) -> Float[Tensor, "*lead a b c"]:
        pairs = head[..., :, None, :] * left[..., None, :, :]
        return product(pairs.flatten(-3, -2), right.mT).unflatten(-2, pairs.shape[-3:-1])

    def finite(self) -> "FactoredRule":
        return self

    def fan(self, role: Role, first: Int[Tensor, "G m"], second: Int[Tensor, "G m"], rest: slice) -> Potential:
        one, other, third = {
            "head": (self.left, self.right, self.head),
            "left": (self.head, self.right, self.left),
            "right": (self.head, self.left, self.right),
        }[role]
        return Factored(take(one, first) * take(other, second), third[..., rest, :])

    def bound(self) -> float:
        return math.prod(largest(x.norm(dim=-1)) for x in self.tensors)


class LowRankRule(FactorRule):
    """Rules of low rank: `exp score(a -> b c) = sum_r exp(head[a, r] + left[b, r] + right[c, r])`.

    The factors are logarithms, normalised or not: for a normalised grammar `head` sums to one over ranks, `left` and
    `right` over children. Exact sums and samples cost T^3 R + T^2 N R, and never build the table. `argmax`, `entropy` and
    divergences are of trees and states (a rank is no part of a tree), so they build the table, a few heads at a time.

    >>> N, P, R = 20, 30, 8
    >>> rule = LowRankRule(
    ...     torch.randn(N, R).log_softmax(-1), torch.randn(N + P, R).log_softmax(0), torch.randn(N + P, R).log_softmax(0)
    ... )
    >>> bool(torch.allclose(rule.block().exp().sum((-2, -1)), torch.ones(N)))
    True
    """

    @staticmethod
    def scores(
        head: Float[Tensor, "*#lead a d"], left: Float[Tensor, "*#lead b d"], right: Float[Tensor, "*#lead c d"]
    ) -> Float[Tensor, "*lead a b c"]:
        pairs = (left[..., :, None, :] + right[..., None, :, :]).flatten(-3, -2)
        return LogProduct(pairs.mT)(head).unflatten(-1, (left.shape[-2], right.shape[-2]))

    def fan(self, role: Role, first: Int[Tensor, "G m"], second: Int[Tensor, "G m"], rest: slice) -> Potential:
        raise NotImplementedError("states meet in ranks: nothing needs pairs of them")

    def chart(self, spans: list[Tensor], reduce: Reduce) -> list[Tensor]:
        if reduce is not log_sum_exp or self.factor is not None:
            return super().chart(spans, reduce)
        to_rank = {
            leaf: [LogProduct(x[..., self.children(leaf), :]) for x in (self.left, self.right)]
            for leaf in (True, False)
        }
        from_rank = LogProduct(self.head.mT)
        return rank_chart(
            spans[0][..., : self.n_children - self.n_heads],
            lambda width, entry: [self._rows(product, entry) for product in to_rank[width == 1]],
            lambda width, ranks: spans[width - 1][..., : self.n_heads] + self._rows(from_rank, ranks),
        )

    def _rows(self, product: LogProduct, entry: Tensor) -> Tensor:
        """A product with entries `[B, n, ..]` of a chart."""
        if len(entry) == math.prod(self.lead):
            return product(entry)
        return product(entry.flatten(0, 1)[None])[0].unflatten(0, entry.shape[:2])

    def bound(self) -> float:
        return sum(map(largest, self.tensors)) + math.log(self.head.shape[-1])


def rank_chart(
    leaves: Tensor,
    to_ranks: Callable[[int, Tensor], Sequence[Tensor]],
    from_ranks: Callable[[int, Tensor], Tensor],
) -> list[Tensor]:
    """An inside chart whose children meet in ranks: `to_ranks(width, entry)` as left and as right child, `[B, n, R]`."""
    chart, ranks = [leaves], [to_ranks(1, leaves)]
    length = leaves.shape[1]
    for width in range(2, length + 1):
        count = length - width + 1
        ways = [
            ranks[size - 1][0][:, :count] + ranks[width - size - 1][1][:, size : size + count]
            for size in range(1, width)
        ]
        chart.append(from_ranks(width, log_sum_exp(torch.stack(ways), 0)))
        if width < length:
            ranks.append(to_ranks(width, chart[-1]))
    return chart
