"""Leaves of small potentials, for finite differences."""

import torch

import tailsum as ts


def rand(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def potential(kind, lead):
    """Leaves and the function that makes a potential of them."""
    if kind == "dense":
        return (rand(*lead, 3, 3),), ts.Dense
    if kind == "factored":
        return (rand(*lead, 3, 2), rand(*lead, 3, 2)), ts.Factored
    leaves = (rand(3, 2), rand(3, 2), rand(*lead, 2))

    def scored(left, right, context):
        return ts.Scored(lambda i, j, c: torch.tanh(left[i] * right[j] + c).sum(-1), 3, 3, context)

    return leaves, scored
