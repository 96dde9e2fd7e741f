"""Means of sums of values, and the best score, of every structure against enumeration."""

import math

import pytest
import torch

import tailsum as ts
from harness.agree import close
from harness.derivatives import check
from harness.misuse import fails
from harness.registry import BOTH, FEW, SEQUENCES, possible, small

SOME = [(name, way) for name, way in BOTH if name in FEW]


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def values_of_parts(case, model, *lead):
    """Random values in the shape of the marginals over all states; NaN in the padding."""
    shape = case.marginals(model).shape
    values = torch.randn(*lead, *shape, generator=seeded(2), dtype=torch.float64)
    padding = torch.ones(shape, dtype=torch.bool)
    for b, length in enumerate(case.lengths):
        padding[b][case.within(length)] = False
    return values.masked_fill(padding, math.nan)


def as_marginals(model, values):
    """Values `[*lead, B, *part]` as the model takes them: cases of dependencies have labels, the model perhaps not."""
    shape = model.scattered_marginals().shape
    return values.reshape(-1, *shape) if values.numel() > shape.numel() else values.reshape(shape)


@pytest.mark.parametrize(("name", "way"), BOTH)
def test_values_of_parts(name, way):
    case, model = possible(name, way, forbidden=0.2)
    values = values_of_parts(case, model, 2)
    result = model.expectation(as_marginals(model, values))
    assert result.shape == (2, *case.batch)
    for b, truth in enumerate(case.truths(model)):
        for s in range(2):
            here = values[s, b][case.within(case.lengths[b])]
            close(result.reshape(2, -1)[s, b], truth.expected((truth.parts * here).flatten(1).sum(-1)))


@pytest.mark.parametrize(("name", "way"), BOTH)
def test_values_of_a_second_model(name, way):
    """All scores of the second model count, also of pairs, rules and factors; minus infinity if it forbids possible parts."""
    case, model = possible(name, way, forbidden=0.1)
    for seed, forbidden in ((50, 0.0), (51, 0.2)):
        other = case.sibling(seed=seed, forbidden=forbidden)
        result = model.expectation(other.model())
        assert result.shape == case.batch
        for b, (truth, values) in enumerate(zip(case.truths(model), other.truths(model), strict=True)):
            p = truth.probability
            close(case.flat(result)[b], (p[p > 0] * values.unweighted[p > 0]).sum())


@pytest.mark.parametrize(("name", "way"), [(name, way) for name, way in SOME if name in SEQUENCES])
def test_derivatives(name, way):
    """Derivatives in the scores and in the values, of parts and of a second model."""
    case, model = possible(name, way)
    count, kept = len(case.leaves), model.kept
    values = as_marginals(model, values_of_parts(case, model)).nan_to_num()
    other = case.sibling(seed=50)

    def made(case, *leaves):
        return case.model(*leaves) if kept is None else case.model(*leaves).restrict(kept)

    def run(*leaves):
        model, second = made(case, *leaves[:count]), made(other, *leaves[count:-1])
        return model.expectation(leaves[-1]), model.expectation(second)

    check(run, [*case.leaves, *other.leaves, values])


@pytest.mark.parametrize(("name", "way"), BOTH)
def test_best_score_and_its_gradient(name, way):
    case, plain = possible(name, way, forbidden=0.1)
    leaves = [x.clone().requires_grad_() for x in case.leaves]
    model = case.model(*leaves) if plain.kept is None else case.model(*leaves).restrict(plain.kept)
    result = model.max()
    close(result, model.topk(1).scores[0])
    total = torch.zeros(()).double()
    for b, truth in enumerate(case.truths(model, *leaves)):
        scores = truth.unweighted.masked_fill(~truth.present, -math.inf)
        close(case.flat(result)[b], scores.max())
        total = total + scores.max()
    how = {"materialize_grads": True, "allow_unused": True}
    for one, two in zip(
        torch.autograd.grad(result.sum(), leaves, **how), torch.autograd.grad(total, leaves, **how), strict=True
    ):
        close(one, two)


@pytest.mark.parametrize("name", [name for name in FEW if small(name).can_block])
def test_what_is_impossible(name):
    """Then expectations are zero, as marginals are, and the best score is minus infinity; gradients are finite."""
    case = small(name, seed=5)
    case.block(0)
    leaves = [x.clone().requires_grad_() for x in case.leaves]
    model = case.model(*leaves)
    values = torch.ones(case.marginals(model).shape).double().reshape_as(model.marginals())
    means, best = (
        [model.expectation(values), model.expectation(case.sibling(seed=9, forbidden=0.0).model())],
        model.max(),
    )
    assert best.flatten()[0] == -math.inf
    assert all(x.flatten()[0] == 0 for x in means)
    for value in (*means, best[best > -math.inf], best):
        gradients = torch.autograd.grad(value.sum(), leaves, retain_graph=True, materialize_grads=True)
        assert all(x.isfinite().all() for x in gradients)


def test_the_gradient_is_a_covariance():
    torch.manual_seed(0)
    nodes, values = torch.randn(4, 3).double().requires_grad_(), torch.randn(4, 3).double()
    chain = ts.LinearChain(nodes, torch.randn(3, 3).double())
    (covariance,) = torch.autograd.grad(chain.expectation(values), nodes)
    draws = torch.cartesian_prod(*[torch.arange(3)] * 4)
    p, uses = chain.log_prob(draws).exp().detach(), torch.nn.functional.one_hot(draws, 3).double()
    total = (uses * values).sum((-2, -1))
    mean = p @ total
    close(covariance, torch.einsum("c,c,ctn->tn", p, total - mean, uses))


# What values may look like.


def test_values_without_lengths_have_those_of_the_model():
    torch.manual_seed(0)
    chain = ts.LinearChain(torch.randn(2, 3, 2), torch.randn(2, 2), lengths=[3, 1])
    nodes, pairs = torch.randn(3, 2), torch.randn(2, 2)
    result = chain.expectation(ts.LinearChain(nodes, pairs))
    close(result, chain.expectation(ts.LinearChain(nodes.expand(2, 3, 2), pairs, [3, 1])), rtol=1e-5, atol=1e-5)
    close(result[1], (chain.marginals()[1, 0] * nodes[0]).sum(), rtol=1e-5, atol=1e-5)


def test_several_models_of_values_at_once():
    torch.manual_seed(0)
    chain, nodes = ts.LinearChain(torch.randn(2, 3, 2), torch.randn(2, 2), [3, 2]), torch.randn(5, 1, 3, 2)
    pairs = torch.randn(2, 2)
    result = chain.expectation(ts.LinearChain(nodes, pairs))
    assert result.shape == (5, 2)
    for s in range(5):
        close(result[s], chain.expectation(ts.LinearChain(nodes[s], pairs)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("name", "way"), [(name, way) for name, way in SOME if not name.startswith("ring")])
def test_values_of_a_larger_batch(name, way):
    case, model = possible(name, way)
    other = case.sibling(seed=50).model()
    result = model.expectation(other.in_batch((3, *case.batch)))
    close(result, model.expectation(other).expand(3, *case.batch))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_values_of_another_type(dtype):
    torch.manual_seed(0)
    chain = ts.LinearChain(torch.randn(3, 2), torch.randn(2, 2))
    nodes, pairs = torch.randn(3, 2), torch.randn(2, 2)
    for result, expected in (
        (chain.expectation(nodes.to(dtype)), chain.expectation(nodes)),
        (
            chain.expectation(ts.LinearChain(nodes.to(dtype), pairs.to(dtype))),
            chain.expectation(ts.LinearChain(nodes, pairs)),
        ),
    ):
        assert result.dtype == torch.float32
        close(result, expected, rtol=0.02, atol=0.02)


def test_in_every_mode():
    torch.manual_seed(0)
    chain = ts.LinearChain(torch.randn(2, 3, 4).mT.contiguous().mT, torch.randn(4, 4).requires_grad_())
    values = torch.randn(4, 3).mT  # not contiguous
    expected = chain.expectation(values), chain.expectation(ts.LinearChain(values, torch.ones(4, 4))), chain.max()
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            result = chain.expectation(values), chain.expectation(ts.LinearChain(values, torch.ones(4, 4))), chain.max()
            distinct = chain.sample_distinct(3)
        assert not any(x.requires_grad for x in (*result, distinct.log_probs))
        for one, other in zip(result, expected, strict=True):
            close(one, other.detach(), rtol=1e-5, atol=1e-5)


def test_an_empty_batch():
    chain = ts.LinearChain(torch.zeros(0, 3, 2), torch.zeros(2, 2))
    assert chain.expectation(torch.zeros(3, 2)).shape == chain.max().shape == (0,)
    assert chain.expectation(ts.LinearChain(torch.zeros(3, 2), torch.zeros(2, 2))).shape == (0,)
    result = chain.sample_distinct(3)
    assert result.log_probs.shape[1:] == result.perturbed.shape[1:] == (0,)
    assert result.configurations.shape[1:] == (0, 3)


@pytest.mark.usefixtures("unchecked")
def test_bad_values():
    chain = ts.LinearChain(torch.zeros(2, 3, 4), torch.zeros(4, 4))
    words = (
        "values must be a tensor of the shape of the marginals or a LinearChain whose scores are the values: got list"
    )
    fails(lambda: chain.expectation([1.0]), words)
    fails(lambda: chain.expectation(ts.SpanTree(torch.zeros(3, 3, 4))), "values must be a .* got SpanTree")
    fails(lambda: chain.expectation(torch.zeros(2, 3, 5)), r"values must be \[\*batch, 3, 4\], .*: got \[2, 3, 5\]")
    fails(lambda: chain.expectation(torch.zeros(4)), r"values must be \[\*batch, 3, 4\], .*: got \[4\]")
    fails(lambda: chain.expectation(torch.zeros(5, 3, 4)), r"values has batch shape \[5\], .* the model's \[2\]")
    fails(lambda: chain.expectation(torch.zeros(3, 4).long()), "values must be floating-point: got torch.int64")
    fails(lambda: chain.expectation(torch.full((3, 4), math.nan)), r"values must not hold NaN or \+inf")
    other = ts.LinearChain(torch.zeros(3, 5), torch.zeros(5, 5))
    fails(lambda: chain.expectation(other), "values must have the same positions and states as .*N=4.*: got .*N=5")
    fails(
        lambda: chain.expectation(ts.LinearChain(torch.zeros(7, 3, 4), torch.zeros(4, 4))),
        r"values has batch shape \[7\]",
    )
    fails(
        lambda: chain.expectation(ts.LinearChain(torch.zeros(3, 4), torch.zeros(4, 4), lengths=2)),
        "values must have the same lengths",
    )
    for k in (0, 2.5, None):
        fails(lambda k=k: chain.sample_distinct(k), f"k must be a whole number of at least 1: got {k}")


def test_graphs_with_loops():
    """Expectations are those of the beliefs, and the best score is that of the configuration that `argmax` finds."""
    torch.manual_seed(0)
    graph = ts.PairwiseGraph.grid(3, 3, torch.randn(9, 2), 0.3 * torch.randn(2, 2), method="propagation")
    assert not graph.is_exact
    values, best = torch.randn(9, 2), graph.argmax()
    close(graph.expectation(values), (graph.marginals() * values).sum(), rtol=1e-5, atol=1e-5)
    close(graph.max(), graph.score(best))
    result = graph.sample_distinct(4, generator=seeded(0))
    assert len(result.configurations.unique(dim=0)) == 4
