"""Scores whose exponentials are a product of two thin matrices."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from tailsum.numerics.check import check_floating
from tailsum.numerics.gradients import gradients
from tailsum.numerics.reduce import LogProduct, Reduce, log_sum_exp
from tailsum.numerics.rings import Ring
from tailsum.numerics.stream import Parts
from tailsum.numerics.tensors import largest, take
from tailsum.scores.base import Scores
from tailsum.scores.potential import Columns, Dense, Potential, Rows, column_scale
from tailsum.scores.structured import Structured, joint_lead


class LowRank(Structured):
    """Scores with `exp(score(i, j)) = sum_r exp(left[i, r] + right[r, j])`: a move by way of one of R hidden values.

    `left` is `[*lead, n_from, R]` and `right [*lead, R, n_to]`. With log probabilities of r given i and of j given r, the scores are
    log probabilities (Chiu et al., 2021). Sums take time in proportion to N R; entropies and best paths, whose terms are
    the scores themselves, take N squared, in tiles.

    >>> left, right = torch.randn(500, 8).log_softmax(-1), torch.randn(8, 500).log_softmax(-1)
    >>> bool(torch.isclose(LowRank(left, right).block(torch.tensor([3]), None).exp().sum(), torch.tensor(1.0)))
    True
    """

    by_parts = True  # the scores are not linear in the tensors

    def __init__(self, left: Float[Tensor, "*#lead n_from r"], right: Float[Tensor, "*#lead r n_to"]) -> None:
        check_floating("left", left)
        check_floating("right", right)
        if min(left.dim(), right.dim()) < 2 or left.shape[-1] != right.shape[-2] or left.shape[-1] == 0:
            raise ValueError(
                f"left must be [*lead, N, R] and right [*lead, R, N], with the same R above zero: got {list(left.shape)} "
                f"and {list(right.shape)}"
            )
        joint_lead("left and right", left.shape[:-2], right.shape[:-2])
        self._set(left, right)

    def _set(self, *tensors: Tensor) -> None:
        super()._set(*tensors)
        self.left, self.right = tensors
        self.n_from, self.n_to = self.left.shape[-2], self.right.shape[-1]

    def block(self, rows: Rows = None, cols: Columns = None) -> Float[Tensor, "*lead a b"]:
        part = self.gather(rows, cols)
        return LogProduct(part.right)(part.left)

    def gather(self, rows: Rows, cols: Columns) -> "LowRank":
        left = self.left if rows is None else take(self.left, rows)
        right = self.right if cols is None else take(self.right.mT, cols).mT
        return LowRank(left, right)

    def transposed(self) -> "LowRank":
        return LowRank(self.right.mT, self.left.mT)

    def columns(self, start: int, stop: int) -> Potential:  # pyright: ignore[reportIncompatibleMethodOverride]
        return LowRank(self.left, self.right[..., start:stop])

    def carry(self, x: Float[Tensor, "*lead r n_from"], ring: Ring) -> Float[Tensor, "*lead r n_to"]:
        return ring.product(ring.product(x, self.left), self.right)

    def into(self, values: Tensor, reduce: Reduce, common: Tensor | None = None) -> Tensor:
        by_rank = reduce is log_sum_exp
        return super().into(values, reduce, common) if by_rank else Potential.into(self, values, reduce, common)

    def normalised(self) -> tuple["LowRank", Float[Tensor, "*lead n_to"]]:
        first = column_scale(self.left.amax(-2))
        right = self.right + first[..., :, None]
        scale = column_scale(right.amax(-2))
        return LowRank(self.left - first[..., None, :], right - scale[..., None, :]), scale

    def zeros(self) -> "LowRank":
        even = self.left.new_tensor(-math.log(self.left.shape[-1]))
        return LowRank(even.expand(self.left.shape), self.right.new_zeros(()).expand(self.right.shape))

    # Tiles of the scores, for entropies.

    def parts(self) -> Parts:
        return Parts((self.left,), (self.right,))

    def scores_of(self, parts: Parts) -> Tensor:
        return LogProduct(parts.whole[0])(parts.rows[0])

    def slopes(self, of_scores: Tensor, parts: Parts) -> Parts:
        def total(tensors: object) -> Tensor:
            left, right = tensors  # pyright: ignore[reportGeneralTypeIssues]
            return (self.scores_of(Parts((left,), (right,))) * of_scores).sum()

        left, right = gradients(total, (*parts.rows, *parts.whole), (True, True))
        assert left is not None
        assert right is not None
        return Parts((left,), (right,))

    # What is not linear in the tensors needs the scores themselves.

    def scaled(self, factor: Float[Tensor, ""] | float) -> Dense:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.tabled().scaled(factor)  # pyright: ignore[reportReturnType]

    def plus(self, other: Scores) -> Scores:
        return self.tabled().plus(other)

    def finite(self) -> Dense:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.tabled().finite()  # pyright: ignore[reportReturnType]

    def forbidden(self, dtype: torch.dtype) -> Dense:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.tabled().forbidden(dtype)  # pyright: ignore[reportReturnType]

    def bound(self) -> float:
        return largest(self.left) + largest(self.right) + math.log(self.left.shape[-1])
