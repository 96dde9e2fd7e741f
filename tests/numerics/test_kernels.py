"""All declared kernels against their references, on a CPU in Triton's interpreter: values, gradients, second derivatives."""

import math

import pytest
import torch

from harness.declared import all_declared
from harness.poison import poison
from tailsum import kernels

pytest.importorskip("triton")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, in the interpreter: the logarithm of zero

KERNELS = all_declared()
CASES = [
    pytest.param(kernel, sizes, id=f"{kernel.module}-{'-'.join(map(str, sizes.values()))}")
    for kernel in KERNELS
    for sizes in kernel.sizes
]


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch):
    poison(monkeypatch)


def computed(kernel, example, use, dtype):
    """The result, the gradients of a weighted sum of its finite numbers, and those of a sum of these gradients' squares."""
    inputs = [x.to(dtype).requires_grad_(kernel.differentiable) for x in example.inputs]
    with kernels(use):
        result = kernel(*inputs, **example.settings)
        result = result[0] if isinstance(result, tuple) else result  # of several, the first alone has gradients
        if not kernel.differentiable:
            return result, [], []
        finite = torch.where(result > -math.inf, result, 0.0)
        total = (finite * torch.linspace(0.5, 1.5, finite.numel(), dtype=dtype).view_as(finite)).sum()
        first = torch.autograd.grad(total, inputs, retain_graph=True)
        again = torch.autograd.grad(total, inputs, create_graph=True)
        second = torch.autograd.grad(sum((x**2).sum() for x in again), inputs)
    return result.detach(), first, second


@pytest.mark.parametrize("forbidden", [0.0, 0.3])
@pytest.mark.parametrize(("kernel", "sizes"), CASES)
def test_kernel(kernel, sizes, forbidden):
    example = kernel.example(**sizes)
    inputs = [x.masked_fill(torch.rand_like(x) < forbidden, kernel.impossible) for x in example.inputs]
    example = example._replace(inputs=tuple(inputs))
    results = computed(kernel, example, "always", torch.float32), computed(kernel, example, "never", torch.float64)
    limits = (
        kernel.tolerance,
        kernel.tolerance,
        5 * kernel.tolerance,
    )  # second derivatives are in float32 in the reference
    for ours, truth, limit in zip(*results, limits, strict=True):
        torch.testing.assert_close(ours, truth, rtol=limit, atol=limit, check_dtype=False)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.module)
def test_large_example_can_be_made(kernel):
    assert all(x.isfinite().all() for x in kernel.example(**kernel.large).inputs)


def test_a_long_first_call_is_in_the_log(monkeypatch, caplog):
    monkeypatch.setattr("tailsum.numerics.fused.kernel.LONG", 0.0)
    kernel = KERNELS[0]
    example = kernel.example(**kernel.sizes[0])
    with kernels("always"), caplog.at_level("INFO", logger="tailsum"):
        kernel(*example.inputs, **example.settings)
    assert f"{kernel.module}: the first call took" in caplog.text
