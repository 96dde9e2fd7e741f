"""Products in log space: derivatives where scaled sums are far below one."""

import pytest
import torch
from torch.autograd.functional import hessian

from tailsum.numerics.reduce import LogProduct, highest, log_sum_exp, suited


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

    result, expected = hessian(product, (x, scores)), hessian(in_log_space, (x.double(), scores.double()))
    for one, other in zip(result, expected, strict=True):
        for a, b in zip(one, other, strict=True):
            torch.testing.assert_close(a.double(), b.to(a.dtype).double(), rtol=1e-5, atol=1e-5)


def test_finite_scores_have_a_faster_sum_with_the_same_derivatives():
    scores = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    fast = suited(log_sum_exp, scores)
    assert fast is torch.logsumexp
    assert suited(highest, scores) is highest
    blocked = scores.detach().clone()
    blocked[0] = -torch.inf
    assert suited(log_sum_exp, blocked) is log_sum_exp
    torch.testing.assert_close(fast(scores, -1), log_sum_exp(scores, -1))
    assert torch.autograd.gradgradcheck(lambda x: fast(x, -1), scores)
