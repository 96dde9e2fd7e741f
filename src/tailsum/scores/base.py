"""What every kind of scores can do, whatever parts of a structure they belong to."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor


class Scores(ABC):
    """Scores of the parts of a structure, in whatever form: they can be read, added and scaled."""

    @property
    @abstractmethod
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that they are made of, as far as they are known."""

    @abstractmethod
    def map(self, change: Callable[[Tensor], Tensor]) -> "Scores":
        """The same kind of scores, every tensor changed."""

    @abstractmethod
    def scaled(self, factor: Float[Tensor, ""] | float) -> "Scores":
        """Every score times `factor`."""

    @abstractmethod
    def plus(self, other: Any) -> "Scores":
        """The sum of two scores of the same parts."""

    @abstractmethod
    def finite(self) -> "Scores":
        """Zero in place of minus infinity, and of masks by the lowest number."""

    @abstractmethod
    def forbidden(self, dtype: torch.dtype) -> "Scores":
        """One for every part with score minus infinity, zero for the others."""

    @abstractmethod
    def bound(self) -> float:
        """A bound on the size of every finite score."""
