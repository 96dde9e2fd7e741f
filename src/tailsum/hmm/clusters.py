"""K-means: where the states of a model start."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.hmm.draws import choice, normal, some_rows

_ROWS = 20_000  # more are not looked at


def cluster_centres(
    data: Float[Tensor, "rows d"], k: int, generator: torch.Generator | None, steps: int = 20
) -> Float[Tensor, "k d"]:
    """K centres of the rows by Lloyd's algorithm from k-means++ seeds, at most twenty thousand rows of them.

    Columns are scaled to unit variance; NaN counts as the column's mean. Neighbours in the result are close together: centres
    come in the order of the direction in which they differ most. Those without rows lie around others at random.
    """
    data = data.double()
    if len(data) > _ROWS:
        data = data[some_rows(len(data), _ROWS, generator).to(data.device)]
    mean = data.nanmean(0).nan_to_num()
    data = torch.where(data.isnan(), 0.0, data - mean)
    scale = data.square().mean(0).sqrt()
    scale = torch.where(scale > 0, scale, 1.0)
    data = data / scale
    centres = _seeds(data, k, generator)
    for _ in range(steps):
        nearest = nearest_centre(data, centres)
        sizes = torch.bincount(nearest, minlength=k)[:, None]
        sums = torch.zeros_like(centres).index_add_(0, nearest, data)
        moved = torch.where(sizes > 0, sums / sizes.clamp(min=1), centres)
        if torch.equal(moved, centres):
            break
        centres = moved
    used = torch.bincount(nearest_centre(data, centres), minlength=k)[:, None] > 0
    centres = torch.where(used, centres, centres + 0.3 * normal((k, data.shape[1]), data, generator))
    along = torch.linalg.svd(centres - centres.mean(0), full_matrices=False).Vh[0]
    return centres[((centres - centres.mean(0)) @ along * along.sum().sign()).argsort()] * scale + mean


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
