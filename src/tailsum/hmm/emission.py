"""What a state of a hidden Markov model says: the distributions of observations, one for each state."""

from abc import abstractmethod
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from tailsum.hmm.part import Part

Statistics = tuple[Tensor, ...]  # sums over positions, weighed by how likely each state is there: they add up


class Emission(Part):
    """Distributions of observations, one for each of N states: the base class of a model's emissions.

    Observations are `data [*batch, T, *event]`. A subclass makes its parameters for N states in `make`, and gives the
    log-densities of data by `forward`. To be fitted by EM it also has `statistics` and `maximise`, to draw new sequences `draw`,
    and to start from data `start`. `event_dim` counts the dimensions of one observation: none for a symbol, one for a vector.
    `lags` counts the observations before it that an observation depends on.
    """

    event_dim = 0
    lags = 0
    name = "emission"

    @abstractmethod
    def forward(self, data: Shaped[Tensor, "*batch_T_event"]) -> Float[Tensor, "*batch T n"]:
        """The log-density of each observation in each state; zero where it is missing."""

    def checked(self, data: Shaped[Tensor, "*batch_T_event"]) -> Shaped[Tensor, "*batch_T_event"]:
        """The data, in the dtype and on the device of the parameters, or a ValueError that says what is wrong with them."""
        return data

    def missing(self, data: Shaped[Tensor, "*batch_T_event"]) -> Bool[Tensor, "*batch T"]:
        """Where nothing was observed: NaN anywhere in an observation, or -1 for whole numbers."""
        lost = data.isnan() if data.is_floating_point() else data < 0
        return lost.flatten(lost.dim() - self.event_dim).any(-1) if self.event_dim else lost

    def blank(self, like: Shaped[Tensor, "*batch_T_event"]) -> Shaped[Tensor, "*batch_T_event"]:
        """Missing observations in the shape of some data."""
        return torch.full_like(like, torch.nan if like.is_floating_point() else -1)

    def fixed(self) -> Callable[[Tensor], Tensor]:
        """The log-density of single observations `[*batch, *event]`, for parameters that do not change any more."""
        return lambda observation: self(observation[..., None] if not self.event_dim else observation.unsqueeze(-2))[
            ..., 0, :
        ]

    @abstractmethod
    def example(self) -> Shaped[Tensor, "1 *event"]:
        """One observation, of any value."""

    # For EM.

    def statistics(self, data: Shaped[Tensor, "*batch_T_event"], weight: Float[Tensor, "*batch T n"]) -> Statistics:
        """Sums over the positions, weighed by the probability of each state there, zero for padding."""
        raise NotImplementedError(f"{type(self).__name__} has no M-step: fit it with method='gradient'")

    def maximise(self, statistics: Statistics) -> None:
        """The parameters that make data with these statistics most likely, under the priors."""
        raise NotImplementedError(f"{type(self).__name__} has no M-step: fit it with method='gradient'")

    def log_prior(self) -> Float[Tensor, ""]:
        """The log-density of the parameters under the priors, up to a constant."""
        return torch.zeros((), device=next(self.parameters()).device)

    # For new models and new sequences.

    def start(self, data: Shaped[Tensor, "rows *event"], generator: torch.Generator | None) -> None:
        """Parameters to begin with, from observations of all sequences, none of them missing."""
        raise NotImplementedError(f"{type(self).__name__} cannot start from data: give start='keep'")

    def draw(
        self,
        states: Int[Tensor, "*shape"],
        generator: torch.Generator | None = None,
        past: Shaped[Tensor, "*shape_lags_event"] | None = None,
    ) -> Shaped[Tensor, "*shape_event"]:
        """An observation for each state; `past` are up to `lags` observations before it, for an emission that has lags."""
        raise NotImplementedError(f"{type(self).__name__} has no draw")
