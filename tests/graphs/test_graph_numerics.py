"""Graphs: offsets, range, precision, memory and empty batches."""

import math

import pytest
import torch

import tailsum as ts
from tailsum.graphs.factors import PairFactors
from tailsum.graphs.propagate import Propagation
from tailsum.numerics import tiles as table
from tailsum.numerics.memory import PeakMemory
from tailsum.numerics.reduce import log_sum_exp

PATH = [(i, i + 1) for i in range(6)]
GRID = ts.grid_edges(2, 3).tolist()


def eighths(*shape):
    """Numbers that stay what they are when a power of two is added, in float32."""
    return (torch.randn(*shape) * 8).round() / 8


def made(edges, unary, scores):
    v = unary.shape[-2]
    if edges is None:  # two factors of three
        return ts.FactorGraph(unary, [(torch.tensor([[0, 1, 2], [2, 3, 4]]), scores)])
    assert max(map(max, edges)) < v
    return ts.PairwiseGraph(unary, edges, scores)


@pytest.mark.parametrize(
    ("edges", "v", "shape"), [(PATH, 7, (4, 4)), (GRID, 6, (4, 4)), (GRID, 6, (7, 4, 4)), (None, 5, (2, 4, 4, 4))]
)
@pytest.mark.parametrize("where", ["unary", "factors"])
def test_common_offsets_cost_no_digits(edges, v, shape, where):
    unary, scores, offset = eighths(v, 4), eighths(*shape) / 4, 2.0**18
    plain = made(edges, unary, scores)
    moved = made(edges, unary + offset * (where == "unary"), scores + offset * (where == "factors"))
    torch.testing.assert_close(moved.marginals(), plain.marginals(), rtol=0, atol=1e-6)
    torch.testing.assert_close(moved.entropy(), plain.entropy(), rtol=0, atol=1e-5)
    count = v if where == "unary" else (len(edges) if edges is not None else 2)
    torch.testing.assert_close(moved.log_partition(), plain.log_partition() + count * offset)
    assert torch.equal(moved.argmax(), plain.argmax())


@pytest.mark.parametrize("mask", [pytest.param(-1e30, marks=pytest.mark.slow), "lowest"])
@pytest.mark.parametrize(
    ("edges", "method"), [(PATH, "auto"), ([*PATH, (6, 0), (2, 5)], "exact"), ([*PATH, (6, 0)], "propagation")]
)
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore::tailsum.ConvergenceWarning")
def test_masks_by_low_numbers_are_the_same_as_minus_infinity(edges, method, mask, dtype):
    low = torch.finfo(dtype).min if mask == "lowest" else mask
    unary, pairs = torch.randn(2, 7, 3, dtype=dtype), 0.5 * torch.randn(2, len(edges), 3, 3, dtype=dtype)
    unary[:, ::2, 0], pairs[0, :, 1, 2], unary[1, 3] = -math.inf, -math.inf, -math.inf  # the second is impossible
    results = []
    for value in (-math.inf, low):
        leaf = unary.masked_fill(unary == -math.inf, value).requires_grad_()
        scores = pairs.masked_fill(pairs == -math.inf, value)
        factors = [(torch.tensor(edges), scores)]
        for model in (
            ts.PairwiseGraph(leaf, edges, scores, method=method, iterations=10),
            ts.FactorGraph(leaf, factors, method=method, iterations=10),
        ):
            draws = model.sample((3,), generator=torch.Generator().manual_seed(0))
            values = [model.log_partition(), model.entropy(), model.marginals(), model.kl(model), draws]
            values += [model.argmax(), *torch.autograd.grad(model.log_partition()[0], leaf)]
            values += model.topk(2) if method == "exact" else []
            results.append(values)
    for found in results[1:]:
        for a, b in zip(found, results[0], strict=True):
            assert not a.isnan().any()
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scale", [30.0, 300.0, 3000.0])
@pytest.mark.parametrize("kind", ["dense", "factored"])
def test_scores_of_any_range_on_a_tree(kind, scale):
    """Products of exponentials would lose most of these."""
    edges = [(0, 1), (2, 1), (1, 3)]
    left, right, unary = torch.randn(5, 2), torch.randn(5, 2), torch.randn(4, 5)
    unary, left = (unary * scale).requires_grad_(), (left * scale).requires_grad_()
    model = ts.PairwiseGraph(unary, edges, ts.Factored(left, right) if kind == "factored" else left @ right.mT)
    wide = ts.PairwiseGraph(unary.double(), edges, (left.double() @ right.mT.double()))
    torch.testing.assert_close(model.log_partition().double(), wide.log_partition(), rtol=1e-5, atol=1e-5)
    found = torch.autograd.grad(model.log_partition(), (unary, left))
    expected = torch.autograd.grad(wide.log_partition(), (unary, left))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3 * scale**0.5)


@pytest.mark.parametrize("lead", [(), (7,), (2, 7), (2, 1)])
@pytest.mark.parametrize("kind", ["dense", "forbidden", "factored"])
def test_streamed_tables_give_the_same(kind, lead, monkeypatch):
    """Tiles of a few entries, to the second derivative, and maxima."""
    torch.manual_seed(1)
    unary = torch.randn(2, 6, 5).double().requires_grad_()
    factors = [torch.randn(*lead, 5, 2).double().requires_grad_() for _ in range(2)]
    scores = (factors[0] @ factors[1].mT).detach()
    scores = (scores.masked_fill(torch.rand_like(scores) < 0.1, -math.inf) if kind == "forbidden" else scores) / 8

    def results():
        params = factors if kind == "factored" else [scores.clone().requires_grad_()]
        pairwise = ts.Factored(params[0] / 8, params[1]) if kind == "factored" else params[0]
        model = ts.PairwiseGraph.grid(2, 3, unary, pairwise, tolerance=1e-12)
        value = model.entropy().sum() + model.marginals().square().sum()
        return value, *torch.autograd.grad(value, [unary, *params]), model.argmax()

    kept = results()
    monkeypatch.setitem(table._TILE, "cpu", 7)
    with ts.table_budget(0):
        tiled = results()
    for a, b in zip(kept, tiled, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("edges", [[(i, i + 1) for i in range(40)], ts.grid_edges(5, 8).tolist()])
def test_a_shared_table_is_kept_once(edges):
    states, unary = torch.randn(400, 8) * 0.3, torch.randn(41, 400, requires_grad=True)
    model = ts.PairwiseGraph(unary, edges, ts.Factored(states, states))
    one = 400 * 400 * 4
    with PeakMemory() as memory:
        model.log_partition().backward()
    assert memory.peak < 4 * one + 20 * 400 * 2 * len(edges) * 4


def test_own_tables_together_keep_to_the_budget(monkeypatch):
    monkeypatch.setitem(table._TILE, "cpu", 200 * 200)
    states, unary = torch.randn(20, 200, 8) * 0.3, torch.randn(21, 200)
    model = ts.PairwiseGraph(unary, [(i, i + 1) for i in range(20)], ts.Factored(states, states))
    one = 200 * 200 * 4
    with ts.table_budget(3 * one), PeakMemory() as memory:  # one of the tables fits, all together do not
        streamed = model.log_partition()
    assert memory.largest < 3 * one
    assert memory.peak < 12 * one
    torch.testing.assert_close(streamed, model.log_partition())


@pytest.mark.slow
def test_landmarks_of_all_states_do_not_take_shared_tables_apart():
    unary, scores = torch.randn(1000, 100), torch.randn(100, 100) * 0.1
    model = ts.PairwiseGraph(unary, [(0, v) for v in range(1, 1000)], scores)
    with PeakMemory() as memory:
        small = model.sketch(20)
    assert memory.peak < 1000 * 100 * 100 * 4
    assert (small.log_partition() - model.log_partition()).abs() < 1.0


@pytest.mark.parametrize("edges", [PATH, [*ts.grid_edges(1, 7).tolist(), [0, 6]]])
def test_autocast_changes_nothing(edges):
    unary, scores = torch.randn(7, 5, requires_grad=True), (torch.randn(5, 5) * 0.5).requires_grad_()

    def gradients():
        model = ts.PairwiseGraph(unary, edges, scores)
        total = model.log_partition() + model.entropy() + model.marginals().square().sum()
        return total, *torch.autograd.grad(total, (unary, scores))

    plain = gradients()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = gradients()
    for a, b in zip(plain, cast, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("scores", [torch.zeros(2, 2), torch.zeros(0, 2, 2, 2), torch.zeros(0, 1, 2, 2)])
def test_empty_batches(scores):
    model = ts.PairwiseGraph(torch.zeros(0, 3, 2), [(0, 1), (2, 1)], scores)
    for graph in (model, model.sketch(1), model.sketch(2)):
        assert graph.log_partition().shape == graph.entropy().shape == (0,)
        assert graph.marginals().shape == (0, 3, graph.n_states)
        assert graph.pair_marginals().shape == (0, 2, graph.n_states, graph.n_states)
        assert graph.argmax().shape == (0, 3)
        assert graph.sample((4,)).shape == (4, 0, 3)
        assert graph.rsample().weights.shape == (0, 3, graph.n_states)
        assert graph.whole_marginals().shape == (0, 3, 2)
        assert graph.convergence().converged.shape == (0,)


def test_no_samples():
    model = ts.PairwiseGraph(torch.zeros(3, 2), [(0, 1)], torch.zeros(2, 2))
    assert model.sample((0,)).shape == (0, 3)
    assert model.rsample(sample_shape=(0,)).weights.shape == (0, 3, 2)


@pytest.mark.parametrize("k", [3, 30])
def test_beliefs_in_all_states(k):
    """From the messages of the kept ones they are closer than the kept ones' own, and with all states the same."""
    unary, states = torch.randn(2, 9, 30).double(), torch.randn(30, 4).double() * 0.4
    how = {"tolerance": 1e-12, "method": "propagation"}
    model = ts.PairwiseGraph.grid(3, 3, unary, ts.Factored(states, states), **how)
    small = model.sketch(k, generator=torch.Generator().manual_seed(0))
    exact, whole = model.marginals(), small.whole_marginals()
    torch.testing.assert_close(whole.sum(-1), torch.ones(2, 9).double())
    off = (whole - exact).abs().sum(-1).mean() / 2
    if k == 30:
        assert off < 1e-9
    else:
        assert off < 0.2 < 0.5 * (small.scatter(small.marginals()) - exact).abs().sum(-1).mean() / 2


def test_the_kept_table_serves_both_directions():
    x = torch.randn(3, 2, 4).double()
    scores = torch.randn(1, 2, 4, 5).double()
    factors = PairFactors(ts.Dense(scores), log_sum_exp)
    centre = factors.centre[..., None]
    forth = (x[..., :, None] + scores).logsumexp(-2)
    torch.testing.assert_close(factors.products(x, 1) + centre, forth)
    torch.testing.assert_close(factors.products(forth, 0) + centre, (forth[..., None, :] + scores).logsumexp(-1))


def test_selection_in_sequence_crosses_a_grid():
    """Where paths meet again, factors that messages have in common must not pile up from layer to layer."""
    torch.manual_seed(0)
    states = torch.randn(60, 8) * 0.4
    model = ts.PairwiseGraph.grid(14, 14, 5 * torch.randn(14, 14, 60), ts.Factored(states, states))
    exact = model.log_partition()
    for seed in range(3):
        small = model.sketch(12, proposal=ts.Lookahead(24), generator=torch.Generator().manual_seed(seed))
        assert (small.log_partition() - exact).abs() < 0.05


def test_many_samples_need_the_messages_once(monkeypatch):
    model = ts.PairwiseGraph(torch.randn(5, 3), [(0, 1), (2, 1), (1, 3)], torch.randn(3, 3))
    steps, step = [], Propagation.step
    monkeypatch.setattr(Propagation, "step", lambda self, z: steps.append(1) or step(self, z))
    monkeypatch.setitem(table._TILE, "cpu", 1)  # samples are drawn sixteen at a time
    assert model.sample((100,)).shape == (100, 5)
    assert len(steps) == 1
