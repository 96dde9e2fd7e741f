"""Vectors of real numbers."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tailsum.hmm.clusters import clusters_of
from tailsum.hmm.covariance import LEAST, Kind, covariance_maker
from tailsum.hmm.draws import normal
from tailsum.hmm.emission import Emission, Statistics
from tailsum.hmm.given import given_numbers, not_below_zero
from tailsum.hmm.rows import by_rows, weighted_sums
from tailsum.numerics.check import at_least, check_floating


class Gaussian(Emission):
    """Each state has a normal distribution of vectors `[d]`.

    `covariance` is "diagonal" (variances `[N, d]`), "full" (matrices `[N, d, d]`), "tied" (one matrix `[d, d]` for all states)
    or "spherical" (a variance `[N]` for all features). `means [N, d]` and `covariances` say where to start; else means are
    random and covariances are one. NaN is missing: a feature if covariances are diagonal or spherical, else the whole vector.

    Priors are those of hmmlearn. A mean counts `mean_weight` observations at `mean_prior`. `covariance_prior` is added to the sums of
    squared errors, in the shape of the covariances (a number to every entry of a matrix, too); `covariance_weight` less one (for
    matrices: less d), if above zero, to the number of observations. For maximum likelihood let `covariance_prior` be 0.
    Variances stay above `floor`: for matrices, their eigenvalues.

    Statistics are sums in double precision about `centre [d]`, the mean of the data that a fit started from: an offset of the data
    costs no digits.

    >>> from tailsum.hmm import Gaussian
    >>> Gaussian(3, "full").of(2)(torch.randn(10, 3)).shape
    torch.Size([10, 2])
    """

    event_dim = 1
    centre: Tensor

    def __init__(
        self,
        d: int,
        covariance: Kind = "diagonal",
        *,
        means: Float[Tensor, "n d"] | None = None,
        covariances: Float[Tensor, "..."] | None = None,
        mean_prior: float | Float[Tensor, "#n #d"] = 0.0,
        mean_weight: float = 0.0,
        covariance_prior: float | Float[Tensor, "..."] = 0.01,
        covariance_weight: float = 1.0,
        floor: float = 1e-6,
    ) -> None:
        super().__init__()
        at_least(1, d=d)
        not_below_zero(mean_weight=mean_weight)
        self.kind: Kind = covariance
        self.d, self.mean_prior, self.mean_weight = d, mean_prior, mean_weight
        self._given = means
        self._spread = covariance_maker(covariance, covariances, covariance_prior, covariance_weight, floor)

    def make(self, n_states: int) -> None:
        means = given_numbers("means", self._given, (n_states, self.d))
        self.means = nn.Parameter(torch.randn(n_states, self.d) if means is None else means)
        self.spread = self._spread(n_states, self.d)
        self.register_buffer("centre", self.means.detach().mean(0) if means is not None else torch.zeros(self.d))

    @property
    def covariances(self) -> Float[Tensor, "..."]:
        """The covariances: `[N, d]`, `[N, d, d]`, `[d, d]` or `[N]`."""
        return self.spread()

    def checked(self, data: Float[Tensor, "*batch T d"]) -> Float[Tensor, "*batch T d"]:
        return checked_vectors(data, self.d).to(self.means)

    def missing(self, data: Float[Tensor, "*batch T d"]) -> Bool[Tensor, "*batch T"]:
        return ~self._seen(data).any(-1)

    def forward(self, data: Float[Tensor, "*batch T d"]) -> Float[Tensor, "*batch T n"]:
        def log_density(x: Tensor) -> Tensor:
            seen = self._seen(x)
            return self.spread.log_density(torch.where(seen, x, self.centre)[:, None] - self.means, seen)

        found = by_rows(log_density, data.flatten(0, -2), width=self.n_states * self.d)
        return found.unflatten(0, data.shape[:-1])

    def example(self) -> Float[Tensor, "1 d"]:
        return torch.zeros_like(self.means[:1])

    def statistics(self, data: Float[Tensor, "*batch T d"], weight: Float[Tensor, "*batch T n"]) -> Statistics:
        def features(x: Tensor) -> tuple[Tensor, ...]:
            seen = self._seen(x)
            x = torch.where(seen, x.double() - self.centre.double(), 0.0)
            return seen, x, self.spread.product(x, x)

        return weighted_sums(features, weight.flatten(0, -2), data.flatten(0, -2))

    def maximise(self, statistics: Statistics) -> None:
        counts, sums, squares = statistics
        centre, weight = self.centre.to(sums), self.mean_weight
        prior = torch.as_tensor(self.mean_prior).to(sums) - centre
        total = counts + weight
        means = torch.where(
            total >= LEAST, (weight * prior + sums) / total.clamp(min=LEAST), self.means.to(sums) - centre
        )
        product = self.spread.product
        scatter = squares - product(means, sums) - product(sums, means) + product(counts * means, means)
        self.spread.maximise(scatter + weight * product(means - prior, means - prior), counts)
        self.means.data = (means + centre).to(self.means.dtype)

    def log_prior(self) -> Float[Tensor, ""]:
        prior = torch.as_tensor(self.mean_prior).to(self.means)
        away = self.spread.whitened(self.means - prior).square().sum()
        return self.spread.log_prior() - 0.5 * self.mean_weight * away

    def start(self, data: Float[Tensor, "rows d"], generator: torch.Generator | None) -> None:
        """Means by k-means, and the covariance of the data about the nearest ones."""
        if not len(data):
            return
        centre = data.double().nanmean(0).nan_to_num()
        data = torch.where(data.isnan(), 0.0, data - centre)  # the mean for what is missing
        found = clusters_of(data, self.n_states, generator)
        self.means.data = (found.centres + centre).to(self.means.dtype)
        self.spread.start(found.covariance)
        self.centre = centre.to(self.means.dtype)

    def draw(
        self,
        states: Int[Tensor, "*shape"],
        generator: torch.Generator | None = None,
        past: Float[Tensor, "*shape lags d"] | None = None,
    ) -> Float[Tensor, "*shape d"]:
        means = self.means.detach()[states.flatten()]
        noise = self.spread.coloured(normal(tuple(means.shape), means, generator), states.flatten())
        return (means + noise.detach()).view(*states.shape, self.d)

    @property
    def n_free(self) -> int:
        return self.means.numel() + self.spread.n_free

    def _seen(self, data: Tensor) -> Tensor:
        """Which features count as observed."""
        seen = ~data.isnan()
        return seen if self.spread.separate else seen.all(-1, keepdim=True).expand_as(seen)


def checked_vectors(data: Float[Tensor, "*batch T d"], d: int) -> Float[Tensor, "*batch T d"]:
    """Data that are floating-point, have d features and are not infinite; or a ValueError."""
    check_floating("data", data)
    if data.shape[-1] != d:
        raise ValueError(f"data must have {d} features, its last dimension: got {list(data.shape)}")
    if bool(data.isinf().any()):
        raise ValueError("data must be finite, or NaN for missing: got infinity")
    return data
