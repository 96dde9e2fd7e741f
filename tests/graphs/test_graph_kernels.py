"""Graphs by kernels, in Triton's interpreter: the same messages, iterations and gradients as in plain torch in float64."""

import math

import pytest
import torch

import tailsum as ts
from harness import interpreter
from tailsum.graphs import sweeps

pytest.importorskip("triton")
messages = pytest.importorskip("tailsum.numerics.fused.messages")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, and messages that do not converge

GRID = [(0, 1), (2, 1), (2, 3), (0, 3), (3, 4)]  # a loop, with edges of both directions, and a leaf
TREE = [(0, 1), (2, 1), (1, 3), (4, 3)]
HOW = {"method": "propagation", "tolerance": 1e-3, "iterations": 3}


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch):
    if not torch.cuda.is_available():
        interpreter.install()
    used = []
    sweep = sweeps._Sweep.repeated
    monkeypatch.setattr(sweeps._Sweep, "repeated", lambda *a: used.append(1) or sweep(*a))
    yield
    assert used, "no kernel was used"


def grid(unary, table, **how):
    return ts.PairwiseGraph(unary, GRID, table, **{**HOW, **how})


def tree(unary, table, **how):
    return ts.PairwiseGraph(unary, TREE, table, **how)


def factors(unary, table, **how):
    """Two groups; that of the second has fewer states, as have its variables."""
    small = [row if v < 4 else row[..., :2] for v, row in enumerate(unary.unbind(1))]
    return ts.FactorGraph(
        small,
        [(torch.tensor([(0, 1), (2, 1), (2, 3), (0, 3)]), table), ((3, 4), table[..., :2])],
        **{**HOW, **how},
    )


def results(make, use, dtype, unary, table, **how):
    leaves = [x.to(dtype).requires_grad_() for x in (unary, table)]
    with ts.kernels(use):
        model = make(*leaves, **how)
        value = model.log_partition().sum() + model.marginals().square().sum()
        found = [model.log_partition(), model.marginals(), *torch.autograd.grad(value, leaves)]
        return [x.detach() for x in found], [*model.convergence()[:2], *model.convergence("maximum")[:2]]


CASES = [
    (grid, (2,), (), {}, 0.15),
    pytest.param(grid, (2,), (2, 5), {"damping": 0.3}, 0.0, marks=pytest.mark.slow),
    (grid, (1,), (5,), {"schedule": "flooding", "damping": 0.5}, 0.15),
    (tree, (2,), (), {}, 0.15),
    (factors, (2,), (), {}, 0.0),
]


@pytest.mark.parametrize(("make", "batch", "lead", "how", "forbidden"), CASES)
def test_the_same_by_kernels(make, batch, lead, how, forbidden):
    unary, table = torch.randn(*batch, 5, 3), 0.4 * torch.randn(*lead, 3, 3)
    unary, table = (x.masked_fill(torch.rand_like(x) < forbidden, -math.inf) for x in (unary, table))
    ours = results(make, "always", torch.float32, unary, table, **how)
    truth = results(make, "never", torch.float64, unary, table, **how)
    for found, expected in zip(ours, truth, strict=True):
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4, check_dtype=False)


@pytest.mark.parametrize(("how", "columns"), [({}, 16), ({"schedule": "flooding", "damping": 0.3}, 16), ({}, 32)])
def test_sums_of_scores_of_any_range_by_any_tiles(how, columns, monkeypatch):
    """Terms far below the largest of their column: their exponentials vanish, and their sum does not."""
    tiles = messages.Tiles(messages=2, columns=columns, parts=32 // columns, warps=4, programs=1)
    monkeypatch.setattr(messages.Sweeps, "_forward", lambda *_: tiles)
    unary, table = torch.randn(1, 5, 20), 60 * torch.randn(20, 20)
    table = table.masked_fill(torch.rand_like(table) < 0.3, -math.inf)
    ours, _ = results(grid, "always", torch.float32, unary, table, **{**how, "iterations": 2})
    truth, _ = results(grid, "never", torch.float64, unary, table, **{**how, "iterations": 2})
    for a, b in zip(ours, truth, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4, check_dtype=False)
