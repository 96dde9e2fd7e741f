"""Graphs with loops: whether messages converge, what is said of it, and what is kept for the backward pass."""

import itertools
import warnings

import pytest
import torch

import tailsum as ts
from harness.loopy import ALL, COMPLETE, EXACTLY, GRID, SQUARE, TRIANGLE, LoopyCase, close

SCHEDULES = ["sweep", "flooding"]
FRUSTRATED = {
    "unary": torch.tensor([[0.3, 0.0], [0.0, 0.2], [0.1, 0.0], [0.0, 0.4]]).double(),
    "edges": COMPLETE,
    "pairwise": torch.tensor([[-4.0, 4.0], [4.0, -4.0]]).double(),
    "method": "propagation",
}


@pytest.mark.parametrize(
    "use",
    [
        lambda m: m.log_partition(),
        lambda m: m.marginals(),
        lambda m: m.pair_marginals(),
        lambda m: m.sample((2,)),
    ],
)
def test_what_does_not_converge_warns(use):
    model = ts.PairwiseGraph(**FRUSTRATED, iterations=7)
    words = r"messages .* did not converge: after 7 iterations .* 1 of 1 instances .* damping .* more iterations"
    with pytest.warns(ts.ConvergenceWarning, match=words):
        use(model)


def test_the_warning_says_what_to_try_beyond_the_damping_that_there_is():
    for damping, advice in ((0.0, "Try damping 0.5, more iterations"), (0.9, r"Try more damping than 0.9 \(0.95\)")):
        model = ts.PairwiseGraph(**FRUSTRATED, iterations=7, damping=damping, tolerance=0.0)
        with pytest.warns(ts.ConvergenceWarning, match=advice):
            model.log_partition()


def test_sum_and_maximum_are_told_apart():
    """At this strength the sum has converged, and the maximum has not."""
    weak = FRUSTRATED | {"pairwise": FRUSTRATED["pairwise"] / 16}
    model = ts.PairwiseGraph(**weak, iterations=100)
    assert model.convergence().converged
    assert model.convergence("sum").converged
    assert not model.convergence("maximum").converged
    with pytest.warns(ts.ConvergenceWarning, match=r"messages of the maximum .* \(see convergence\('maximum'\)\)"):
        model.argmax()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.log_partition()
    strong = ts.PairwiseGraph(**FRUSTRATED, iterations=7)
    with pytest.warns(ts.ConvergenceWarning, match="messages of the sum"):
        strong.log_partition()
    with pytest.raises(ValueError, match='of must be "sum" or "maximum": got \'mean\''):
        model.convergence("mean")


def test_convergence_does_not_warn():
    model = ts.PairwiseGraph(**FRUSTRATED, iterations=7)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = model.convergence()
    assert isinstance(found, ts.Convergence)
    assert not found.converged
    assert found.change > model.tolerance
    assert found.iterations == 7


def test_the_warning_is_a_runtime_warning():
    assert issubclass(ts.ConvergenceWarning, RuntimeWarning)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_damping_helps_where_it_does_not_converge(schedule):
    unary = torch.tensor([[0.3, 0.0], [0.0, 0.2], [0.1, 0.0], [0.0, 0.4], [0.3, 0.1]]).double()
    edges, pairwise = list(itertools.combinations(range(5), 2)), FRUSTRATED["pairwise"] / 4
    plain, damped = (
        ts.PairwiseGraph(
            unary, edges, pairwise, iterations=300, schedule=schedule, damping=damping, method="propagation"
        ).convergence()
        for damping in (0.0, 0.5)
    )
    assert not plain.converged
    assert damped.converged


@pytest.mark.parametrize(("damping", "schedule"), [(0.5, "sweep"), (0.9, "sweep"), (0.97, "flooding")])
def test_damped_messages_have_converged_only_where_undamped_ones_would_have(damping, schedule):
    """A damped step is short, however far the fixed point is."""
    case = LoopyCase("triangle", 0.8, seed=1)
    how = {"iterations": 20_000, "tolerance": 1e-5, "schedule": schedule, "damping": damping}
    how["method"] = "propagation"
    leaf, tables = torch.tensor(case.unary).requires_grad_(), torch.stack([torch.tensor(x) for x in case.tables])
    damped, exact = (ts.PairwiseGraph(leaf, TRIANGLE, tables, **options) for options in (how, EXACTLY))
    assert damped.convergence().change <= 1e-5
    close(damped.marginals(), exact.marginals().detach(), rtol=0, atol=1e-5)
    found, expected = (torch.autograd.grad(m.marginals().square().sum(), leaf)[0] for m in (damped, exact))
    close(found, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("damping", [0.0, 0.5, 0.99])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_forest_by_flooding_is_exact_whatever_the_damping_and_the_iterations(damping, dtype):
    unary, pairwise = torch.randn(2, 30, 3).to(dtype).requires_grad_(), torch.randn(3, 3).to(dtype)
    edges = [(i, i + 1) for i in range(29)]
    flooding = ts.PairwiseGraph(unary, edges, pairwise, schedule="flooding", damping=damping, iterations=3)
    sweep = ts.PairwiseGraph(unary, edges, pairwise)
    assert flooding.convergence().converged.all()
    precision = {"rtol": 0, "atol": 64 * torch.finfo(dtype).eps}
    found = [(m.marginals(), *torch.autograd.grad(m.entropy().sum(), unary)) for m in (flooding, sweep)]
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, **precision)


def test_the_warning_counts_the_instances():
    pairwise = FRUSTRATED["pairwise"] * torch.tensor([0.0, 1.0, 0.01, 1.0])[:, None, None, None]
    model = ts.PairwiseGraph(FRUSTRATED["unary"], COMPLETE, pairwise, iterations=20, method="propagation")
    assert model.convergence().converged.tolist() == [True, False, True, False]
    with pytest.warns(ts.ConvergenceWarning, match="2 of 4 instances"):
        model.log_partition()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_convergence_is_told_for_every_instance(schedule):
    strength = torch.tensor([[0.0, 0.05], [0.2, 0.9]]).double()
    pairwise = strength[..., None, None, None] * torch.tensor(LoopyCase("grid", 1.0).tables[0])
    unary = torch.tensor(LoopyCase("grid").unary)
    how = {"tolerance": 1e-9, "schedule": schedule, "method": "propagation"}
    found = ts.PairwiseGraph(unary, GRID, pairwise, **how).convergence()
    assert found.converged.all()
    assert (found.change <= 1e-9).all()
    assert found.change.dtype == torch.float64
    assert found.iterations.dtype == torch.long
    assert found.iterations[0, 0] == 1  # nothing couples the variables: all messages are zero from the start
    assert found.iterations.flatten().diff().ge(0).all()
    assert found.iterations[0, 0] < found.iterations[0, 1] < found.iterations[1, 1]
    for place in itertools.product(range(2), repeat=2):
        alone = ts.PairwiseGraph(unary, GRID, pairwise[place], **how).convergence()
        assert alone.iterations == found.iterations[place]
        close(alone.change, found.change[place], rtol=1e-3, atol=1e-15)


def test_the_change_is_that_of_the_last_iteration():
    """It gets smaller with every iteration, and none is counted that was not made."""
    case = LoopyCase("grid", 0.5)
    found = [case.model(iterations=count, tolerance=1e-9).convergence() for count in range(2, 30)]
    changes = [x.change.item() for x in found if not x.converged]
    assert len(changes) > 3
    assert all(after < before for before, after in itertools.pairwise(changes))
    assert [x.iterations.item() for x in found[: len(changes)]] == list(range(2, 2 + len(changes)))
    assert all(x.converged for x in found[len(changes) :])
    assert len({x.iterations.item() for x in found[len(changes) :]}) == 1


def test_a_forest_converges_at_once():
    found = ts.PairwiseGraph(torch.randn(2, 3, 4).double(), [(0, 1), (1, 2)], torch.randn(4, 4).double()).convergence()
    assert found.iterations.tolist() == [1, 1]
    assert found.change.tolist() == [0.0, 0.0]
    assert found.converged.all()


def test_variables_without_factors_converge_at_once():
    unary = torch.randn(2, 3, 4).double()
    for model in (ts.PairwiseGraph(unary, [], torch.zeros(4, 4).double()), ts.FactorGraph(unary, [])):
        found = model.convergence()
        assert found.iterations.shape == found.change.shape == (2,)
        assert found.change.dtype == torch.float64
        assert found.converged.all()
        close(model.log_partition(), unary.logsumexp(-1).sum(-1))


def test_flooding_a_forest_takes_as_many_iterations_as_it_is_long():
    how = {"schedule": "flooding", "tolerance": 1e-12}
    path = ts.PairwiseGraph(
        torch.randn(6, 3).double(), [(i, i + 1) for i in range(5)], torch.randn(3, 3).double(), **how
    )
    assert path.is_forest
    assert path.convergence().iterations == 6  # five to cross it, one to see that nothing changes


def test_forest_or_not():
    assert not any(LoopyCase(name).model().is_forest for name in ALL)
    assert ts.FactorGraph(torch.zeros(5, 2), [((0, 1, 2), torch.zeros(2, 2, 2)), ((2, 3), torch.zeros(2, 2))]).is_forest


def saved(make, use, **how):
    """How many tensors are kept for the backward pass, and how many bytes."""
    count, size = 0, 0

    def pack(x):
        nonlocal count, size
        count, size = count + 1, size + x.numel() * x.element_size()
        return x

    leaf = torch.tensor(LoopyCase("square").unary).requires_grad_()
    model = make(leaf, tolerance=0.0, damping=0.9, method="propagation", **how)
    assert model.convergence().iterations == model.iterations  # none of them is spared
    with warnings.catch_warnings(), torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        warnings.simplefilter("ignore", ts.ConvergenceWarning)
        value = use(model)
        value.square().sum().backward()
    assert leaf.grad.abs().sum() > 0
    return count, size


def pairs(leaf, **how):
    return ts.PairwiseGraph(leaf, SQUARE, torch.tensor(LoopyCase("square", 0.5).tables[0]), **how)


def triples(leaf, **how):
    scopes = torch.tensor([(0, 1, 2), (3, 1, 2)])
    return ts.FactorGraph(leaf, [(scopes, torch.tensor(LoopyCase("two in common", 0.5).tables[0]))], **how)


USES = {
    "log_partition": lambda m: m.log_partition(),
    "marginals": lambda m: m.marginals(),
    "entropy": lambda m: m.entropy(),
    "joint": lambda m: m.pair_marginals() if isinstance(m, ts.PairwiseGraph) else m.factor_marginals()[0],
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("make", [pairs, pytest.param(triples, marks=pytest.mark.slow)])
def test_memory_of_the_implicit_gradient_does_not_grow_with_the_iterations(make, use, schedule):
    few, many = (saved(make, USES[use], iterations=i, schedule=schedule) for i in (10, 200))
    assert few == many


@pytest.mark.parametrize("use", ["log_partition", "marginals"])
@pytest.mark.parametrize("make", [pairs, triples])
def test_memory_of_the_unrolled_gradient_grows_with_the_iterations(make, use):
    few, many = (saved(make, USES[use], iterations=i, gradient="unrolled") for i in (10, 40))
    assert many[0] > 3 * few[0]
    assert many[1] > 3 * few[1]
