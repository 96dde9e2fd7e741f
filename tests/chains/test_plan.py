"""Which way the planner names: by sizes, device, dtype, range and scores."""

import math

import pytest
import torch

import tailsum as ts
from tailsum.chains import plan


def flat(pairs):
    return ts.Dense(pairs).flat(torch.Size((1,)))


def ways(nodes, pairs):
    last = torch.full((nodes.shape[1],), len(nodes) - 1)
    return list(plan.sums(nodes, flat(pairs), last))


def test_float64_follows_float32_and_another_gauge_follows_both():
    nodes, pairs = torch.randn(5, 1, 3), torch.randn(3, 3)
    assert ways(nodes, pairs) == ["products", "products in float64", "another gauge"]
    assert ways(nodes.double(), pairs.double()) == ["products", "another gauge"]


def test_without_room_for_tables_there_is_no_other_gauge():
    with ts.table_budget(0):
        assert ways(torch.randn(5, 1, 3), torch.randn(3, 3)) == ["products", "products in float64"]


def test_long_or_wide_chains_of_few_states_start_in_float64():
    assert ways(10 * torch.randn(10_000, 1, 3), torch.randn(3, 3))[0] == "products in float64"
    # Every path breaks a mask: float64 too would underflow.
    apart = torch.full((3, 3), -1e5).fill_diagonal_(0.0)
    nodes = torch.zeros(4, 1, 3)
    nodes[0, 0, 1:] = nodes[2, 0, :2] = -1e5
    assert ways(nodes, apart) == ["another gauge"]


@pytest.mark.parametrize("n", [3, 200])
def test_few_states_on_a_cpu_go_their_own_way(n):
    table = flat(torch.randn(n, n)).products()
    own = ["few states"] if n == 3 else []
    assert list(plan.recursions(table, torch.randn(5, 2, n))) == [*own, "steps"]
    pairs = flat(torch.randn(n, n))
    assert list(plan.best_paths(torch.randn(2, 5, n), pairs, 1)) == [*(["whole numbers"] if own else []), "steps"]
    assert plan.walks(torch.randn(5, 2, n), pairs) == (own or ["steps"])[0]
    assert list(plan.best_paths(torch.randn(2, 5, n), pairs, 2)) == ["ranked"]


def test_kernels_take_all_but_long_chains_of_few_states(monkeypatch):
    monkeypatch.setattr(plan, "fused", lambda *_: True)
    pairs = flat(torch.randn(8, 8))
    assert plan.takes_log_kernels(1, 100, 8, pairs)
    assert not plan.takes_log_kernels(1, plan.LONG, 8, pairs)
    assert not plan.takes_log_kernels(0, 100, 8, pairs)
    assert plan.takes_log_kernels(1_000, plan.LONG, 8, pairs)  # many sequences fill a GPU
    assert plan.walks(torch.randn(5, 2, 8), pairs) == "kernels"
    table = pairs.products()
    for length, expected in ((5, "kernels"), (plan.LONG, "few states")):
        x = torch.randn(length, 1, 8)
        assert next(iter(plan.recursions(table, x))) == ("steps" if not table.suits_kernels else expected)
        assert plan.walks(x, pairs) == expected
        assert next(iter(plan.best_paths(x.transpose(0, 1), pairs, 1))) == expected.replace(
            "few states", "whole numbers"
        )


def test_structured_scores_have_no_other_gauge():
    banded = ts.Banded(torch.zeros(3, 300)).flat(torch.Size((1,)))
    nodes = torch.randn(5, 1, 300)
    nodes[0, 0, 7] = -math.inf
    assert list(plan.sums(nodes, banded, torch.tensor([4]))) == ["products", "products in float64"]
