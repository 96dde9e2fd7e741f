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


def computed(kernel, example, use, dtype, twice=True):
    """The result, the gradients of a weighted sum of its finite numbers, and those of a sum of these gradients' squares."""
    inputs = [x.to(dtype).requires_grad_(kernel.differentiable) for x in example.inputs]
    with kernels(use):
        result = kernel(*inputs, **example.settings)
        if not kernel.differentiable:
            return result, [], []
        result = result[0] if isinstance(result, tuple) else result  # of several, the first alone has gradients
        finite = torch.where(result > -math.inf, result, 0.0)
        total = (
            finite * torch.linspace(0.5, 1.5, finite.numel(), dtype=dtype, device=finite.device).view_as(finite)
        ).sum()
        first = torch.autograd.grad(total, inputs, retain_graph=True)
        if not twice:
            return result.detach(), first, []
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
    limit = kernel.tolerance
    limits = (limit, limit, 5 * limit)  # second derivatives are in float32 in the reference
    for ours, truth, limit in zip(*results, limits, strict=True):
        torch.testing.assert_close(ours, truth, rtol=limit, atol=limit, check_dtype=False)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.module)
def test_on_a_card(kernel, monkeypatch):
    """At the large size, also of kernels that do not run there yet. The mean of signed errors shows a bias, which would add up."""
    monkeypatch.setitem(vars(kernel), "takes", lambda *_, **__: True)
    inputs, settings = kernel.example(**kernel.large)
    settings = {name: x.cuda() if isinstance(x, torch.Tensor) else x for name, x in settings.items()}
    example = type(kernel.example(**kernel.sizes[0]))(tuple(x.cuda() for x in inputs), settings)
    ours = computed(kernel, example, "auto", torch.float32, twice=False)
    truth = computed(kernel, example, "never", torch.float64, twice=False)
    results = [x if isinstance(x, tuple) else (x,) for x in (ours[0], truth[0])]
    for x, y in zip(*results, strict=True):
        if x.is_floating_point():
            error = torch.where(x == y, 0.0, x.double() - y)  # both may be minus infinity
            size = y.masked_fill(y == -math.inf, 0.0).abs().mean()
            assert error.mean().abs() <= kernel.tolerance * (1 + size), (error.mean(), size)
            assert error.abs().max() <= 20 * kernel.tolerance * (1 + size)
        else:
            assert (x == y).double().mean() > 0.99  # the same choices, but for ties by rounding
    for x, y in zip(ours[1], truth[1], strict=True):
        assert torch.linalg.vector_norm(x - y) <= 10 * kernel.tolerance * torch.linalg.vector_norm(y)


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
