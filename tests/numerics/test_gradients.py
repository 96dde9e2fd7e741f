"""Functions with hand-written backward passes, of tensors that depend on one another: derivatives of any order agree with torch."""

import pytest
import torch

from tailsum.chains.chain_marginals import chain_marginals, state_chances
from tailsum.numerics.fixed_point import Iteration, fixed_point, stationary
from tailsum.numerics.gradients import gradients, tracked
from tailsum.numerics.reduce import log_sum_exp
from tailsum.numerics.stream import Parts, streamed
from tailsum.numerics.two_passes import Passes, filled
from tailsum.structure.transformed import Function, transformed
from tailsum.trees import span_chart


def both(a, b):
    return (a * b.exp()).sin()


class _ByReference(torch.autograd.Function):
    """Like a kernel, its backward pass goes through the reference."""

    @staticmethod
    def forward(ctx, *inputs):
        ctx.save_for_backward(*inputs)
        return both(*inputs)

    @staticmethod
    def backward(ctx, *grads):
        return tuple(gradients(lambda x: both(*x), ctx.saved_tensors, ctx.needs_input_grad, grads[0]))


class _Both(Function):
    def __call__(self, *inputs):
        return [both(*inputs)]


def in_tiles(a, b):
    result = streamed(lambda parts: Parts((both(*parts.rows),), (both(*parts.rows).sum(-2),)), Parts((a, b)), 2, 1)
    return result.rows[0] + result.whole[0]


def with_whole(a, b):
    """The second tensor is passed whole to every tile."""
    return streamed(lambda parts: Parts((both(parts.rows[0], parts.whole[0][:1]),)), Parts((a,), (b,)), 2, 1).rows[0]


def converged(a, b):
    iterate = Iteration(20, 1e-12, lambda *_: None)
    return fixed_point(
        lambda params: lambda z: (0.1 * params[0] * z + params[1]).tanh(), iterate, 0 * a.detach(), (a, b)
    )


def iterated(a, b):
    z = torch.zeros_like(a)
    for _ in range(20):
        z = (0.1 * a * z + b).tanh()
    return z


def at_minimum(a, b):
    return stationary(lambda z, params: (z - params[0] * params[1]).square() + params[0].sin(), a * b, (a, b))


def marginals(a, b):
    return chain_marginals(
        lambda tensors: state_chances(lambda x: (x[0] + x[1]).logsumexp(-1), tensors),
        lambda x, values: ((x[0] + x[1]).softmax(-1) * values).sum(-1),
        (a, b),
    )


def triangle(a, b):
    """Scores of the spans of three words, of one sentence."""
    return torch.cat((a + b, (a * b)[:, :1]), -1)[:, None]


PASSES = Passes(span_chart._inside, span_chart._outside)
PAIRS = {
    "kernel": (_ByReference.apply, both),
    "transformed": (lambda a, b: transformed(_Both(), (a, b))[0], both),
    "streamed, rows": (in_tiles, lambda a, b: both(a, b) + both(a, b).sum(-2)),
    "streamed, whole": (with_whole, lambda a, b: both(a, b[:1])),
    "fixed point": (converged, iterated),
    "stationary": (at_minimum, lambda a, b: a.sin()),
    "marginals": (marginals, lambda a, b: (a + b).softmax(-1)),
    "chart": (
        lambda a, b: filled(triangle(a, b), log_sum_exp, PASSES),
        lambda a, b: span_chart._inside(triangle(a, b), log_sum_exp)[0],
    ),
}


def derivatives(function, recorded):
    """The derivatives of a function of a leaf: the first with or without a graph, then up to the third."""
    leaf = torch.tensor([[0.3, -0.8], [1.1, 0.4], [-0.5, 0.9]]).double().requires_grad_()
    a = leaf.sin()
    value = function(a, a * leaf.cos()).square().sum()
    result = []
    for order in range(3 if recorded else 1):
        (gradient,) = torch.autograd.grad(value, leaf, create_graph=recorded)
        result.append(gradient.detach())
        value = (gradient * torch.randn(3, 2, generator=torch.Generator().manual_seed(order)).double()).sum()
    return result


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_of_tensors_that_depend_on_one_another(pair, recorded):
    function, plain = pair
    torch.testing.assert_close(derivatives(function, recorded), derivatives(plain, recorded), rtol=1e-8, atol=1e-8)


def test_what_is_not_wanted_is_held_fixed():
    a = torch.ones(2, requires_grad=True)
    b = a * 3
    result = gradients(lambda x: x[0] * x[1], (a, b), (True, False), torch.ones(2))
    assert result[1] is None
    assert result[0].tolist() == [3, 3]
    assert torch.autograd.grad(result[0].sum(), a)[0].tolist() == [3, 3]


def test_tracked():
    x = torch.ones(2, requires_grad=True)
    joined, alone, held = tracked(x, True), tracked(x, False), tracked(x, False, False)
    assert joined is not x
    assert joined.grad_fn is not None
    assert alone.is_leaf
    assert alone.requires_grad
    assert not held.requires_grad
    assert tracked(torch.ones(2), True).requires_grad


@pytest.mark.parametrize("recording", [False, True])
def test_gradients_of_what_depends_on_no_input_are_zero(recording):
    x = torch.randn(2, requires_grad=True)
    with torch.set_grad_enabled(recording):
        assert torch.equal(gradients(lambda _: torch.ones(()), [x], [True])[0], torch.zeros(2))
