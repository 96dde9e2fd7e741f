"""What the kernels in log space take, for chains that `small_chains` does not: log Z and messages, declared in `forward.py`.

In float32, so not where all paths break a mask such as -1e9: there the kernels leave it to the reference.
"""

import torch
from torch import Tensor

from tailsum.chains import plan
from tailsum.numerics.fused.kernel import Example
from tailsum.scores.factored import Factored
from tailsum.scores.potential import Dense, Potential


def params_of(node: Tensor, pairs: Potential) -> tuple[Tensor, ...]:
    """A table or factors for scores `node [B, T, N]` and a flat potential.

    With few states a table in place of factors, for the batch or for each step of each sequence: one product makes them all, whereas
    each step of a kernel would have to wait for its scores.
    """
    batch, _, n = node.shape
    if pairs.lead[0] == batch:
        return (pairs.within(4) if n <= plan.ALONE else pairs).tensors
    return pairs.tabled().tensors


def pairs_of(params: tuple[Tensor, ...]) -> Potential:
    """The inverse of `params_of`."""
    return Dense(*params) if len(params) == 1 else Factored(*params)


def example(batch: int, length: int, n: int, groups: int = 1, steps: int = 1) -> Example:
    """Random chains to try the kernels on."""
    last = torch.full((batch,), length - 1)
    return Example((torch.randn(batch, length, n), torch.randn(groups, steps, n, n)), {"last": last})


SIZES = (
    {"batch": 4, "length": 4, "n": 5},
    {"batch": 2, "length": 3, "n": 19, "groups": 2, "steps": 2},
)
LARGE = {"batch": 32, "length": 100, "n": 512}
