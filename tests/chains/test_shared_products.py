"""Messages by products with one table: the values and gradients of messages apart, and none where they underflow."""

import pytest
import torch

import tailsum as ts
from tailsum.chains import chain_sweep, refine
from tailsum.chains.expected_message import expected_message
from tailsum.chains.shared_products import SharedProducts, shared_products

N, K, BATCH = 60, 7, 3


def case(scale=1.0, dtype=torch.float64):
    torch.manual_seed(0)
    pairs = ts.Factored(*(scale * torch.randn(2, N, 5, dtype=dtype)))
    index = torch.stack([torch.randperm(N)[:K] for _ in range(BATCH)])
    index[0, 1] = index[0, 0]  # drawn twice
    value, carried = torch.randn(2, BATCH, K, dtype=dtype)
    return pairs, index, value, carried


def test_sums_are_those_of_messages():
    pairs, index, value, _ = case()
    found = SharedProducts(pairs.block()).sums(index, value)
    torch.testing.assert_close(found, pairs.message(index, value))


def test_means_and_gradients_are_those_of_messages_apart():
    pairs, index, value, carried = case()
    inputs = [x.requires_grad_() for x in (pairs.left, pairs.right, value, carried)]
    weight = torch.randn(2, BATCH, N, dtype=torch.float64)

    def gradients(found):
        total = sum((w * x.sin()).sum() for w, x in zip(weight, found, strict=True))
        return torch.autograd.grad(total, inputs)

    rows = ts.Factored(pairs.left[index], pairs.right[None])
    apart = expected_message(rows, value, carried)
    together = SharedProducts(pairs.block(), means=True).carried(index, value, carried)
    for one, other in zip(apart, together, strict=True):
        torch.testing.assert_close(one, other)
    for one, other in zip(gradients(apart), gradients(together), strict=True):
        torch.testing.assert_close(one, other)


def test_what_may_have_underflowed_is_not_given():
    pairs, index, value, carried = case(scale=12.0, dtype=torch.float32)
    products = SharedProducts(pairs.block(), means=True)
    assert products.sums(index, value) is None
    assert products.carried(index, value, carried) is None


def test_only_where_they_are_faster():
    pairs, *_ = case()
    assert shared_products(pairs, K, batch=64, steps=10) is not None
    assert shared_products(pairs, 1, batch=1, steps=1) is None  # one row of the table costs less than the table
    assert shared_products(ts.Dense(pairs.block()), K, 64, 10) is None  # may forbid
    by_step = pairs.map(lambda x: x.expand(9, -1, -1))
    assert shared_products(by_step, K, 64, 10) is None
    with ts.table_budget(1000):
        assert shared_products(pairs, K, 64, 10) is None


@pytest.mark.parametrize("scale", [0.5, 6.0])
def test_sketches_are_the_same_with_and_without(monkeypatch, scale):
    """Also with scores so large that every product is given up."""
    torch.manual_seed(1)
    states, emission = scale * torch.randn(N, 4), torch.randn(20, 6, N)
    states.requires_grad_()

    def entropy():
        chain = ts.LinearChain(emission, ts.Factored(states, states), lengths=[6] * 10 + [3] * 10)
        proposal = ts.Lookahead(9, neighbours=4)
        small = chain.sketch(8, proposal=proposal, generator=torch.Generator().manual_seed(0))
        found = small.refine().entropy()
        return small.states, found.detach(), *torch.autograd.grad(found.sum(), states)

    fast = entropy()
    for module in (chain_sweep, refine):
        monkeypatch.setattr(module, "shared_products", lambda *_, **__: None)
    slow = entropy()
    assert torch.equal(fast[0], slow[0])
    for one, other in zip(fast[1:], slow[1:], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
