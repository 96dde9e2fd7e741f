"""Comparisons with other libraries.

Numbers are double precision throughout, so that libraries agree far below 1e-5; only supar's MatrixTree rounds its
log-partition to single precision. Where a score is minus infinity, torch-struct's and supar's charts have NaN for
marginals or entropies (infinity less infinity): they get FORBIDDEN in its place, whose exponential is zero.
"""

import math

import pytest
import torch

CLOSE = {"rtol": 1e-9, "atol": 1e-9}
SINGLE = {"rtol": 1e-5, "atol": 1e-5}
FORBIDDEN = -1e4
QUIET = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:.*does not define `arg_constraints`"),  # torch-struct's distributions
    pytest.mark.filterwarnings("ignore:Using a non-tuple sequence"),  # supar pads so
]

seeds = pytest.mark.parametrize("seed", range(3))
two_seeds = pytest.mark.parametrize("seed", range(2))  # where the peer is slow
some_forbidden = pytest.mark.parametrize("forbid", [False, True])
roots = pytest.mark.parametrize("multiroot", [False, True])


def draw(seed, *shape, forbid=False, scale=1.0):
    """Scores; with `forbid`, some of them minus infinity."""
    generator = torch.Generator().manual_seed(seed)
    scores = scale * torch.randn(shape, generator=generator, dtype=torch.float64)
    if forbid:
        scores[torch.rand(shape, generator=generator) < 0.2] = -math.inf
    return scores


def allow(*parts):
    """Keep scores that some configuration of every length needs: peers have no sums over nothing."""
    for scores in parts:
        scores.clamp_(min=-5.0)


def given(scores):
    """A peer's own copy, which it may write to and ask gradients of, without infinities."""
    return scores.detach().clamp(min=FORBIDDEN).clone()


def agree(ours, theirs, **how):
    torch.testing.assert_close(ours.detach(), theirs.detach().to(ours.dtype), **(how or CLOSE))


def best_score(model):
    return model.score(model.argmax())


def gradient(value, *inputs):
    """Of a sum in which no two elements of the batch count alike."""
    weight = torch.linspace(0.5, 1.5, value.numel(), dtype=value.dtype)
    return torch.autograd.grad((weight * value).sum(), inputs, retain_graph=True)
