"""Derivatives of graphs, with loops and without, by every way of passing messages."""

import math

import pytest
import torch

import tailsum as ts
from harness.derivatives import check
from harness.forests import EXACT
from harness.graphs import FactorCase, PairCase
from harness.registry import SMALL, random_subset, small

PASSED = [
    {"schedule": schedule, "gradient": gradient, "method": "propagation"}
    for schedule in ("sweep", "flooding")
    for gradient in ("implicit", "unrolled")
]
CYCLE = [(0, 1), (2, 1), (0, 2)]
GRAPHS = {
    "path": (PairCase, {"length": 3, "n": 2, "edges": CYCLE[:2], "lead": "both"}),
    "cycle": (PairCase, {"length": 3, "n": 2, "edges": CYCLE, "lead": "both", "scale": 0.4}),
    "cycle, factored": (
        PairCase,
        {"length": 3, "n": 3, "edges": CYCLE, "pairs": "factored", "scale": 0.4, "own": "unary"},
    ),
    "grid": (PairCase, {"length": 6, "n": 2, "edges": ts.grid_edges(2, 3).tolist(), "lead": "edge", "scale": 0.4}),
    "loop of larger factors": (
        FactorCase,
        {"length": 4, "n": 2, "groups": [([(0, 1, 2)], (2, 2, 2), "both"), ([(3, 0), (2, 3)], (2, 2), "both")], "scale": 0.4},
    ),
}  # fmt: skip
DERIVED = [
    *((name, how) for name in ("path", "cycle") for how in PASSED),
    *((name, PASSED[0]) for name in ("pairs-two components, factored", "cycle, factored", "loop of larger factors")),
    *((name, how) for name in ("factors-ternary", "grid") for how in PASSED[1:3]),
]


def made(name, **how):
    if name in SMALL:
        return small(name, seed=2, **how)
    kind, fixed = GRAPHS[name]
    return kind(**{"batch": (2,), "seed": 2, **fixed, **how})


def way_of(how):
    return "-".join(how.values()) if isinstance(how, dict) else how


@pytest.mark.parametrize(
    ("name", "how"),
    [*DERIVED, ("cycle", {"method": "exact"}), ("loop of larger factors", {"method": "exact"})],
    ids=way_of,
)
def test_first_and_second_derivatives(name, how):
    """Of log-partition, marginals and entropy, with a forbidden state."""
    case = made(name, how={**how, **EXACT})
    case.banned[0][0, 0, 0] = True
    assert case.model().is_forest == (name in {"path", *SMALL})

    def run(*leaves):
        model = case.model(*leaves)
        return model.log_partition(), model.marginals(), model.entropy()

    check(run, case.leaves)


@pytest.mark.parametrize("how", PASSED, ids=way_of)
def test_derivatives_where_pairs_are_forbidden(how):
    case = made("cycle", how={**how, **EXACT})
    case.banned[1][:, 0, 0, 1] = case.banned[1][1, 1, 1, 1] = True

    def run(*leaves):
        model = case.model(*leaves)
        return model.log_partition(), model.marginals(), model.entropy()

    check(run, case.leaves, twice=False)


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("pairs-tree", "auto"),
        pytest.param("factors-mixed", "auto", marks=pytest.mark.slow),
        ("cycle", "propagation"),
        pytest.param("cycle", "exact", marks=pytest.mark.slow),
    ],
)
def test_derivatives_of_other_operations(name, method):
    case = made(name, how={**EXACT, "method": method})
    other = case.sibling(seed=3).model()
    subset = random_subset(case, case.model(), seed=1, k=2)

    def run(*leaves):
        model = case.model(*leaves)
        small = model.restrict(subset)
        found = [model.kl(other), other.kl(model), model.cross_entropy(other), small.log_partition(), small.entropy()]
        found += [x for _, x in case.factor_beliefs(model)]
        found.append(model.rsample(0.7, generator=torch.Generator().manual_seed(1)).weights)
        return [x[x.isfinite()] for x in found]

    check(run, case.leaves, twice=False)


@pytest.mark.parametrize("kind", ["pairs", "factors"])
@pytest.mark.parametrize("mask", [-math.inf, -1e30])
def test_a_second_backward_pass_where_something_is_forbidden(mask, kind):
    """Nothing that is recorded in the constructor is freed by the first."""
    nodes, table = torch.randn(2, 4, 3), torch.randn(3, 3)
    nodes[1, 0], table[0, 1] = mask, mask
    nodes, table = nodes.requires_grad_(), table.requires_grad_()
    edges = [[0, 1], [2, 1], [2, 3]]
    graph = ts.PairwiseGraph(nodes, edges, table) if kind == "pairs" else ts.FactorGraph(nodes, [(edges, table)])
    for value in (graph.log_partition, graph.entropy, graph.log_partition):
        value()[0].backward()
        assert nodes.grad.isfinite().all()
        assert table.grad.isfinite().all()
    assert graph.log_partition()[1] == -math.inf
