"""Gradients that are recorded, and their derivatives: whichever way they are computed, the numbers are the same.

A backward pass that is itself recorded may run other code than a plain one, and it continues from tensors that depend on
one another. So the functions here are not linear in log-partitions and marginals, and the parameters of whole models
depend on one another, as those may that come from one network.
"""

import functools

import pytest
import torch
from torch.func import jvp

from harness.agree import close
from harness.registry import BOTH, FEW, possible
from harness.ways import ONE_WAY

STEP = 1e-5
ROUGH = {"rtol": 1e-6, "atol": 1e-6}
ZEROS = {"allow_unused": True, "materialize_grads": True}
# What `make test` runs: of graphs, which take long, one; of dependency trees also those whose charts have a pass by hand.
QUICK = {x for x in FEW if not x.startswith(("pairs-", "factors-"))}
QUICK |= {"dependencies-arcs", "dependencies-multiroot", "pairs-tree"}


def each(pairs):
    quick = [name in QUICK and (name, way) != ("pairs-tree", "restricted") for name, way in pairs]
    given = [pytest.param(*pair, marks=[] if q else pytest.mark.slow) for pair, q in zip(pairs, quick, strict=True)]
    return pytest.mark.parametrize(("kind", "way"), given)


class Functions:
    """Functions of the leaves of a case, by name, and a direction to differentiate them in."""

    def __init__(self, name, way):
        self.case, model = possible(name, way, ragged=way != "whole")
        self.kept, self.leaves = model.kept, self.case.leaves
        self.towards = self.mixture(*self.leaves, seed=1)

    @staticmethod
    def mixture(*like, seed):
        g = torch.Generator().manual_seed(seed)
        return [torch.randn(x.shape, generator=g, dtype=x.dtype) for x in like]

    def model(self, *leaves):
        model = self.case.model(*leaves)
        return model if self.kept is None else model.restrict(self.kept)

    def __call__(self, *leaves, others=True):
        result = list(leaves[:1])
        for x in leaves[1:]:
            result.append(x + 0.1 * result[-1].sin().mean())
        model, other = self.model(*result), self.model(*(0.7 * x for x in result))
        values = {
            "entropy": [model.entropy()],
            "marginals": [x.sin() for x in (model.marginals(), *(self.case.other_marginals(model) if others else ()))],
            "log-partition": [model.log_partition().square()],
            "divergence": [model.kl(other)],
            "cross-entropy": [other.cross_entropy(model)],
            "expectation": [model.expectation(other)],
        }
        return {name: self.along(x, self.mixture(*x, seed=2)) for name, x in values.items()}

    @staticmethod
    def along(tensors, direction):
        return sum(((x * v).sum() for x, v in zip(tensors, direction, strict=True)), torch.zeros(()).double())

    def slope(self, value, leaves, **how):
        """The derivative of a value in the direction."""
        if not value.requires_grad:
            return torch.zeros_like(value)
        return self.along(torch.autograd.grad(value, leaves, retain_graph=True, **ZEROS, **how), self.towards)

    def slope_at(self, distance):
        """The derivative of the sum of all functions, at a distance in the direction, without recording."""
        leaves = [(x + distance * v).requires_grad_() for x, v in zip(self.leaves, self.towards, strict=True)]
        return self.slope(sum(self(*leaves).values()), leaves)


@each(BOTH)
def test_recorded_derivatives(kind, way):
    functions = Functions(kind, way)
    leaves = [x.clone().requires_grad_() for x in functions.leaves]
    values = functions(*leaves)
    with torch.no_grad():
        close({name: x.detach() for name, x in values.items()}, functions(*functions.leaves))
    plain = {name: functions.slope(value, leaves) for name, value in values.items()}
    recorded = {name: functions.slope(value, leaves, create_graph=True) for name, value in values.items()}
    close({name: x.detach() for name, x in recorded.items()}, plain)
    first = sum(recorded.values())
    expected = (functions.slope_at(STEP) - functions.slope_at(-STEP)) / (2 * STEP)
    for create_graph in (False, True):
        second = functions.slope(first, leaves, create_graph=create_graph)
        torch.testing.assert_close(second.detach(), expected, **ROUGH)


@each(ONE_WAY)
def test_forward_derivatives(kind, way):
    """Those of `torch.func.jvp`, by two backward passes, are the gradients in a direction."""
    functions = Functions(kind, way)
    run = functools.partial(functions, others=False)  # not all of those run inside transforms
    leaves = [x.clone().requires_grad_() for x in functions.leaves]
    values = run(*leaves)
    expected = {name: functions.slope(value, leaves) for name, value in values.items()}
    result, slopes = jvp(run, tuple(functions.leaves), tuple(functions.towards))
    close(result, {name: value.detach() for name, value in values.items()})
    close(slopes, expected)
