"""What chains hold, and for how long: counted tensor by tensor."""

import pytest
import torch

import tailsum as ts
from tailsum.numerics.memory import PeakMemory


def leaves(n, batch, length, size):
    return [torch.randn(*shape, size).mul_(0.3).requires_grad_() for shape in ((batch, length), (n,), (n,))]


@pytest.mark.parametrize(
    "operation", [pytest.param(ts.LinearChain.log_partition, marks=pytest.mark.slow), ts.LinearChain.entropy]
)
def test_a_sketch_keeps_and_makes_nothing_of_size_batch_by_length_by_states(operation):
    batch, length, size = 6, 10, 4
    kept = []
    for n in (5_000, 20_000):
        context, left, right = leaves(n, batch, length, size)
        chain = ts.LinearChain(ts.Factored(context, right), ts.Factored(left, right))
        small = chain.sketch(20, proposal=ts.Lookahead(8))
        with PeakMemory() as memory:
            value = operation(small).sum()
            kept.append(memory.now)
            value.backward()
    assert kept[0] == kept[1]  # what waits for the backward pass does not grow with N at all
    assert memory.largest == 4 * n * size  # the gradient of an embedding, and that is a fifteenth of [B, T, N]
    assert memory.peak < 4 * batch * length * n


def test_exact_inference_never_builds_a_table_for_every_step():
    n, batch, length = 300, 4, 20
    context, left, right = leaves(n, batch, length, 8)
    with PeakMemory() as memory:
        chain = ts.LinearChain(ts.Factored(context, right), ts.Factored(left, right))
        chain.log_partition().sum().backward()
    assert memory.largest <= 4 * n * n
    assert memory.peak < 4 * (2 * n * n + 20 * batch * length * n)


@pytest.mark.parametrize("operation", [ts.LinearChain.log_partition, ts.LinearChain.entropy])
def test_streamed_factors_never_build_the_table(operation, monkeypatch):
    monkeypatch.setattr("tailsum.numerics.tiles._TILE", {"cpu": 1 << 14})
    n = 1000
    context, left, right = leaves(n, 2, 4, 8)
    with PeakMemory() as memory, ts.table_budget(0):
        operation(ts.LinearChain(ts.Factored(context, right), ts.Factored(left, right))).sum().backward()
    assert memory.largest <= 4 * 16 * n  # the smallest tile has 16 rows


def test_lengths_do_not_spread_a_shared_table_over_the_batch():
    n, batch, length = 50, 30, 4
    nodes, pairs = torch.randn(batch, length, n), torch.randn(length - 1, n, n)
    with PeakMemory() as memory:
        ts.LinearChain(nodes, pairs, [length] * (batch - 1) + [2]).log_partition()
    assert memory.largest <= 4 * max(batch * length * n, (length - 1) * n * n)


@pytest.mark.parametrize(("n", "length", "limit"), [(8, 20_000, 4), (50, 400, 1.5), (300, 20, 1.5)])
def test_pair_marginals_hold_little_more_than_they_return(n, length, limit):
    chain = ts.LinearChain(torch.randn(length, n), torch.randn(n, n))
    with PeakMemory() as memory:
        result = chain.pair_marginals()
    assert memory.peak <= limit * result.numel() * result.element_size() + (1 << 22)
