"""The bias of random vectors against a mean that is itself estimated, with a standard error.

The square of a difference of two noisy means is too large by their variances. So replicates are put into groups, and
products are taken between the differences of *different* groups, whose noise is independent.
"""

import math

import torch
from jaxtyping import Float, Float64
from torch import Tensor

GROUPS = 20


class Spread:
    """Sums over replicates of a vector: by group, and of the squares of all its entries."""

    def __init__(self, like: Float[Tensor, " n"]) -> None:
        self.sums = torch.zeros(GROUPS, len(like), dtype=torch.float64)
        self.squares, self.count = 0.0, [0] * GROUPS

    def add(self, replicate: int, x: Float[Tensor, " n"]) -> None:
        """Count one more; successive replicates go to different groups."""
        group = replicate % GROUPS
        self.sums[group] += x
        self.squares += x.double().square().sum().item()
        self.count[group] += 1

    def means(self) -> Float64[Tensor, "groups n"]:
        """The mean of each group."""
        return self.sums / torch.tensor(self.count)[:, None]

    def variance(self) -> float:
        """The total variance of one replicate: the sum over the entries."""
        n = sum(self.count)
        mean = self.sums.sum(0) / n
        return (self.squares - n * mean.square().sum().item()) / (n - 1)


def squared_size(groups: Float64[Tensor, "groups n"]) -> tuple[float, float]:
    """The squared size of the mean of random vectors, without bias, and its standard error by the jackknife.

    >>> squared_size(torch.tensor([[3.0, 4.0], [3.0, 4.0], [3.0, 4.0]]).double())
    (25.0, 0.0)
    """
    n, products = len(groups), groups @ groups.T
    products.fill_diagonal_(0.0)
    total, mine = products.sum(), products.sum(-1)
    without = (total - 2 * mine) / ((n - 1) * (n - 2))
    error = math.sqrt((n - 1) / n * (without - without.mean()).square().sum().item())
    return (total / (n * (n - 1))).item(), error


def relative_bias(found: Spread, truth: Spread) -> tuple[float, float, float, float]:
    """The size of the true mean; over it, the size of the bias, its standard error, and the deviation of a replicate.

    The error is that of the square, carried over to the size: half the way to the farther end of two standard errors. So
    a bias is twice its error or less if its square is within two standard errors of zero.
    """
    norm = math.sqrt(max(squared_size(truth.means())[0], 0.0))
    square, error = squared_size(found.means() - truth.means())
    square = max(square, 0.0)
    size, low, high = (math.sqrt(max(square + times * error, 0.0)) for times in (0, -2, 2))
    return norm, size / norm, max(size - low, high - size) / 2 / norm, math.sqrt(max(found.variance(), 0.0)) / norm
