"""Entries of a table at places that are sums."""

import torch

from tailsum.numerics.entries import entries_at


def by_index(table, *parts):
    return table[sum(parts)]


def parts():
    return torch.tensor([0, 4, 4])[:, None] * 2, torch.tensor([1, 0])


def test_values_and_derivatives():
    """Places that occur twice get both gradients; gradients of gradients are right."""
    table = torch.randn(10, dtype=torch.float64, requires_grad=True)
    assert torch.equal(entries_at(table, *parts()), by_index(table, *parts()))
    found = []
    for look_up in (entries_at, by_index):
        (grad,) = torch.autograd.grad(look_up(table, *parts()).exp().square().sum(), table, create_graph=True)
        (second,) = torch.autograd.grad(grad.square().sum(), table)
        found.append((grad, second))
    torch.testing.assert_close(*found)


def test_transforms():
    tables = torch.randn(3, 10, dtype=torch.float64)

    def slopes(look_up):
        return torch.func.vmap(torch.func.jacrev(lambda x: look_up(x, *parts()).square().sum(0)))(tables)

    torch.testing.assert_close(slopes(entries_at), slopes(by_index))


def test_nothing():
    empty = torch.zeros(0, 1, dtype=torch.long)
    assert entries_at(torch.zeros(4, requires_grad=True), empty, empty).shape == (0, 1)
