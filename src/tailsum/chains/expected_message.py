"""Messages that carry the mean score of paths along with their sum."""

from typing import NamedTuple

import torch
from torch import Tensor

from tailsum.numerics.fused.kernel import Example, Kernel, unseen
from tailsum.numerics.precision import product
from tailsum.numerics.reduce import log_or_never
from tailsum.numerics.stream import Parts, streamed
from tailsum.numerics.tensors import as_values, finite
from tailsum.numerics.tiles import tile_rows
from tailsum.scores.factored import Factored
from tailsum.scores.potential import Potential

TILES = 4  # the backward pass holds about six tiles at once: smaller ones are as fast and need less memory


class PathMass(NamedTuple):
    """The log of the total mass of paths and the mean of their scores, `[B, N]`."""

    mass: Tensor
    mean: Tensor


def expected_message(pairs: Potential, value: Tensor, carried: Tensor) -> PathMass:
    """`log sum_k exp(value_k + score_kj)`, and the mean of `carried_k + score_kj` under these weights.

    `value` and `carried` are `[B, K]`; `pairs`, in rows, are `[B, K, N]`. Computed in tiles of N; differentiable any number of
    times.
    """
    if pairs.for_kernels is not None and len(pairs.tensors) == 2:
        left, right = pairs.tensors
        return PathMass(*message_of_factors(left, right, value, carried))
    return _in_tiles(pairs, value, carried)


def _in_tiles(pairs: Potential, value: Tensor, carried: Tensor) -> PathMass:
    columns = pairs.backwards()
    rows, whole = columns.parts()

    def tile(parts: Parts) -> Parts:
        here, (value, carried, *rest) = parts
        scores = columns.scores_of(Parts(here, tuple(rest)))
        weight = scores + value[:, None]
        highest = finite(weight.detach().amax(-1, keepdim=True))
        weight = (weight - highest).exp() if torch.is_grad_enabled() else weight.sub_(highest).exp_()
        total = weight.sum(-1, keepdim=True)
        scores = scores if columns.always_finite else as_values(scores)
        mean = (weight * scores).sum(-1, keepdim=True) + product(weight, carried[..., None])
        return Parts((log_or_never(total) + highest, mean / total.masked_fill(total == 0, 1.0)))

    chunk = tile_rows(TILES * value.numel(), value.device)
    mass, mean = streamed(tile, Parts(rows, (value, carried, *whole)), chunk, 2).rows
    return PathMass(mass[..., 0], mean[..., 0])


def _of_factors(left: Tensor, right: Tensor, value: Tensor, carried: Tensor) -> Tensor:
    return torch.stack(_in_tiles(Factored(left, right), value, carried))


def _example(batch: int, k: int, n: int, d: int, own: int = 0) -> Example:
    left, right = torch.randn(batch, k, d) / d, torch.randn(batch if own else 1, n, d)
    return Example((left, right, torch.randn(batch, k), torch.randn(batch, k)))


message_of_factors = Kernel(
    "expected_message", _of_factors, _example,
    sizes=({"batch": 2, "k": 5, "n": 21, "d": 3}, {"batch": 3, "k": 70, "n": 67, "d": 17, "own": 1}),
    large={"batch": 32, "k": 200, "n": 10_000, "d": 64},
    takes=unseen,
    impossible=0.0,
)  # fmt: skip
