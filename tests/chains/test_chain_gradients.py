"""First, second and third derivatives against finite differences, in float64."""

import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import tailsum as ts
from harness.agree import close
from harness.potentials import potential, rand

OPERATIONS = {"log_partition": ts.LinearChain.log_partition, "entropy": ts.LinearChain.entropy}
KINDS = ("dense", "factored", "scored")
LENGTHS = [None, [3, 1]]
SLOW = pytest.mark.slow


@pytest.mark.parametrize("lengths", [pytest.param(None, marks=SLOW, id="full"), pytest.param([3, 1], id="ragged")])
@pytest.mark.parametrize(
    "lead",
    [
        pytest.param((), id="shared"),
        pytest.param((2,), marks=SLOW, id="time"),
        pytest.param((2, 1), marks=SLOW, id="batch"),
        pytest.param((2, 2), id="both"),
    ],
)
@pytest.mark.parametrize("kind", [pytest.param("dense", marks=SLOW), "factored", pytest.param("scored", marks=SLOW)])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_exact(operation, kind, lead, lengths):
    leaves, make = potential(kind, lead)

    def run(nodes, *leaves):
        return OPERATIONS[operation](ts.LinearChain(nodes, make(*leaves), lengths))

    nodes = rand(2, 3, 3)
    assert gradcheck(run, (nodes, *leaves))
    assert gradgradcheck(run, (nodes, *leaves))


@pytest.mark.parametrize("budget", [0, pytest.param(1 << 30, marks=SLOW)], ids=["streamed", "kept"])
@pytest.mark.parametrize("kind", [pytest.param("dense", marks=SLOW), "factored"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_streamed_tiles(operation, kind, budget, monkeypatch):
    monkeypatch.setattr("tailsum.scores.table.tile_rows", lambda *_: 2)  # more tiles than one
    leaves, make = potential(kind, ())

    def run(nodes, *leaves):
        with ts.table_budget(budget):
            return OPERATIONS[operation](ts.LinearChain(nodes, make(*leaves)))

    nodes = rand(2, 3, 3)
    assert gradcheck(run, (nodes, *leaves))
    assert gradgradcheck(run, (nodes, *leaves))


@pytest.mark.parametrize("lengths", LENGTHS, ids=["full", "ragged"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_forbidden_entries(operation, lengths):
    nodes, pairs = torch.zeros(2, 3, 3).double(), torch.zeros(3, 3).double()
    nodes[0, 1, 2] = nodes[1, 0, 0] = -math.inf
    nodes[1, :, 2] = -math.inf
    pairs[0, 1] = pairs[2, 2] = -math.inf
    free = rand(2, 3, 3), rand(3, 3)

    def run(x, y):
        return OPERATIONS[operation](ts.LinearChain(x + nodes, y + pairs, lengths))

    assert gradcheck(run, free)
    assert gradgradcheck(run, free)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_factored_emission_and_sketch(operation):
    context, states, left, right = rand(2, 4, 2), rand(5, 2), rand(5, 2), rand(5, 2)
    chain = ts.LinearChain(ts.Factored(context, states), ts.Factored(left, right))
    small = chain.sketch(3, proposal=ts.Local())
    subset = ts.Subset(small.states, small.log_weight)

    def run(context, states, left, right):
        chain = ts.LinearChain(ts.Factored(context, states), ts.Factored(left, right))
        return OPERATIONS[operation](chain.restrict(subset))

    assert gradcheck(run, (context, states, left, right))
    assert gradgradcheck(run, (context, states, left, right))


@pytest.mark.parametrize("operation", ["log_partition", pytest.param("entropy", marks=SLOW)])
@pytest.mark.parametrize("way", ["gauge", "log space"])
def test_scores_beyond_the_range_of_float64(operation, way, monkeypatch):
    """Both ways, forced: another gauge, and where there is no room for its tables, log space."""
    monkeypatch.setattr("tailsum.chains.ways.products.in_range", lambda *_: False)
    if way == "log space":
        monkeypatch.setattr("tailsum.chains.plan.has_room", lambda *_: False)
    monkeypatch.setattr("tailsum.scores.potential.tile_rows", lambda *_: 2)
    for kind in ("dense", "factored"):
        leaves, make = potential(kind, ())

        def run(nodes, *leaves, make=make):
            return OPERATIONS[operation](ts.LinearChain(nodes, make(*leaves), [3, 1]))

        nodes = rand(2, 3, 3)
        assert gradcheck(run, (nodes, *leaves))
        assert gradgradcheck(run, (nodes, *leaves))


@pytest.mark.parametrize("name", ["marginals", "pair_marginals", "kl", "cross_entropy"])
def test_other_operations(name):
    other = ts.LinearChain(rand(2, 3, 3).detach(), rand(3, 3).detach())

    def run(nodes, left, right):
        chain = ts.LinearChain(nodes, ts.Factored(left, right), [3, 2])
        theirs = ts.LinearChain(other.node_scores(), other.pair_scores(), [3, 2])
        if name in {"kl", "cross_entropy"}:
            return getattr(chain, name)(theirs), getattr(theirs, name)(chain)
        return getattr(chain, name)()

    assert gradcheck(run, (rand(2, 3, 3), rand(3, 2), rand(3, 2)))


@pytest.mark.parametrize("kind", KINDS)
def test_relaxed_samples(kind):
    leaves, make = potential(kind, ())
    mix = torch.randn(3, 2).double()

    def run(nodes, *leaves):
        chain = ts.LinearChain(nodes, make(*leaves), [3, 2])
        sample = chain.rsample(0.8, generator=torch.Generator().manual_seed(1), sample_shape=(2,))
        return sample.mix(mix)

    assert gradcheck(run, (rand(2, 3, 3), *leaves))


def test_impossible_sequences_have_finite_gradients():
    nodes = torch.randn(3, 4, 3).double()
    nodes[1, 2] = -math.inf
    nodes.requires_grad_()
    pairs = rand(3, 3)
    chain = ts.LinearChain(nodes, pairs)
    for value in (chain.log_partition(), chain.entropy(), chain.rsample().weights):
        assert not value.isnan().any()
        gradients = torch.autograd.grad(value[value > -math.inf].sum(), (nodes, pairs))
        assert all(g.isfinite().all() for g in gradients)
        assert gradients[0][1].eq(0).all()


def test_straight_through_has_the_relaxed_gradient():
    nodes, pairs, weight = rand(4, 3), rand(3, 3), torch.randn(4, 3).double()

    def gradient(hard):
        chain = ts.LinearChain(nodes, pairs)
        sample = chain.rsample(0.8, hard=hard, generator=torch.Generator().manual_seed(1))
        return torch.autograd.grad((sample.weights * weight).sum(), (nodes, pairs))

    for soft, straight in zip(gradient(hard=False), gradient(hard=True), strict=True):
        torch.testing.assert_close(soft, straight)


def test_second_derivatives_of_what_is_not_linear_in_the_marginals():
    emission, transition = torch.randn(4, 3, dtype=torch.float64), torch.randn(3, 3, dtype=torch.float64)

    def squared(marginals):
        return torch.autograd.functional.hessian(
            lambda x: marginals(ts.LinearChain(x, transition)).square().sum(), emission
        )

    close(squared(ts.LinearChain.marginals), squared(ts.Structure.marginals))
