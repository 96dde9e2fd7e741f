"""Messages that carry the mean score of paths along with their sum."""

from typing import NamedTuple

import torch
from torch import Tensor

from tailsum.numerics.precision import product
from tailsum.numerics.reduce import log_or_never
from tailsum.numerics.stream import Parts, streamed
from tailsum.numerics.tensors import as_values, finite
from tailsum.numerics.tiles import tile_rows

TILES = 4  # the backward pass holds about six tiles at once: smaller ones are as fast and need less memory


class PathMass(NamedTuple):
    """The log of the total mass of paths and the mean of their scores, `[B, N]`."""

    mass: Tensor
    mean: Tensor


def expected_message(params: tuple[Tensor, ...], value: Tensor, carried: Tensor) -> PathMass:
    """`log sum_k exp(value_k + score_kj)`, and the mean of `carried_k + score_kj` under these weights.

    `value` and `carried` are `[B, K]`; `params` are scores `[B, K, N]` or factors `[B, K, d]` and `[B, N, d]`. Computed in
    tiles of N; differentiable any number of times.
    """
    factored = len(params) == 2
    columns = params[1] if factored else params[0].mT
    whole = (params[0].mT, value, carried) if factored else (value, carried)

    def tile(parts: Parts) -> Parts:
        (columns,), (*left, value, carried) = parts
        scores = product(columns, left[0]) if factored else columns
        weight = scores + value[:, None]
        highest = finite(weight.detach().amax(-1, keepdim=True))
        weight = (weight - highest).exp() if torch.is_grad_enabled() else weight.sub_(highest).exp_()
        total = weight.sum(-1, keepdim=True)
        scores = scores if factored else as_values(scores)
        mean = (weight * scores).sum(-1, keepdim=True) + product(weight, carried[..., None])
        return Parts((log_or_never(total) + highest, mean / total.masked_fill(total == 0, 1.0)))

    chunk = tile_rows(TILES * value.numel(), value.device)
    mass, mean = streamed(tile, Parts((columns,), whole), chunk, 2).rows
    return PathMass(mass[..., 0], mean[..., 0])
