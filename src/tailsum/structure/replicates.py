"""Combination of replicates: independent unbiased estimates of Z, each with the value of another quantity.

Replicate r has an estimate `Z_r`, as `log_z [r, *batch]`, and a value `[r, *batch, ...]`. Its *share* is `Z_r` over the sum
of all. Averages under the model are ratios of sums, so their values are averaged with these shares as weights: the bias of a
single sketch then vanishes with the number of replicates. Log-partition and entropy are logarithms of sums: the logarithm of
the mean is the average, with the same weights, of each value minus the log of its share times the number of replicates.
"""

import math
from statistics import NormalDist
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

GROUPS = 64  # of the jackknife, at most


class Combined(NamedTuple):
    """A value, its standard error and the interval around it."""

    value: Float[Tensor, "*shape"]
    standard_error: Float[Tensor, "*shape"]
    low: Float[Tensor, "*shape"]
    high: Float[Tensor, "*shape"]


def combine(
    log_z: Float[Tensor, "r *batch"], values: Float[Tensor, "r *batch_value"], *, logarithm: bool, confidence: float
) -> Combined:
    """The value of all replicates together, its error by the jackknife, and an interval by Student's t.

    The jackknife leaves out one replicate at a time (of many, one group at a time). If the value depends on a single replicate
    alone, the error is as large as the difference to the value of the others.

    >>> log_z = torch.tensor([1.0, 3.0]).log()
    >>> combine(log_z, log_z, logarithm=True, confidence=0.95).value.exp().round(decimals=6)
    tensor(2., dtype=torch.float64)
    """
    count, dtype = len(log_z), values.dtype
    log_z = log_z.double()
    values = values.double() if logarithm else values
    value, square = mean(log_z, values, logarithm), torch.zeros_like(values[0])
    groups = min(count, GROUPS)
    for group in range(groups if groups > 1 else 0):
        others = torch.arange(count, device=log_z.device) % groups != group
        square += (mean(log_z[others], values[others], logarithm) - value).nan_to_num(0.0, math.inf, math.inf).square()
    error = (square * ((groups - 1) / groups)).sqrt() if groups > 1 else square + math.inf  # one has no error bar
    size = mean(log_z, log_z, logarithm=True) if logarithm else value
    rounding = 4 * torch.finfo(dtype).eps * size.abs().nan_to_num(1.0, 1.0, 1.0).clamp(min=1.0)
    half = student(confidence, max(1, groups - 1)) * error + rounding
    return Combined(value, error, value - half, value + half)


def shares(log_z: Float[Tensor, "r *batch"]) -> Float[Tensor, "r *batch"]:
    """The logarithm of the share of each replicate; equal shares where no configuration is possible."""
    return log_z.masked_fill((log_z == -math.inf).all(0), 0.0).log_softmax(0)


def effective(log_z: Float[Tensor, "r *batch"]) -> Float[Tensor, "*batch"]:
    """The effective number of replicates: as many with equal shares would vary as much."""
    return (-(2 * shares(log_z)).logsumexp(0)).exp()


def mean(log_z: Float[Tensor, "r *batch"], values: Float[Tensor, "r *batch_value"], logarithm: bool) -> Tensor:
    """The value of several replicates together: `[*batch, ...]`."""
    log_share = shares(log_z)
    if logarithm:
        values = values - log_share - math.log(len(log_z))
    share = log_share.exp().to(values.dtype).reshape(*log_share.shape, *(1,) * (values.dim() - log_share.dim()))
    return torch.where(share > 0, share * values, 0.0).sum(0)


def student(confidence: float, freedom: int) -> float:
    """The t such that a variable of Student's distribution, with `freedom` degrees, is within t with probability `confidence`.

    From three degrees on by an expansion around the normal quantile, with a relative error below 0.5%.

    >>> [round(student(0.95, freedom), 2) for freedom in (1, 2, 3, 15)]
    [12.71, 4.3, 3.18, 2.13]
    """
    p = 0.5 + confidence / 2
    if freedom == 1:
        return math.tan(math.pi * (p - 0.5))
    if freedom == 2:
        return confidence / math.sqrt(2 * p * (1 - p))
    z = NormalDist().inv_cdf(p)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / freedom ** (i + 1) for i, term in enumerate(terms))
