"""Second derivatives where scores lie far apart: at low temperatures, or because of their scale.

Scaled sums are then far below one, and an inverse square of them beyond the range of numbers.
"""

import pytest
import torch

from harness.agree import close
from harness.registry import FEW, SMALL, small


def gradients(values, leaves):
    total = sum((x * torch.linspace(-1, 1, x.numel()).to(x).reshape(x.shape)).sum() for x in values)
    return torch.autograd.grad(total, leaves, materialize_grads=True) if total.requires_grad else []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", SMALL)
def test_gradients_of_relaxed_samples_are_finite(name, dtype):
    for seed in range(2):
        case = small(name, seed=seed)
        leaves = [x.to(dtype).requires_grad_() for x in case.leaves]
        for temperature in (0.2, 0.05) if dtype == torch.float32 else (0.02, 0.006):
            model = case.model(*leaves)
            sample = model.rsample(temperature, generator=torch.Generator().manual_seed(seed))
            assert all(x.isfinite().all() for x in gradients(case.weights(model, sample), leaves)), (seed, temperature)


@pytest.mark.parametrize("name", FEW)
def test_gradients_of_marginals_in_float32(name):
    for scale in (2.0, 4.0) if any(small(name).factors) else (5.0, 20.0):  # a score is a product of factors
        for seed in range(2):
            case = small(name, seed=seed, scale=scale)
            other = case.sibling(seed=seed + 50)
            result = []
            for dtype in (torch.float32, torch.float64):
                leaves = [x.detach().float().to(dtype).requires_grad_() for x in case.leaves]
                model, theirs = case.model(*leaves), other.model(*(x.float().to(dtype) for x in other.leaves))
                result.append(gradients([model.marginals(), model.kl(theirs) / scale], leaves))
            for single, double in zip(*result, strict=True):
                close(single.double(), double, rtol=1e-3, atol=1e-3 * scale)
