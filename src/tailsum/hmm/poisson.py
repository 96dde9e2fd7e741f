"""Counts `0, 1, 2, ..`."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tailsum.hmm.clusters import clusters_of
from tailsum.hmm.counting import Counting
from tailsum.hmm.given import given_numbers, not_below_zero

_LEAST = 1e-10  # a rate: zero would make every count impossible for good


class Poisson(Counting):
    """Each state has the rate of a count, or d rates of independent counts `[d]`. Negative counts and NaN are missing.

    Data are whole numbers of any dtype. `rates` (`[N]` or `[N, d]`) say where to start; else they are random. The prior is as if
    `rate_weight` more observations added up to `rate_prior`: a gamma distribution of shape `rate_prior + 1`. hmmlearn has the same
    two numbers, but compares them with all observations in place of those of the state; then the likelihood with the prior may
    go down. Without prior, or with one state, both agree.

    >>> from tailsum.hmm import Poisson
    >>> Poisson().of(2)(torch.tensor([0, 7, -1])).shape
    torch.Size([3, 2])
    """

    def __init__(
        self,
        d: int | None = None,
        *,
        rates: Float[Tensor, "n *d"] | None = None,
        rate_prior: float = 0.0,
        rate_weight: float = 0.0,
    ) -> None:
        super().__init__(d)
        not_below_zero(rate_prior=rate_prior, rate_weight=rate_weight)
        self.rate_prior, self.rate_weight, self._given = rate_prior, rate_weight, rates

    def make(self, n_states: int) -> None:
        rates = given_numbers("rates", self._given, self.shape(n_states))
        if rates is None:
            rates = 0.5 + torch.rand(self.shape(n_states))
        elif not bool((rates > 0).all()):
            raise ValueError(f"rates must be above 0: got {rates.min().item()}")
        self.log_rates = nn.Parameter(rates.log())

    @property
    def free(self) -> Tensor:
        return self.log_rates

    @property
    def rates(self) -> Float[Tensor, "n *d"]:
        """The mean count of each state."""
        return self.log_rates.exp()

    def density(self, x: Float[Tensor, "rows d"], seen: Float[Tensor, "rows d"]) -> Float[Tensor, "rows n"]:
        logs, x = self.log_rates.view(self.n_states, -1).double(), x.double()  # large counts leave small differences
        found = x @ logs.mT - seen.double() @ logs.exp().mT - torch.lgamma(x + 1.0).sum(-1, keepdim=True)
        return found.to(self.log_rates.dtype)

    def fitted(self, sums: Float[Tensor, "*shape"], counts: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        return ((self.rate_prior + sums) / (self.rate_weight + counts)).clamp(min=_LEAST).log()

    def weight(self) -> float:
        return self.rate_weight

    def log_prior(self) -> Float[Tensor, ""]:
        return (self.rate_prior * self.log_rates - self.rate_weight * self.rates).sum()

    def start(self, data: Float[Tensor, "rows *d"], generator: torch.Generator | None) -> None:
        """Rates by k-means on the roots of the counts."""
        if not len(data):
            return
        x = torch.where(data >= 0, data, torch.nan).reshape(len(data), -1).double()
        least = 0.05 * x.nanmean(0).nan_to_num() + 1e-3
        rates = torch.maximum(clusters_of(x.sqrt(), self.n_states, generator).centres.square(), least)
        self.log_rates.data = rates.log().to(self.log_rates).view_as(self.log_rates)

    def draw(
        self,
        states: Int[Tensor, "*shape"],
        generator: torch.Generator | None = None,
        past: Int[Tensor, "*shape_lags_event"] | None = None,
    ) -> Int[Tensor, "*shape_event"]:
        return torch.poisson(self.rates.detach()[states], generator).long()

    @property
    def n_free(self) -> int:
        return self.log_rates.numel()
