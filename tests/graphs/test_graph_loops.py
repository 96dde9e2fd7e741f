"""Graphs with loops: the fixed point of their messages against a plain reference."""

import math

import numpy as np
import pytest
import torch

import tailsum as ts
from harness.loopy import ALL, COMPLETE, EXACTLY, GRID, Enumerated, Loopy, LoopyCase, agrees, close, joint_beliefs

SCHEDULES = ["sweep", "flooding"]


def enumerated_forest():
    scopes = [(0, 1, 2), (2, 3), (3, 4)]
    random = np.random.default_rng(3)
    unary = random.normal(size=(5, 3))
    return unary, [(scope, random.normal(size=[3] * len(scope))) for scope in scopes]


def test_the_reference_is_exact_on_a_forest():
    instance = enumerated_forest()
    np.testing.assert_allclose(Loopy(*instance).log_partition, Enumerated(*instance).log_partition, atol=1e-10)


@pytest.mark.parametrize("name", ALL)
def test_bethe_is_not_exact_on_these_graphs(name):
    """So a test of equality with the reference would notice exact values."""
    case = LoopyCase(name, 0.8)
    (instance,) = case.instances()
    assert abs(Loopy(*instance).log_partition - Enumerated(*instance).log_partition) > 1e-5


# The fixed point.


@pytest.mark.parametrize(("coupling", "schedule"), [(0.3, "sweep"), (0.8, "sweep"), (0.8, "flooding")])
@pytest.mark.parametrize("name", ALL)
def test_sum_product_equals_the_reference(name, coupling, schedule):
    case = LoopyCase(name, coupling)
    agrees(case.model(schedule=schedule), case)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", ALL)
def test_sum_product_equals_the_reference_where_much_is_forbidden(name, seed):
    case = LoopyCase(name, 0.5, forbidden=0.2, seed=seed)
    assert any((table == -math.inf).any() for table in case.tables)
    agrees(case.model(damping=0.2), case)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", ["triangle", "apart", "ring of triples", "triples and pairs"])
def test_sum_product_equals_the_reference_where_states_are_forbidden(name, schedule):
    """By the scores of single variables only: no message forbids anything."""
    case = LoopyCase(name, 0.5, seed=4)
    case.unary[0, 1] = case.unary[1, :2] = case.unary[2, 0] = -math.inf
    agrees(case.model(schedule=schedule), case)


@pytest.mark.parametrize(("batch", "forbidden"), [((1,), 0.0), ((3,), 0.15), ((2, 2), 0.0)])
@pytest.mark.parametrize("name", ["triangle", "apart", "two in common", "triples and pairs"])
def test_every_instance_of_a_batch_equals_the_reference(name, batch, forbidden):
    case = LoopyCase(name, 0.5, forbidden, batch)
    model = case.model()
    assert model.log_partition().shape == model.entropy().shape == batch
    assert model.marginals().shape == (*batch, case.n_nodes, 3)
    agrees(model, case)


@pytest.mark.parametrize("name", ["triangle", "square", "complete"])
def test_pairs_as_factors_are_the_same(name):
    case = LoopyCase(name, 0.8, forbidden=0.1, seed=2)
    agrees(case.factor_graph(), case)


def test_scores_shared_by_a_batch_or_by_all_edges():
    case = LoopyCase("grid", 0.5, batch=(3,), seed=5)
    case.tables = [np.broadcast_to(case.tables[0][0], (3, 3, 3)) for _ in case.tables]
    unary, shared = torch.tensor(case.unary), torch.tensor(case.tables[0][0])
    agrees(ts.PairwiseGraph(unary, GRID, shared, **EXACTLY), case)
    agrees(ts.PairwiseGraph(unary, GRID, shared.expand(12, 3, 3), **EXACTLY), case)
    case.unary = np.broadcast_to(case.unary[:1], (3, 9, 3))
    agrees(ts.PairwiseGraph(unary[0], GRID, shared.expand(3, 1, 3, 3), **EXACTLY), case)


def test_pairs_by_factors_and_by_a_function():
    case = LoopyCase("complete", 0.5, seed=6)
    random = np.random.default_rng(7)
    left, right = 0.5 * random.normal(size=(2, 6, 3, 2))
    case.tables = [a @ b.T for a, b in zip(left, right, strict=True)]
    left, right, unary = torch.tensor(left), torch.tensor(right), torch.tensor(case.unary)
    agrees(ts.PairwiseGraph(unary, COMPLETE, ts.Factored(left, right), **EXACTLY), case)
    edge = torch.arange(6)[:, None]

    def function(i, j, e):
        return (left[e[..., 0], i] * right[e[..., 0], j]).sum(-1)

    agrees(ts.PairwiseGraph(unary, COMPLETE, ts.Scored(function, 3, 3, edge), **EXACTLY), case)


def test_variables_with_different_numbers_of_states():
    random, sizes = np.random.default_rng(8), [2, 4, 3, 1]
    scopes = [(0, 1), (2, 1), (2, 3), (0, 3), (0, 2)]
    unary = [random.normal(size=size) for size in sizes]
    factors = [(s, random.normal(size=[sizes[v] for v in s])) for s in scopes]
    truth = Loopy(unary, factors)
    rows, tables = [torch.tensor(row) for row in unary], [torch.tensor(table) for _, table in factors]
    pairs = ts.PairwiseGraph(rows, scopes, tables, **EXACTLY)
    larger = ts.FactorGraph(rows, list(zip(scopes, tables, strict=True)), **EXACTLY)
    for model in (pairs, larger):
        close(model.log_partition(), truth.log_partition)
        close(model.entropy(), truth.entropy)
        for v, size in enumerate(sizes):
            close(model.marginals()[v, :size], truth.nodes[v])
            assert model.marginals()[v, size:].eq(0).all()
    for f, (a, b) in enumerate(scopes):
        close(pairs.pair_marginals()[f, : sizes[a], : sizes[b]], truth.joint[f])
        close(pairs.pair_marginals()[f].sum(), 1.0)
        close(larger.factor_marginals()[f][0], truth.joint[f])


def test_factors_given_together_are_the_same_as_one_by_one():
    case = LoopyCase("ring of triples", 0.6, forbidden=0.1, batch=(2,), seed=1)
    tables = torch.tensor(np.stack(case.tables, 1))
    model = ts.FactorGraph(torch.tensor(case.unary), [(torch.tensor(case.scopes), tables)], **EXACTLY)
    (found,) = model.factor_marginals()
    truths = case.loopy()
    close(model.log_partition(), [t.log_partition for t in truths])
    close(found, [np.stack(t.joint) for t in truths])


@pytest.mark.parametrize("forbidden", [0.0, 0.2])
@pytest.mark.parametrize("name", ALL)
def test_beliefs_are_locally_consistent(name, forbidden):
    case = LoopyCase(name, 0.8, forbidden, batch=(2,), seed=3)
    model = case.model(damping=0.2)
    nodes = model.marginals()
    close(nodes.sum(-1), np.ones((2, case.n_nodes)))
    for scope, found in zip(case.scopes, joint_beliefs(model, case), strict=True):
        assert (found >= 0).all()
        for axis, v in enumerate(scope):
            others = [1 + a for a in range(len(scope)) if a != axis]
            close(found.sum(others), nodes[:, v])


@pytest.mark.parametrize(("name", "forbidden"), [("grid", 0.0), ("complete", 0.15), ("four at once", 0.15)])
def test_all_ways_of_passing_messages_reach_the_same_point(name, forbidden):
    case = LoopyCase(name, 0.7, forbidden, batch=(2,), seed=1)
    first = case.model()
    expected = first.log_partition(), first.marginals(), first.entropy()
    others = ("flooding", 0.0, "implicit"), ("sweep", 0.3, "implicit"), ("flooding", 0.6, "unrolled")
    for schedule, damping, gradient in others:
        model = case.model(schedule=schedule, damping=damping, gradient=gradient, tolerance=1e-9)
        for found, value in zip((model.log_partition(), model.marginals(), model.entropy()), expected, strict=True):
            close(found, value)


def test_single_precision_is_close():
    case = LoopyCase("grid", 0.5)
    model = ts.PairwiseGraph(
        torch.tensor(case.unary).float(), GRID, torch.tensor(np.stack(case.tables)).float(), method="propagation"
    )
    (truth,) = case.loopy()
    assert model.log_partition().dtype == torch.float32
    close(model.log_partition().double(), truth.log_partition, rtol=0, atol=1e-5)
    close(model.marginals().double(), np.stack(truth.nodes), rtol=0, atol=1e-3)  # tolerance: root of the precision
