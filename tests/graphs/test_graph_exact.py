"""Graphs with loops of small treewidth: everything is exact, by summing out one variable after the other."""

import itertools
import math

import networkx as nx
import pytest
import torch

import tailsum as ts
from tailsum.graphs import elimination
from tailsum.numerics.memory import PeakMemory

EXACT = {"rtol": 0, "atol": 1e-9}


def k_tree(width, v, seed):
    """The edges of a graph of treewidth `width`: each further variable is joined with a clique of that size."""
    g = torch.Generator().manual_seed(seed)
    cliques, edges = [tuple(range(width))], list(itertools.combinations(range(width), 2))
    for node in range(width, v):
        clique = cliques[int(torch.randint(len(cliques), (), generator=g))]
        edges += [(other, node) for other in clique]
        cliques += [(*rest, node) for rest in itertools.combinations(clique, width - 1)]
    number = torch.randperm(v, generator=g).tolist()
    return [(number[a], number[b]) for a, b in edges]


def random_graph(edges, v, n, seed, batch=(), scale=1.5):
    g = torch.Generator().manual_seed(seed)
    unary = torch.randn(*batch, v, n, generator=g).double().requires_grad_()
    pairs = scale * torch.randn(*batch, len(edges), n, n, generator=g).double()
    return ts.PairwiseGraph(unary, edges, pairs)


def enumerated(model):
    """All configurations `[C, V]` and their scores `[C, *batch]`."""
    v, n = model.node_shape[0], model.n_states
    states = torch.cartesian_prod(*[torch.arange(n)] * v)
    lead = (len(states), *(1,) * len(model.batch_shape), v)
    return states, model.score(states.reshape(lead))


@pytest.mark.parametrize(("width", "v", "n"), [(2, 7, 3), (3, 6, 3), (5, 12, 2), (8, 12, 2), (10, 13, 2)])
def test_everything_equals_enumeration(width, v, n):
    model = random_graph(k_tree(width, v, 1), v, n, seed=1)
    assert model.is_exact
    assert not model.is_forest
    states, scores = enumerated(model)
    chance = scores.softmax(0)
    torch.testing.assert_close(model.log_partition(), scores.logsumexp(0), **EXACT)
    torch.testing.assert_close(model.entropy(), scores.logsumexp(0) - (chance * scores).sum(0), **EXACT)
    marginals = torch.einsum("c,cvn->vn", chance, torch.nn.functional.one_hot(states, n).double())
    torch.testing.assert_close(model.marginals(), marginals, **EXACT)
    best = scores.topk(3)
    assert torch.equal(model.argmax(), states[best.indices[0]])
    torch.testing.assert_close(model.topk(3).scores, best.values, **EXACT)


def test_argmax_of_strongly_coupled_grids_is_the_best():
    edges = ts.grid_edges(4, 4)
    g = torch.Generator().manual_seed(0)
    coupling = 1.5 * torch.randn(100, len(edges), 1, 1, generator=g).double()
    model = ts.PairwiseGraph(
        torch.randn(100, 16, 2, generator=g).double(), edges, coupling * torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    )
    states, unary = torch.cartesian_prod(*[torch.arange(2)] * 16).double(), model.node_scores()
    spin = 1.0 - 2.0 * states
    scores = (spin[:, edges[:, 0]] * spin[:, edges[:, 1]]) @ coupling[..., 0, 0].mT
    scores = scores + states @ (unary[..., 1] - unary[..., 0]).mT + unary[..., 0].sum(-1)
    torch.testing.assert_close(model.score(model.argmax()), scores.amax(0), **EXACT)


@pytest.mark.parametrize("seed", range(20))
def test_the_best_of_random_networks_of_small_treewidth(seed):
    model = random_graph(k_tree(1 + seed % 5, 11, seed), 11, 2, seed)
    torch.testing.assert_close(model.score(model.argmax()), enumerated(model)[1].max(), **EXACT)


def test_samples_have_the_probabilities_of_configurations(generator):
    model = random_graph([(0, 1), (1, 2), (2, 0)], 3, 2, seed=3, batch=(2,), scale=1.0)
    _, scores = enumerated(model)
    samples = model.sample((40_000,), generator=generator)
    place = (samples * torch.tensor([4, 2, 1])).sum(-1)
    for b in range(2):
        frequency = torch.bincount(place[:, b], minlength=8) / 40_000
        torch.testing.assert_close(frequency.double(), scores.softmax(0)[:, b].detach(), rtol=0, atol=0.01)


def test_what_is_impossible():
    table = torch.full((2, 2), -math.inf).double().fill_diagonal_(0.0)
    pairs = torch.stack((table, table, table.flip(0)))[None].repeat(2, 1, 1, 1)
    pairs[1] = 0.0
    unary = torch.zeros(2, 3, 2).double().requires_grad_()
    model = ts.PairwiseGraph(unary, [(0, 1), (1, 2), (2, 0)], pairs)
    assert model.log_partition()[0] == -math.inf
    for found in (model.argmax(), model.sample(), model.topk(1).configurations[0]):
        assert found[0].eq(-1).all()
        assert found[1].ge(0).all()
    assert model.marginals()[0].eq(0).all()
    assert not torch.autograd.grad(model.log_partition()[1] + model.marginals().square().sum(), unary)[0].isnan().any()
    assert model.kl(model)[0] == math.inf


def test_a_batch_is_summed_in_parts_with_the_same_derivatives(monkeypatch):
    """Only the tables of a few instances are kept at once."""
    leaf = torch.randn(6, 9, 2).double().requires_grad_()
    shared = torch.randn(12, 2, 2).double().requires_grad_()

    def results():
        found = []
        for pairs in (shared, shared.expand(6, -1, -1, -1)):
            model = ts.PairwiseGraph.grid(3, 3, leaf, pairs)
            value = model.log_partition().square().sum() + model.entropy().sum() + model.marginals().square().sum()
            found += [value, *torch.autograd.grad(value, (leaf, shared)), model.argmax()]
        return found

    whole = results()
    buckets = elimination.elimination_order(ts.PairwiseGraph.grid(3, 3, leaf, shared).plan.scopes, (2,) * 9)
    entries = sum(2 ** (1 + len(bucket.scope)) for bucket in buckets)
    monkeypatch.setattr("tailsum.graphs.elimination.LIMIT", 2 * entries)
    for a, b in zip(whole, results(), strict=True):
        torch.testing.assert_close(a, b)


def test_the_tables_keep_to_the_limit():
    """A graph that takes more is left to messages, unless it has to be exact."""
    unary, pairs = torch.zeros(400, 2), torch.zeros(2, 2)
    large = ts.PairwiseGraph.grid(20, 20, unary, pairs)
    assert not large.is_exact
    with pytest.raises(ValueError, match=r'method must be "auto" or "propagation" on this graph, .* got \'exact\''):
        ts.PairwiseGraph.grid(20, 20, unary, pairs, method="exact")
    model = ts.PairwiseGraph.grid(12, 12, torch.randn(144, 2), torch.randn(2, 2), method="exact")
    with torch.no_grad(), PeakMemory() as memory:
        model.log_partition()
    assert memory.largest < 4 * elimination.LIMIT


@pytest.mark.parametrize("width", [3, 6, 10])
def test_orders_are_close_to_the_treewidth(width):
    edges = tuple(k_tree(width, 40, 0))
    buckets = elimination.elimination_order(edges, (2,) * 40)
    assert max(len(bucket.scope) for bucket in buckets) == width
    graph, left = nx.Graph(edges), set(range(40))
    for node, scope in buckets:  # by a library
        assert set(graph.neighbors(node)) == set(scope) <= left
        graph.add_edges_from(itertools.combinations(scope, 2))
        graph.remove_node(node)
        left.remove(node)


def test_methods_and_their_names():
    unary, edges, pairs = torch.randn(3, 2).double(), [(0, 1), (1, 2), (2, 0)], torch.randn(3, 2, 2).double()
    exact, auto, loopy = (ts.PairwiseGraph(unary, edges, pairs, method=m) for m in ("exact", "auto", "propagation"))
    assert str(auto) == "PairwiseGraph(batch=[], V=3, factors=3, N=2, with loops, exact)"
    assert str(loopy) == "PairwiseGraph(batch=[], V=3, factors=3, N=2, with loops)"
    assert auto.is_exact
    assert not loopy.is_exact
    assert torch.equal(exact.log_partition(), auto.log_partition())
    assert auto.log_partition() != loopy.log_partition()
    found = auto.convergence()
    assert found.converged
    assert (found.iterations, found.change) == (0, 0)
    path = ts.PairwiseGraph(unary, edges[:2], pairs[:2], method="propagation")
    assert path.is_exact
    with pytest.raises(ValueError, match='method must be "auto", "exact" or "propagation": got \'best\''):
        ts.PairwiseGraph(unary, edges, pairs, method="best")


def test_variables_of_one_state_join_nothing():
    """A complete graph of 70 variables, of which two have a choice."""
    sizes = [2 if v in (3, 9) else 1 for v in range(70)]
    edges = list(itertools.combinations(range(70), 2))
    unary = [torch.randn(n).double() for n in sizes]
    pairs = [torch.randn(sizes[u], sizes[v]).double() for u, v in edges]
    model = ts.PairwiseGraph(unary, edges, pairs, method="exact")
    states = torch.zeros(4, 70, dtype=torch.long)
    states[:, 3], states[:, 9] = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1])
    scores = model.score(states)
    torch.testing.assert_close(model.log_partition(), scores.logsumexp(0), **EXACT)
    assert torch.equal(model.argmax(), states[scores.argmax()])


# Factors within others.


def test_factors_within_others_are_absorbed():
    g = torch.Generator().manual_seed(0)
    pair, triple = torch.randn(2, 3, 3, generator=g).double(), torch.randn(3, 3, 3, generator=g).double()
    factors = [(torch.tensor([(2, 0), (2, 3)]), pair), ((0, 1, 2), triple)]
    model = ts.FactorGraph(torch.randn(4, 3, generator=g).double(), factors, method="propagation")
    assert model.is_forest
    states, scores = enumerated(model)
    chance = scores.softmax(0).reshape(3, 3, 3, 3)
    torch.testing.assert_close(model.log_partition(), scores.logsumexp(0), **EXACT)
    by_hand = sum(pair[i][states[:, u], states[:, v]] for i, (u, v) in enumerate([(2, 0), (2, 3)]))
    by_hand = by_hand + triple[tuple(states[:, :3].T)] + model.node_scores().gather(1, states.T).sum(0)
    torch.testing.assert_close(scores, by_hand, **EXACT)
    pairs, triples = model.factor_marginals()
    torch.testing.assert_close(pairs[0], chance.sum((1, 3)).mT, **EXACT)
    torch.testing.assert_close(pairs[1], chance.sum((0, 1)), **EXACT)
    torch.testing.assert_close(triples[0], chance.sum(3), **EXACT)


def test_absorbed_factors_with_shared_tables_and_a_batch():
    pair, triple = torch.randn(2, 1, 2, 2).double().requires_grad_(), torch.randn(2, 2, 2).double().requires_grad_()
    pairs, triples = torch.tensor([(1, 0), (3, 2), (4, 5)]), torch.tensor([(0, 1, 2), (2, 3, 4)])
    model = ts.FactorGraph(torch.randn(6, 2).double(), [(pairs, pair), (triples, triple)])
    assert model.is_forest
    _, scores = enumerated(model)
    torch.testing.assert_close(model.log_partition(), scores.logsumexp(0), **EXACT)
    small = model.restrict(ts.Subset(torch.tensor([1]).expand(6, 1), torch.zeros(6, 1).double()))
    torch.testing.assert_close(small.log_partition(), model.score(torch.ones(6).long()), **EXACT)
    found = torch.autograd.grad(model.log_partition().sum(), (pair, triple))
    beliefs = model.factor_marginals()
    torch.testing.assert_close(found[0], beliefs[0].sum(1, keepdim=True), **EXACT)
    torch.testing.assert_close(found[1], beliefs[1].sum((0, 1)), **EXACT)
