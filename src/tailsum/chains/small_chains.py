"""Chains of few states with one table for all steps, which kernels sum in one launch: their scores, and examples.

The kernels are declared beside their references: log Z in `forward.py`, the entropy and means in `mean_score.py`, the best paths in
`best_paths.py`. Scores of states are `[B, T, N]`, of pairs `[G, N, N]` with B a multiple of G; sequences end at `last [B]`, or all at the end. Sums
are in float64.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from tailsum.numerics.fused.kernel import Example
from tailsum.numerics.tensors import lowest_score


class Tables(NamedTuple):
    """The scores of a chain, of states and of pairs."""

    node: Float[Tensor, "B T N"]
    table: Float[Tensor, "G N N"]


def of_batch(x: Float[Tensor, "*#batch n m"], batch: torch.Size) -> Float[Tensor, "B n m"]:
    """The same with the batch flattened. No more views than it needs, as autograd takes time for each."""
    x = x if x.shape[:-2] == batch or batch.numel() == x.shape[:-2].numel() else x.expand(*batch, -1, -1)
    return x if x.dim() == 3 else x.reshape(batch.numel(), *x.shape[-2:])


def without_masks(*scores: Tables) -> bool:
    """Whether no score forbids anything, by one look at the device."""
    lowest = torch.stack([x.detach().amin() for tables in scores for x in tables]).amin()
    return lowest.item() >= lowest_score(lowest.dtype)


def differences(mine: Tables, theirs: Tables, masked: bool) -> Tables:
    """The scores of one chain less those of another, zero in place of masks if there are any."""
    if not masked:
        return Tables(mine.node - theirs.node, mine.table - theirs.table)
    plain = [[x.masked_fill(x < lowest_score(x.dtype), 0.0) for x in scores] for scores in (mine, theirs)]
    return Tables(*(a - b for a, b in zip(*plain, strict=True)))


def alike(scores: Tables, values: Tables) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The inputs of `small_log_sum_and_mean`: with as many tables of scores as of values."""
    groups = max(len(scores.table), len(values.table))
    tables = (x if len(x) == groups else x.expand(groups, -1, -1) for x in (scores.table, values.table))
    return scores.node, next(tables), values.node, next(tables)


def cleaned(x: Float[Tensor, "B T N"], last: Int[Tensor, " B"] | None) -> Float[Tensor, "B T N"]:
    """Zero after the last positions, whatever the padding holds."""
    if last is None:
        return x
    return torch.where(inside(x, last)[..., None], x, 0.0)


def inside(x: Shaped[Tensor, "B T *rest"], last: Int[Tensor, " B"]) -> Bool[Tensor, "B T"]:
    """Which positions are not after the last ones."""
    return torch.arange(x.shape[1], device=x.device) <= last[:, None]


def last_positions(x: Float[Tensor, "B T N"], last: Int[Tensor, " B"] | None) -> Int[Tensor, " B"]:
    """Those given, or the end for all."""
    return torch.full(x.shape[:1], x.shape[1] - 1, device=x.device) if last is None else last


def example(batch: int, length: int, n: int, groups: int = 1, values: int = 0, **how: int) -> Example:
    """Random chains to try the kernels on."""
    scores = [torch.randn(batch, length, n), 2 * torch.randn(groups, n, n) + 5]
    scores += [torch.randn(batch, length, n) + 3, torch.randn(groups, n, n)] * values
    last = torch.arange(batch) % length
    path = {"path": torch.randint(n, (batch, length))} if how.pop("path", 0) else {}
    own = {"entropy": True} if how.pop("entropy", 0) else {}
    return Example(tuple(scores), {"last": last} | how | path | own)


_SIZES = (
    {"batch": 4, "length": 4, "n": 5},
    {"batch": 2, "length": 3, "n": 17, "groups": 2},
    {"batch": 2, "length": 3, "n": 130},
)
_LARGE = {"batch": 32, "length": 1000, "n": 64}


def sized(**how: int) -> tuple[list[dict[str, int]], dict[str, int]]:
    """The sizes that tests try, and the large ones, with further arguments of `example`."""
    return [sizes | how for sizes in _SIZES], _LARGE | how
