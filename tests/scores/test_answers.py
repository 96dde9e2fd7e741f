"""What every potential answers about itself, against its table."""

import math

import pytest
import torch

import tailsum as ts
from tailsum.distributed.sharded_pairs import sharded
from tailsum.distributed.shards import Shards
from tailsum.numerics.reduce import highest, log_sum_exp
from tailsum.numerics.stream import Parts
from tailsum.numerics.tiles import fits_budget

N = 6


def potentials():
    g = torch.Generator().manual_seed(0)

    def randn(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    table, left, right, wide = randn(2, N, N), randn(2, N, 3), randn(N, 3), randn(N, N + 1)
    table[0, 2] = table[1, :, 4] = -math.inf
    index = torch.tensor([[0, 5, 2, 3, 1], [1, 5, 0, 3, 4]])
    found = {
        "dense": ts.Dense(table),
        "factored": ts.Factored(left, right),
        "factored, wider than its table": ts.Factored(wide, wide),
        "gated": ts.Gated(right, right, randn(2, 3)),
        "scored": ts.Scored(lambda i, j, c: (right[i] * right[j]).sum(-1) + c[..., 0], N, N, randn(2, 1)),
        "banded": ts.Banded(randn(2, 3, N)),
        "sparse": ts.Sparse(index, randn(2, 5), N),
        "low rank": ts.LowRank(left, randn(3, N)),
        "kronecker": ts.Kronecker(randn(2, 2, 2), randn(3, 3)),
        "monarch": ts.Monarch(randn(2, 3, 2, 2), randn(2, 2, 3, 3)),
    }
    for potential in found.values():
        potential.table_below = 0  # which those that multiply without a table have
    return found


@pytest.mark.parametrize("kind", potentials())
def test_rows_are_those_of_the_table(kind):
    potential = potentials()[kind]
    own = potential.in_rows()
    rows, whole = own.parts()
    some = own.scores_of(Parts(tuple(x[..., 1:4, :] for x in rows), whole))
    torch.testing.assert_close(some, potential.block()[..., 1:4, :])
    for x, y in zip(own.of_parts(own.parts()), own.tensors, strict=True):
        assert x is y


@pytest.mark.parametrize("reduce", [log_sum_exp, highest])
@pytest.mark.parametrize("kind", potentials())
def test_products_are_those_with_the_table(kind, reduce):
    potential = potentials()[kind].evaluated()
    table = potential.block()
    x = torch.randn(*table.shape[:-2], 3, N, dtype=torch.float64)
    common = torch.arange(table.shape[:-2].numel(), dtype=torch.float64).reshape(table.shape[:-2])
    expected = reduce(x[..., :, :, None] + (table - common[..., None, None])[..., None, :, :], -2)
    torch.testing.assert_close(potential.log_product(x, reduce, common), expected)
    torch.testing.assert_close(potential.into(x, reduce, common), expected)


@pytest.mark.parametrize("kind", potentials())
def test_what_is_said_of_the_table_is_true(kind):
    potential = potentials()[kind]
    table = potential.block()
    assert potential.node_sizes == table.shape[-2:]
    assert potential.device == table.device
    if potential.tensors:
        assert potential.table_bytes == table.numel() * table.element_size()
        assert fits_budget(potential.table_bytes)
    assert table.isfinite().all() or not potential.always_finite
    potential.check("transition")
    potential.check_tensors("transition", table.device)
    assert not potential.requires_grad
    learnt = torch.zeros((), dtype=torch.float64, requires_grad=True)
    assert (
        ts.Scored(lambda i, j: (i + j) * learnt, N, N) if kind == "scored" else potential.map(lambda x: x + learnt)
    ).requires_grad


@pytest.mark.parametrize("kind", ["dense", "factored"])
def test_the_operator_of_one_rank_is_the_potential(kind):
    own = potentials()[kind]
    assert own.in_slices
    pairs, table = sharded(own, Shards([N])), own.block()
    value, index = torch.randn(2, 3, dtype=torch.float64), torch.tensor([[0, 5, 2], [1, 1, 4]])
    torch.testing.assert_close(pairs.block(), table)
    torch.testing.assert_close(pairs.columns(1, 4).block(), table[..., 1:4])
    torch.testing.assert_close(pairs.of_same_states(), table.diagonal(dim1=-2, dim2=-1))
    torch.testing.assert_close(pairs.message(index, value), own.message(index, value))
    torch.testing.assert_close(pairs.transposed().block(), table.mT)
    torch.testing.assert_close(pairs.transposed().of_same_states(), table.diagonal(dim1=-2, dim2=-1))
    torch.testing.assert_close(pairs.transposed().message(index, value), own.transposed().message(index, value))
    torch.testing.assert_close(pairs.transposed().transposed().block(), table)
    x = torch.randn(2, 4, N, dtype=torch.float64)
    torch.testing.assert_close(pairs.into(x, log_sum_exp), own.into(x, log_sum_exp))
