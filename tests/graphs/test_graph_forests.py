"""Graphs without loops: what they have beside what all structures have."""

import math

import pytest
import torch

import tailsum as ts
from harness.agree import close
from harness.graphs import GraphTruth
from harness.registry import SMALL, possible, small
from tailsum.numerics.noise import gumbel

FORESTS = [name for name in SMALL if name.startswith(("pairs-", "factors-"))]
PASSED = [
    {"schedule": schedule, "gradient": gradient}
    for schedule in ("sweep", "flooding")
    for gradient in ("implicit", "unrolled")
]


@pytest.mark.parametrize("schedule", ["sweep", "flooding"])
@pytest.mark.parametrize("gradient", ["implicit", "unrolled"])
@pytest.mark.parametrize("name", ["pairs-tree", "factors-ternary"])
def test_marginals_are_the_gradient_of_the_log_partition(name, schedule, gradient):
    case = small(name, seed=3, forbidden=0.1, how={"schedule": schedule, "gradient": gradient})
    unary, *rest = case.leaves
    unary.requires_grad_()
    model = case.model(unary, *rest)
    (slope,) = torch.autograd.grad(model.log_partition().sum(), unary)
    close(slope, model.marginals().detach())


def noisy_truths(case, model, seed, temperature):
    """The truth under scores with the noise that a sample with this seed gets, divided by the temperature."""
    unary = model.node_scores() + model.log_weight
    noisy = gumbel(unary.expand(3, *unary.shape), torch.Generator().manual_seed(seed)) / temperature
    factors = [
        (variables, case.of_batch(x, *x.shape[x.dim() - len(variables) :]) / temperature)
        for variables, x in case.factor_tables(case.marked()[case.n_unary :])
        if len(variables) > 1  # the others are in the scores of the variables
    ]
    return {
        (s, b): GraphTruth(noisy[s, b], [(variables, x[b]) for variables, x in factors])
        for s in range(3)
        for b in range(2)
    }


@pytest.mark.parametrize("name", FORESTS)
def test_relaxed_samples_are_marginals_of_noisy_scores(name):
    case, model = possible(name, forbidden=0.1)
    sample = model.rsample(0.7, generator=torch.Generator().manual_seed(5), sample_shape=(3,))
    rows = case.rows(sample.hard)
    assert torch.equal(sample.states, model.states)
    for (s, b), truth in noisy_truths(case, model, 5, 0.7).items():
        close(sample.weights[s, b], truth.marginals)
        assert truth.index_of(case.read(rows[s, b], b)) == truth.scores.argmax()


IMPOSSIBLE = [
    *(("pairs-tree", how) for how in PASSED),
    *(
        (name, PASSED[0])
        for name in ("pairs-no edges", "pairs-star, scored", "pairs-two components, factored", "factors-quaternary")
    ),
    ("factors-ternary", PASSED[3]),
]


@pytest.mark.parametrize(("name", "how"), IMPOSSIBLE)
def test_one_impossible_graph_of_two(name, how):
    case = small(name, seed=3, how=how)
    alone = small(name, seed=3, how=how).model()
    case.block(1)
    leaves = [x.requires_grad_() for x in case.leaves]
    model = case.model(*leaves)
    log_partition, entropy, marginals = model.log_partition(), model.entropy(), model.marginals()
    assert log_partition[1] == entropy[1] == -math.inf
    assert marginals[1].eq(0).all()
    for variables, x in case.factor_beliefs(model):
        assert x[1].eq(0).all(), variables
    assert model.argmax()[1].eq(-1).all()
    assert model.sample((3,))[:, 1].eq(-1).all()
    top = model.topk(2)
    assert top.configurations[:, 1].eq(-1).all()
    assert top.scores[:, 1].eq(-math.inf).all()
    relaxed = model.rsample(0.5)
    assert relaxed.hard[1].eq(-1).all()
    assert relaxed.weights[1].eq(0).all()
    assert model.kl(model)[1] == math.inf
    assert not model.cross_entropy(model).isnan().any()
    for mine, other in (
        (log_partition, alone.log_partition()),
        (entropy, alone.entropy()),
        (marginals, alone.marginals()),
    ):
        close(mine[0], other[0])
    for x in (log_partition, entropy, marginals.square(), relaxed.weights.square()):
        gradients = torch.autograd.grad(
            x.sum(), leaves, allow_unused=True, materialize_grads=True, retain_graph=True, create_graph=True
        )
        assert not any(g.isnan().any() for g in gradients)
        assert gradients[0][1].eq(0).all()
        twice = [g.square().sum() for g in gradients if g.requires_grad]
        if twice:
            again = torch.autograd.grad(
                sum(twice), leaves, allow_unused=True, materialize_grads=True, retain_graph=True
            )
            assert not any(g.isnan().any() for g in again)


@pytest.mark.parametrize("schedule", ["sweep", "flooding"])
def test_a_graph_impossible_by_its_pairs_alone(schedule):
    """Every state is allowed, every pair of some edge too, but no configuration: 0 - 1 - 2 must be equal, and are not."""
    equal = torch.eye(3).double().log()
    unary = torch.zeros(3, 3).double()
    unary[0, 0] = unary[2, 1] = unary[2, 2] = -math.inf
    unary[1, 1] = unary[1, 2] = -math.inf
    unary.requires_grad_()
    model = ts.PairwiseGraph(unary, [(1, 0), (1, 2)], equal, schedule=schedule)
    assert model.log_partition() == model.entropy() == -math.inf
    assert model.marginals().eq(0).all()
    assert model.pair_marginals().eq(0).all()
    assert model.argmax().tolist() == model.sample().tolist() == [-1, -1, -1]
    (gradient,) = torch.autograd.grad(model.log_partition() + model.entropy(), unary)
    assert gradient.eq(0).all()


def test_parameters_in_inference_mode():
    """Scores of pairs that are made of parameters and of what a network gives."""
    net, states = torch.nn.Linear(2, 3), torch.nn.Parameter(torch.randn(4, 3))
    given, nodes = torch.randn(3, 2), torch.randn(4, 4)

    def results():
        pairs = ts.Scored(lambda i, j, context: (states[i] * states[j] * context).sum(-1), 4, 4, net(given))
        model = ts.PairwiseGraph(nodes, [(0, 1), (1, 2), (2, 3)], pairs)
        g = torch.Generator().manual_seed(0)
        return model.marginals(), model.entropy(), model.rsample(generator=g).weights, model.cross_entropy(model)

    with torch.no_grad():
        expected = results()
    with torch.inference_mode():
        found = results()
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)
