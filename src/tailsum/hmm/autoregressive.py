"""Vectors that follow from those before them."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tailsum.hmm.clusters import clusters_of, nearest_centre
from tailsum.hmm.covariance import LEAST, Kind, covariance_maker
from tailsum.hmm.draws import even, normal
from tailsum.hmm.emission import Emission, Statistics
from tailsum.hmm.gaussian import checked_vectors
from tailsum.hmm.given import given_numbers, not_below_zero
from tailsum.hmm.rows import by_rows, weighted_sums
from tailsum.numerics.check import at_least


class Autoregressive(Emission):
    """Each state has a linear recursion: `y_t = b + A_1 y_(t-1) + .. + A_L y_(t-L) + noise`, where L is `lags`.

    `coefficients [N, L, d, d]`, `intercepts [N, d]` and `covariances` of the noise (as in `Gaussian`, with the same priors) say where
    to start. `ridge` is the precision of a normal prior of the coefficients about zero, relative to that of the noise.

    The likelihood is conditional: the first L observations of a sequence have log-density zero, and so has an observation where it
    or one of the L before it is missing (holds NaN). They count neither in the likelihood nor in the statistics. To draw an
    observation without a past (none given, or NaN in it), it is taken to be `centre`, the mean of the data that a fit started from.

    >>> from tailsum.hmm import Autoregressive
    >>> Autoregressive(2, lags=3).of(4)(torch.randn(10, 2)).ne(0).all(-1).sum()
    tensor(7)
    """

    event_dim = 1
    centre: Tensor

    def __init__(
        self,
        d: int,
        lags: int = 1,
        covariance: Kind = "diagonal",
        *,
        coefficients: Float[Tensor, "n lags d d"] | None = None,
        intercepts: Float[Tensor, "n d"] | None = None,
        covariances: Float[Tensor, "..."] | None = None,
        ridge: float = 1e-3,
        covariance_prior: float | Float[Tensor, "..."] = 0.01,
        covariance_weight: float = 1.0,
        floor: float = 1e-6,
    ) -> None:
        super().__init__()
        at_least(1, d=d, lags=lags)
        not_below_zero(ridge=ridge)
        self.kind: Kind = covariance
        self.d, self.lags, self.ridge = d, lags, ridge
        self._given = coefficients, intercepts
        self._spread = covariance_maker(covariance, covariances, covariance_prior, covariance_weight, floor)

    def make(self, n_states: int) -> None:
        d, lags = self.d, self.lags
        coefficients = given_numbers("coefficients", self._given[0], (n_states, lags, d, d))
        intercepts = given_numbers("intercepts", self._given[1], (n_states, d))
        if coefficients is None:
            coefficients = 0.3 * torch.randn(n_states, lags, d, d) / (lags * d) ** 0.5
        self.coefficients = nn.Parameter(coefficients)
        self.intercepts = nn.Parameter(torch.randn(n_states, d) if intercepts is None else intercepts)
        self.spread = self._spread(n_states, d)
        self.register_buffer("centre", torch.zeros(d))

    @property
    def covariances(self) -> Float[Tensor, "..."]:
        """The covariances of the noise: `[N, d]`, `[N, d, d]`, `[d, d]` or `[N]`."""
        return self.spread()

    def checked(self, data: Float[Tensor, "*batch T d"]) -> Float[Tensor, "*batch T d"]:
        return checked_vectors(data, self.d).to(self.intercepts)

    def before(self, data: Float[Tensor, "*batch T d"]) -> Float[Tensor, "*batch T lags d"]:
        """The observations before each one, the latest first; NaN before the first one."""
        T = data.shape[-2]
        padded = torch.cat(
            (torch.full_like(data[..., :1, :], torch.nan).expand(*data.shape[:-2], self.lags, -1), data), -2
        )
        return torch.stack(
            [padded[..., self.lags - lag : self.lags - lag + T, :] for lag in range(1, self.lags + 1)], -2
        )

    def forward(self, data: Float[Tensor, "*batch T d"]) -> Float[Tensor, "*batch T n"]:
        table = self._table()

        def log_density(x: Tensor, past: Tensor) -> Tensor:
            x, past, seen = self._rows(x, past)
            errors = x[:, None] - torch.einsum("rp,ndp->rnd", past, table)
            return self.spread.log_density(errors, seen[:, None].expand_as(x))

        rows = data.flatten(0, -2), self.before(data).flatten(0, -3)
        found = by_rows(log_density, *rows, width=self.n_states * self.d + self.lags * self.d)
        return found.unflatten(0, data.shape[:-1])

    def example(self) -> Float[Tensor, "1 d"]:
        return torch.zeros_like(self.intercepts[:1])

    def statistics(self, data: Float[Tensor, "*batch T d"], weight: Float[Tensor, "*batch T n"]) -> Statistics:
        def features(x: Tensor, past: Tensor) -> tuple[Tensor, ...]:
            x, past = (found.double() for found in self._rows(x, past)[:2])
            return past[:, :, None] * past[:, None], x[:, :, None] * past[:, None], self.spread.product(x, x)

        rows = data.flatten(0, -2), self.before(data).flatten(0, -3)
        return weighted_sums(features, weight.flatten(0, -2), *rows)

    def maximise(self, statistics: Statistics) -> None:
        past, both, own = statistics
        counts, gram = past[:, -1, -1], self.spread.gram
        penalty = torch.full_like(past[0, 0], self.ridge)
        penalty[-1] = 0.0  # none for the intercept
        table = torch.where(
            (counts >= LEAST)[:, None, None], _least_squares(past + penalty.diag(), both), self._table().to(both)
        )
        scatter = own - gram(table, both) - gram(both, table) + gram(table @ past, table)
        scatter = scatter + gram(table * penalty, table)
        self.spread.maximise(scatter, counts[:, None].expand(-1, self.d))
        coefficients = table[..., :-1].unflatten(-1, (self.lags, self.d)).transpose(1, 2)
        centre = self.centre.to(table)
        self.coefficients.data = coefficients.to(self.coefficients.dtype)
        self.intercepts.data = (table[..., -1] + centre - coefficients.sum(1) @ centre).to(self.intercepts.dtype)

    def log_prior(self) -> Float[Tensor, ""]:
        columns = self.coefficients.permute(
            1, 3, 0, 2
        )  # vectors [lags, d, n, d] of what one number adds to the next ones
        return self.spread.log_prior() - 0.5 * self.ridge * self.spread.whitened(columns).square().sum()

    def start(self, data: Float[Tensor, "rows d"], generator: torch.Generator | None) -> None:
        """From clusters of short stretches of the data by the recursion that fits each best; the rows are taken to be in order."""
        lags = self.lags
        if len(data) < lags + 2:
            return
        n, p = self.n_states, lags * self.d + 1
        self.centre = data.mean(0)
        span = max(lags + 2, min(max(20, 3 * p), len(data) // (4 * n)))
        x = (data[: len(data) // span * span] - self.centre).double().view(-1, span, self.d)
        past = torch.cat((self.before(x)[:, lags:].flatten(-2), torch.ones_like(x[:, lags:, :1])), -1)
        grams = past.mT @ past
        scale = grams.diagonal(dim1=-2, dim2=-1).mean(0)
        tables = _least_squares(grams + (0.1 * scale).diag(), x[:, lags:].mT @ past) * scale.sqrt()
        nearest = nearest_centre(tables.flatten(1), clusters_of(tables.flatten(1), n, generator).centres)
        weight = 0.9 * nn.functional.one_hot(nearest, n).to(data)
        weight = weight + 0.2 / n * even(tuple(weight.shape), weight, generator)
        self.maximise(self.statistics(x.to(data) + self.centre, weight[:, None].expand(-1, span, -1)))

    def draw(
        self,
        states: Int[Tensor, "*shape"],
        generator: torch.Generator | None = None,
        past: Float[Tensor, "*shape lags d"] | None = None,
    ) -> Float[Tensor, "*shape d"]:
        table, rows = self._table().detach(), states.flatten()
        x = self.centre.expand(len(rows), self.lags, self.d)
        if past is not None:
            given = past.reshape(len(rows), -1, self.d).to(x)
            x = torch.cat((x, torch.where(given.isnan(), self.centre, given)), 1)[:, -self.lags :]
        x = (x - self.centre).flip(1).flatten(1)
        expected = torch.einsum("rp,rdp->rd", torch.cat((x, torch.ones_like(x[:, :1])), -1), table[rows])
        noise = self.spread.coloured(normal(tuple(expected.shape), expected, generator), rows).detach()
        return (expected + noise + self.centre).view(*states.shape, self.d)

    @property
    def n_free(self) -> int:
        return self.coefficients.numel() + self.intercepts.numel() + self.spread.n_free

    def _table(self) -> Tensor:
        """`[N, d, L * d + 1]`: coefficients, the latest lag first, and intercepts, for data less their centre."""
        offset = self.intercepts + self.coefficients.sum(1) @ self.centre - self.centre
        return torch.cat((self.coefficients.transpose(1, 2).flatten(-2), offset[..., None]), -1)

    def _rows(self, x: Tensor, past: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Observations less the centre, those before them and a one for the intercept, all zero where one is missing; and where none is."""
        seen = ~(x.isnan().any(-1) | past.isnan().flatten(1).any(-1))
        x = torch.where(seen[:, None], x - self.centre, 0.0)
        past = torch.where(seen[:, None, None], past - self.centre, 0.0).flatten(1)
        return x, torch.cat((past, seen[:, None].to(x)), -1), seen


def _least_squares(squares: Float[Tensor, "n p p"], both: Float[Tensor, "n d p"]) -> Float[Tensor, "n d p"]:
    """The shortest of the best tables: of `table @ squares = both`, in units in which the diagonal is one."""
    scale = squares.diagonal(dim1=-2, dim2=-1).clamp(min=torch.finfo(squares.dtype).tiny).rsqrt()
    scale = torch.where(scale < 1e100, scale, 0.0)
    scaled = scale[..., None] * squares * scale[..., None, :]
    return both * scale[..., None, :] @ torch.linalg.pinv(scaled, hermitian=True) * scale[..., None, :]
