"""K-means: where the states of a model start."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.hmm.draws import choice, normal, some_rows

_ROWS = 10_000  # more are not looked at
_TRIES = 3  # with columns as they are, and as many with columns of unit variance


class Clusters(NamedTuple):
    """Where clusters lie, and the covariance of rows about the centres next to them, in double precision."""

    centres: Float[Tensor, "k d"]
    covariance: Float[Tensor, "d d"]


def clusters_of(data: Float[Tensor, "rows d"], k: int, generator: torch.Generator | None) -> Clusters:
    """K clusters of the rows by Lloyd's algorithm from k-means++ seeds, of ten thousand rows if there are more.

    The best of a few runs is kept, by the likelihood of normal distributions: some runs take columns as they are, some scale
    them to unit variance. NaN counts as the column's mean. Neighbours in the result are close together: centres come in the
    order of the direction in which they differ most. Those without rows lie around others at random.
    """
    data = data.double()
    if len(data) > _ROWS:
        data = data[some_rows(len(data), _ROWS, generator).to(data.device)]
    mean = data.nanmean(0).nan_to_num()
    data = torch.where(data.isnan(), 0.0, data - mean)
    deviation = data.square().mean(0).sqrt()
    deviation = torch.where(deviation > 0, deviation, 1.0)
    best, least = data[:1].expand(k, -1), torch.inf
    for scale in (torch.ones_like(deviation), deviation):
        for _ in range(_TRIES):
            centres, cost = _lloyd(data / scale, k, generator)
            cost += scale.log().sum().item() * len(data)
            if cost < least:
                best, least = centres * scale, cost
    along = torch.linalg.svd((best - best.mean(0)) / deviation, full_matrices=False).Vh[0]
    best = best[((best / deviation) @ along * along.sum().sign()).argsort()]
    errors = data - best[nearest_centre(data / deviation, best / deviation)]
    total = data.mT @ data / len(data)  # each cluster counts as one row that varies like all data
    return Clusters(best + mean, (errors.mT @ errors + k * total) / (len(data) + k))


def _lloyd(data: Tensor, k: int, generator: torch.Generator | None, steps: int = 15) -> tuple[Tensor, float]:
    """Centres, and minus the log-likelihood of the rows about their centres, but for a constant."""
    centres = _seeds(data, k, generator)
    for _ in range(steps):
        nearest, moved = nearest_centre(data, centres), centres
        sizes = torch.bincount(nearest, minlength=k)[:, None]
        sums = torch.zeros_like(centres).index_add_(0, nearest, data)
        centres = torch.where(sizes > 0, sums / sizes.clamp(min=1), centres)
        if torch.equal(moved, centres):
            break
    nearest = nearest_centre(data, centres)
    sizes = torch.bincount(nearest, minlength=k)[:, None]
    squares = torch.zeros_like(centres).index_add_(0, nearest, (data - centres[nearest]).square())
    variances = (squares + data.square().mean(0) + torch.finfo(data.dtype).tiny) / (sizes + 1)  # as if of one row more
    noise = 0.3 * data.square().mean(0).sqrt() * normal((k, data.shape[1]), data, generator)
    return torch.where(sizes > 0, centres, centres + noise), 0.5 * (sizes * variances.log()).sum().item()


def nearest_centre(data: Float[Tensor, "rows d"], centres: Float[Tensor, "k d"]) -> Int[Tensor, " rows"]:
    """The number of the centre that is closest to each row."""
    return torch.cdist(data, centres).argmin(-1)


def _seeds(data: Tensor, k: int, generator: torch.Generator | None) -> Tensor:
    """Rows that lie far from one another: each drawn in proportion to its squared distance from those before it."""
    found = [data[some_rows(len(data), 1, generator).to(data.device)]]
    distance = torch.full_like(data[:, 0], torch.inf)
    for _ in range(k - 1):
        distance = torch.minimum(distance, (data - found[-1]).square().sum(-1))
        found.append(data[choice(distance + 1e-12, 1, generator)])
    return torch.cat(found)
