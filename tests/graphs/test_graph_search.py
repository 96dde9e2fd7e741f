"""Graphs with loops by messages: the best configurations that are found, against all of them."""

import itertools
import math

import pytest
import torch

import tailsum as ts
from harness.loopy import ALL, Enumerated, LoopyCase
from tailsum.graphs.search import cover

pytestmark = pytest.mark.filterwarnings("ignore::tailsum.ConvergenceWarning")
OPPOSITE = torch.tensor([[1.0, -1.0], [-1.0, 1.0]]).double()


def ising(seeds, side, coupling=1.5):
    """Scores of variables `[B, V, 2]`, couplings `[B, E]` of both signs, and the graphs in one batch."""
    edges, unary, pairs = ts.grid_edges(side, side), [], []
    for seed in seeds:
        g = torch.Generator().manual_seed(seed)
        unary.append(torch.randn(side * side, 2, generator=g).double())
        pairs.append(coupling * torch.randn(len(edges), generator=g).double())
    unary, pairs = torch.stack(unary), torch.stack(pairs)
    return unary, pairs, ts.PairwiseGraph(unary, edges, pairs[..., None, None] * OPPOSITE, method="propagation")


def all_scores(unary, pairs, side):
    """The score of every configuration, `[configurations, B]`."""
    states = torch.tensor(list(itertools.product((0, 1), repeat=side * side)))
    edges, spin = ts.grid_edges(side, side), 1.0 - 2.0 * states.double()
    own = states.double() @ (unary[..., 1] - unary[..., 0]).mT + unary[..., 0].sum(-1)
    return own + (spin[:, edges[:, 0]] * spin[:, edges[:, 1]]) @ pairs.mT


def test_argmax_of_strongly_coupled_grids_is_the_best():
    """Max-product alone finds it in about a third of them."""
    unary, pairs, model = ising(range(100), 4)
    best = all_scores(unary, pairs, 4).amax(0)
    found = model.score(model.argmax())
    assert (found <= best + 1e-9).all()
    assert (found > best - 1e-9).sum() >= 95


def test_the_k_best_are_sorted_and_none_is_better_than_the_argmax():
    unary, pairs, model = ising(range(4), 3)
    best = all_scores(unary, pairs, 3).topk(4, 0).values
    found = model.topk(4)
    assert (found.scores.diff(dim=0) <= 0).all()
    torch.testing.assert_close(model.score(found.configurations), found.scores)
    torch.testing.assert_close(found.scores, best)
    torch.testing.assert_close(model.score(model.argmax()), best[0])


@pytest.mark.slow
def test_no_change_of_one_or_two_neighbours_improves_the_argmax():
    _, _, model = ising([0, 1], 7)
    found = model.argmax()
    single = torch.eye(49).long()
    pair = (single[model.edges[:, 0]] + single[model.edges[:, 1]]).reshape(-1, 1, 49)
    for change in (single[:, None], pair):
        assert (model.score(found ^ change) <= model.score(found) + 1e-9).all()


FEW_OF_ALL = [name if i == 0 else pytest.param(name, marks=pytest.mark.slow) for i, name in enumerate(ALL)]


@pytest.mark.parametrize("name", FEW_OF_ALL)
def test_argmax_of_strong_couplings_with_forbidden_states(name):
    for seed in range(3):
        case = LoopyCase(name, 2.0, forbidden=0.15 * (seed > 0), seed=seed, n=2)
        (instance,) = case.instances()
        model = case.model(iterations=50)
        assert model.score(model.argmax()).item() == pytest.approx(Enumerated(*instance).scores.max())


def test_a_graph_without_configurations_has_no_best():
    table = torch.full((2, 2), -math.inf).double().fill_diagonal_(0.0)
    odd = torch.stack((table, table, table.flip(0)))  # an odd cycle of one contradiction
    model = ts.PairwiseGraph(torch.zeros(3, 2).double(), [(0, 1), (1, 2), (2, 0)], odd, method="propagation")
    assert model.argmax().tolist() == [-1, -1, -1]


@pytest.mark.slow
def test_the_argmax_does_not_depend_on_the_global_random_state():
    _, _, model = ising(range(3), 4)
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.random.get_rng_state()
        found.append(model.argmax())
        assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(*found)


@pytest.mark.parametrize("scopes", [tuple(map(tuple, ts.grid_edges(5, 6).tolist())), ((0, 1, 2), (2, 3, 4), (4, 5, 0))])
def test_moves_free_forests_and_cover_all_pairs(scopes):
    n_nodes = 1 + max(map(max, scopes))
    moves = cover(scopes, n_nodes, 3)
    for u, v in (pair for scope in scopes for pair in itertools.combinations(scope, 2)):
        assert (moves[:, u] & moves[:, v]).any()
    for free in moves.tolist():
        left = [[v for v in scope if free[v]] for scope in scopes]
        factors = [(tuple(scope), torch.zeros([2] * len(scope))) for scope in left if len(scope) > 1]
        assert ts.FactorGraph(torch.zeros(n_nodes, 2), factors).is_forest
