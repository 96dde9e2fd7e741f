"""What emissions of counts and of booleans share: numbers that are at least zero, one or d of them; what is not so is missing."""

from abc import abstractmethod

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from tailsum.hmm.covariance import LEAST
from tailsum.hmm.emission import Emission, Statistics
from tailsum.hmm.rows import weighted_sums
from tailsum.numerics.check import at_least, check_tensor


class Counting(Emission):
    """Distributions of one number (`d` is None) or of d independent ones, whose sufficient statistic is their sum.

    A subclass names its parameter, `[N]` or `[N, d]`, by `free`.
    """

    def __init__(self, d: int | None) -> None:
        super().__init__()
        if d is not None:
            at_least(1, d=d)
        self.d, self.event_dim = d, 0 if d is None else 1

    @property
    @abstractmethod
    def free(self) -> Tensor:
        """The free numbers."""

    @abstractmethod
    def density(self, x: Float[Tensor, "rows d"], seen: Float[Tensor, "rows d"]) -> Float[Tensor, "rows n"]:
        """The log-density of numbers, zero where they are missing."""

    @abstractmethod
    def fitted(self, sums: Float[Tensor, "*shape"], counts: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """The free numbers that fit sums of so many observations best."""

    @abstractmethod
    def weight(self) -> float | Tensor:
        """How many observations the prior counts for."""

    def shape(self, n_states: int) -> tuple[int, ...]:
        """The shape of the parameters."""
        return (n_states,) if self.d is None else (n_states, self.d)

    def checked(self, data: Shaped[Tensor, "*batch_T_event"]) -> Float[Tensor, "*batch_T_event"]:
        """The data as floating-point numbers, NaN where they are missing."""
        check_tensor("data", data)
        if self.d is not None and data.shape[-1] != self.d:
            raise ValueError(f"data must have {self.d} numbers in its last dimension: got {list(data.shape)}")
        x = data.to(self.free)
        if bool((x != x.floor()).logical_and(~x.isnan()).any()) or bool((x == torch.inf).any()):
            raise ValueError("data must be whole numbers, in any dtype: got one that is not")
        return torch.where(x >= 0, x, torch.nan)

    def missing(self, data: Shaped[Tensor, "*batch_T_event"]) -> Bool[Tensor, "*batch T"]:
        lost = ~(data >= 0)
        return lost.all(-1) if self.event_dim else lost

    def forward(self, data: Shaped[Tensor, "*batch_T_event"]) -> Float[Tensor, "*batch T n"]:
        shape = data.shape[:-1] if self.event_dim else data.shape
        return self.density(*self._features(self._rows(data))).unflatten(0, shape)

    def example(self) -> Float[Tensor, "1 *event"]:
        return torch.zeros_like(self.free[:1])

    def statistics(self, data: Shaped[Tensor, "*batch_T_event"], weight: Float[Tensor, "*batch T n"]) -> Statistics:
        sums = weighted_sums(self._features, weight.flatten(0, -2), self._rows(data))
        return tuple(x.view(self.free.shape) for x in sums)

    def maximise(self, statistics: Statistics) -> None:
        sums, counts = statistics
        kept = counts + self.weight() < LEAST
        self.free.data = torch.where(
            kept, self.free, self.fitted(sums, counts.masked_fill(kept, 1.0)).to(self.free.dtype)
        )

    def _rows(self, data: Tensor) -> Tensor:
        return data.flatten(0, -2) if self.event_dim else data.flatten()[:, None]

    def _features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The numbers, zero where they are missing, and where they are not."""
        seen = x >= 0
        return torch.where(seen, x, 0).to(self.free), seen.to(self.free)
