"""The interface that all scores share, whichever parts of a structure they belong to."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from tailsum.numerics.tensors import as_values, has_masks, largest, scaled, unmasked

This = TypeVar("This", bound="Scores")


class Scores(ABC):
    """Scores of the parts of a structure, in any form. Minus infinity forbids a part.

    Subclasses define `map` and `tabled`. Arithmetic follows from these; override it where it needs no table.
    """

    tensors: tuple[Tensor, ...]  # that the scores are computed from, except for tensors inside a function

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(str(list(x.shape)) for x in self.tensors)})"

    @property
    def after_batch(self) -> int:
        """How many dimensions the tensors have after those of the batch; needed to index the batch."""
        raise ValueError(f"{type(self).__name__} must have after_batch, the dimensions of its tensors after the batch")

    @abstractmethod
    def map(self: This, change: Callable[[Tensor], Tensor]) -> This:
        """The same kind of scores with `change` applied to every tensor."""

    def with_tensors(self: This, tensors: Sequence[Tensor]) -> This:
        """The same kind of scores from other tensors, in their order."""
        new = iter(tensors)
        return self.map(lambda _: next(new))

    @abstractmethod
    def tabled(self) -> "Scores":
        """The scores as tables: each entry of `tensors` is the score of one part."""

    @property
    def requires_grad(self) -> bool:
        """Whether the scores require gradients."""
        return any(x.requires_grad for x in self.tensors)

    def without_nan(self: This) -> This:
        """With zeros for NaN and infinity, which padding may have, in tensors that scores are computed from; tables stay."""
        return self

    def evaluated(self) -> "Scores":
        """The scores themselves, or a table of them if they come from a function."""
        return self

    def scaled(self, factor: Float[Tensor, ""] | float) -> "Scores":
        """Every score times `factor`."""
        return self.tabled().map(lambda x: scaled(x, factor))

    def same_form(self, other: "Scores") -> bool:
        """Whether the tensors of both score the same parts in the same way, so that their sum may be one by one."""
        return type(other) is type(self)

    def plus(self, other: "Scores") -> "Scores":
        """The sum of two scores of the same parts."""
        others = iter(other.tabled().tensors)
        return self.tabled().map(lambda x: x + next(others))

    def finite(self) -> "Scores":
        """Zero in place of minus infinity, and of the lowest finite number if that was used as a mask."""
        return self.tabled().map(as_values)

    def unmasked(self: This) -> This:
        """Minus infinity in place of finite masks."""
        return self.map(unmasked)

    def may_forbid(self) -> bool:
        """Whether some part may have the score minus infinity, or a finite mask."""
        return any(map(has_masks, self.tensors))

    def forbidden(self, dtype: torch.dtype) -> "Scores":
        """One for every part whose score is minus infinity or a finite mask, zero for the others."""
        return self.tabled().map(lambda x: (unmasked(x) == -math.inf).to(dtype))

    def centred(self) -> "Scores":
        """The scores less a constant if every configuration has the same number of these parts, else unchanged."""
        return self

    def bound(self) -> float:
        """A bound on the absolute value of every finite score."""
        return max(map(largest, self.tabled().tensors), default=0.0)
