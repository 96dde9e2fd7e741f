"""Products in log space: derivatives where scaled sums are far below one."""

import pytest
import torch
from torch.autograd.functional import hessian

from tailsum.numerics.reduce import LogProduct, log_sum_exp


@pytest.mark.parametrize(("dtype", "depth"), [(torch.float32, 50.0), (torch.float32, 65.0), (torch.float64, 500.0)])
def test_second_derivatives_where_the_inverse_square_overflows(dtype, depth):
    """The largest entry of each side meets the smallest of the other, so that the sum is about `exp(-depth)`."""
    scores = torch.tensor([[-depth, 0.0], [0.5, -depth]], dtype=dtype)
    x = torch.tensor([[0.0, -depth], [-depth, 0.25]], dtype=dtype)
    weight = torch.tensor([[1.0, 2.0], [-1.0, 3.0]], dtype=dtype)

    def product(x, scores):
        return (weight * LogProduct(scores)(x)).sum()

    def in_log_space(x, scores):
        return (weight * log_sum_exp(x[:, :, None] + scores, 1)).sum()

    found, expected = hessian(product, (x, scores)), hessian(in_log_space, (x.double(), scores.double()))
    for one, other in zip(found, expected, strict=True):
        for a, b in zip(one, other, strict=True):
            torch.testing.assert_close(a.double(), b.to(a.dtype).double(), rtol=1e-5, atol=1e-5)
