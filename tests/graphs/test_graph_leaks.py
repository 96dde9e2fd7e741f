"""Graphs with loops: what an operation has made is freed with its result, without the garbage collector."""

import gc
import warnings
from collections.abc import Iterator

import pytest
import torch

import tailsum as ts
from tailsum.numerics.memory import PeakMemory

USES = {
    "log_partition": lambda m: m.log_partition(),
    "marginals": lambda m: m.marginals(),
    "entropy": lambda m: m.entropy(),
    "pair_marginals": lambda m: m.pair_marginals(),
    "rsample": lambda m: m.rsample().weights,
}


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


WAYS = [
    *((use, "implicit", "propagation") for use in USES),
    ("marginals", "unrolled", "propagation"),
    ("marginals", "implicit", "exact"),
    ("entropy", "implicit", "exact"),
]


@pytest.mark.parametrize(("use", "gradient", "method"), WAYS)
def test_nothing_is_left_of_an_operation(use, gradient, method):
    unary, scores = torch.randn(6, 3, requires_grad=True), torch.randn(3, 3) * 0.3
    model = ts.PairwiseGraph.grid(2, 3, unary, scores, gradient=gradient, method=method, iterations=5, tolerance=1e-3)

    def run(order: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ts.ConvergenceWarning)
            value = USES[use](model).square().sum()
            for _ in range(order):
                (value,) = torch.autograd.grad(value, unary, create_graph=True)
                value = value.square().sum()

    for order in (0, 2):
        with PeakMemory() as memory:
            run(order)
            kept = memory.now  # the model's own tensors
            run(order)
            assert memory.now == kept, f"after derivatives of order {order}"
            assert memory.peak > kept
