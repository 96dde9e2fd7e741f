"""Charts with a hand-written outside pass: the same sums and gradients as autograd through the inside pass."""

import math

import pytest
import torch

from tailsum.dependencies import projective
from tailsum.numerics.reduce import Draw, highest, log_sum_exp
from tailsum.numerics.two_passes import Passes, by_ends, by_first, filled
from tailsum.trees import span_chart

SHAPES = {span_chart: (4, 1, 4), projective: (4, 2, 1, 4)}
each_chart = pytest.mark.parametrize("room", list(SHAPES), ids=["spans", "arcs"])


def scores(room, blocked=False):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SHAPES[room], dtype=torch.float64, generator=generator)
    return x.masked_fill(torch.rand(x.shape, generator=generator) < 0.4, -math.inf) if blocked else x


def passes(room):
    return Passes(room._inside, room._outside)


@each_chart
def test_derivatives(room):
    def chart(x):
        return filled(x, log_sum_exp, passes(room))

    x = scores(room).requires_grad_()
    assert torch.autograd.gradcheck(chart, x)
    assert torch.autograd.gradgradcheck(chart, x)


@each_chart
@pytest.mark.parametrize("reduce", [log_sum_exp, highest])
@pytest.mark.parametrize("blocked", [False, True])
def test_gradients_of_autograd(room, reduce, blocked):
    x = scores(room, blocked).requires_grad_()
    first = filled(x, reduce, passes(room))
    plain = room._inside(x, reduce)[0]
    torch.testing.assert_close(first, plain)
    weight = torch.where(plain > -math.inf, torch.rand_like(plain), 0.0).detach()
    (gradient,) = torch.autograd.grad(first, x, weight, create_graph=True)
    (expected,) = torch.autograd.grad(plain, x, weight, create_graph=True)
    torch.testing.assert_close(gradient, expected)
    assert gradient.isfinite().all()
    (gradient,) = torch.autograd.grad(gradient.square().sum(), x)
    if reduce is highest:  # the gradient is constant
        assert not expected.requires_grad
        assert not gradient.any()
        return
    torch.testing.assert_close(gradient, torch.autograd.grad(expected.square().sum(), x)[0])
    assert gradient.isfinite().all()


def test_draw_gives_one_tree():
    """A tree of five leaves has nine spans; other seeds give other trees."""
    nodes = torch.zeros(1, 5, 5, 1, requires_grad=True)
    trees = set()
    for seed in range(20):
        reduce = Draw(torch.Generator().manual_seed(seed))
        total = span_chart.span_total(nodes, torch.tensor([5]), reduce)
        assert total.exp().round().item() == 14
        (used,) = torch.autograd.grad(total.sum(), nodes)
        assert used.sum() == 9
        trees.add(tuple(used.flatten().tolist()))
    assert len(trees) > 5


def test_layouts():
    square = torch.arange(2 * 9.0).reshape(2, 3, 3)
    first = by_first(square)
    for i in range(3):
        for k in range(3 - i):
            assert torch.equal(first[k, :, i], square[:, i, i + k])
    torch.testing.assert_close(by_ends(first, 0.0), square.triu())
