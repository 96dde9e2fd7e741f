"""Chains of few states with one table for all steps, by kernels: log Z, the entropy, the mean of another score, the best paths.

Scores of states are `[B, T, N]`, of pairs `[G, N, N]` with B a multiple of G; sequences end at `last [B]`, or all at the end. Sums
are in float64.
"""

from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float
from torch import Tensor

from tailsum.chains.ways.ranked_paths import ranked_paths
from tailsum.numerics.fused.kernel import Example, Kernel
from tailsum.numerics.tensors import lowest_score
from tailsum.scores.potential import Dense
from tailsum.structure.terms import each

if TYPE_CHECKING:
    from tailsum.chains.linear_chain import LinearChain


class Tables(NamedTuple):
    """The scores of a chain, of states and of pairs."""

    node: Float[Tensor, "B T N"]
    table: Float[Tensor, "G N N"]


def differences(mine: Tables, theirs: Tables) -> Tables:
    """The scores of one chain less those of another, zero in place of masks."""
    plain = [[x.masked_fill(x < lowest_score(x.dtype), 0.0) for x in scores] for scores in (mine, theirs)]
    return Tables(*(a - b for a, b in zip(*plain, strict=True)))


def alike(scores: Tables, values: Tables) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The inputs of `small_log_sum_and_mean`: with as many tables of scores as of values."""
    groups = max(len(scores.table), len(values.table))
    tables = (x if len(x) == groups else x.expand(groups, -1, -1) for x in (scores.table, values.table))
    return scores.node, next(tables), values.node, next(tables)


def _chain(node: Tensor, table: Tensor, last: Tensor | None) -> "LinearChain":
    from tailsum.chains.linear_chain import LinearChain  # noqa: PLC0415  (which imports this file)

    return LinearChain(node, table[:, None], None if last is None else last + 1)


def _log_sum(node: Tensor, table: Tensor, *, last: Tensor | None = None) -> Tensor:
    chain = _chain(node, table, last)
    return chain.log_sum(chain.unmasked()).double()


def _entropy(node: Tensor, table: Tensor, *, last: Tensor | None = None, entropy: bool = True) -> Tensor:
    assert entropy
    chain = _chain(node, table, last)
    terms = chain.centred(chain.unmasked())
    log_sum, mean = chain.log_sum_and_mean(terms, terms)
    return (log_sum - mean).double()


def _log_sum_and_mean(
    node: Tensor, table: Tensor, value: Tensor, values: Tensor, *, last: Tensor | None = None
) -> Tensor:
    chain, other = _chain(node, table, last), _chain(value, values, last)
    values_of = each(lambda term: term.finite(), other.unmasked())
    return torch.stack([x.double() for x in chain.log_sum_and_mean(chain.unmasked(), values_of)])


def _example(
    batch: int, length: int, n: int, groups: int = 1, values: int = 0, entropy: int = 0, k: int = 0
) -> Example:
    scores = [torch.randn(batch, length, n), 2 * torch.randn(groups, n, n) + 5]
    scores += [torch.randn(batch, length, n) + 3, torch.randn(groups, n, n)] * values
    last = torch.arange(batch) % length
    return Example(tuple(scores), {"last": last} | ({"entropy": True} if entropy else {}) | ({"k": k} if k else {}))


_SIZES = (
    {"batch": 4, "length": 4, "n": 5},
    {"batch": 2, "length": 3, "n": 17, "groups": 2},
    {"batch": 2, "length": 3, "n": 130},
)
_LARGE = {"batch": 32, "length": 1000, "n": 64}


def _best_path(node: Tensor, table: Tensor, *, last: Tensor | None = None) -> Tensor:
    return _chain(node, table, last).argmax()


def _ranked_paths(node: Tensor, table: Tensor, *, k: int, last: Tensor | None = None) -> Tensor:
    chain = _chain(node, table, last)
    paths = ranked_paths(node, Dense(table[:, None]).unmasked(), chain.sequence_lengths() - 1, k)
    return F.pad(paths, (0, 0, 0, 0, 0, k - len(paths)), value=-1)


small_log_sum = Kernel("small_chains", _log_sum, _example, _SIZES, _LARGE)
small_entropy = Kernel(
    "small_chains", _entropy, _example, [x | {"entropy": 1} for x in _SIZES], _LARGE | {"entropy": 1}
)
small_log_sum_and_mean = Kernel(
    "small_chains", _log_sum_and_mean, _example, [x | {"values": 1} for x in _SIZES], _LARGE | {"values": 1}
)
small_best_path = Kernel("small_best", _best_path, _example, _SIZES, _LARGE)
small_ranked_paths = Kernel("small_ranked", _ranked_paths, _example, [x | {"k": 5} for x in _SIZES], _LARGE | {"k": 5})
