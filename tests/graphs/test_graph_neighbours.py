"""Sketches of graphs with neighbours: trees that need them, selection branch after branch, and sums that stay unbiased."""

import math

import pytest
import torch

import tailsum as ts
from harness.statistics import z_score
from tailsum.graphs.depth_first import depth_first

TREE = [(0, 1), (2, 0), (1, 3), (1, 4), (5, 2), (2, 6), (6, 7)]
FOREST = [(0, 1), (3, 2), (1, 4), (1, 5)]
GRID = ts.grid_edges(2, 3)


def binary(v):
    return [((i - 1) // 2, i) for i in range(1, v)]


def sticky(n, generator, replicates=()):
    states = 1.5 * torch.randn(n, 16, generator=generator) / 2
    return ts.PairwiseGraph(
        torch.randn(15, n, generator=generator).expand(*replicates, 15, n), binary(15), ts.Factored(states, states)
    )


def peaked(n, generator, replicates=()):
    unary, (left, right) = 3 * torch.randn(31, n, generator=generator), torch.randn(2, n, 16, generator=generator)
    return ts.PairwiseGraph(unary.expand(*replicates, 31, n), binary(31), ts.Factored(0.75 * left, right))


@pytest.mark.parametrize(("make", "landmarks", "near", "off"), [(sticky, 8, 0.05, 1.0), (peaked, 20, 0.3, 1.0)])
def test_trees_need_them(make, landmarks, near, off, generator):
    many, tree = (make(800, generator.manual_seed(0), shape) for shape in ((4,), ()))
    error = {
        size: many.sketch(30, proposal=ts.Lookahead(landmarks, neighbours=size), generator=generator).log_partition()
        - tree.log_partition()
        for size in (0, 16)
    }
    assert error[16].abs().max() < near
    assert error[0].abs().max() > off


def test_a_sticky_grid(generator):
    """With loops: against the sum by messages of the whole graph."""
    states = 1.5 * torch.randn(300, 16, generator=generator) / 2
    unary, pairs = torch.randn(16, 300, generator=generator), ts.Factored(states, states)
    truth = ts.PairwiseGraph.grid(4, 4, unary, pairs).log_partition()
    many = ts.PairwiseGraph.grid(4, 4, unary.expand(8, 16, 300), pairs)
    for size, near in ((0, False), (16, True)):
        small = many.sketch(10, proposal=ts.Lookahead(4, neighbours=size), generator=generator)
        assert bool((small.log_partition() - truth).abs().max() < 0.1) is near


def test_errors_of_branches_do_not_multiply(generator):
    """Where the messages that guide the selection are exact, so is the sum, whatever is selected."""
    tree = peaked(60, generator, (20,))
    small = tree.sketch(4, proposal=ts.Lookahead(60, neighbours=1), generator=generator)
    torch.testing.assert_close(small.log_partition(), tree.log_partition(), rtol=0, atol=1e-2)
    assert small.states.unique(dim=0).shape[0] == 20


@pytest.mark.parametrize(
    ("edges", "order", "ended"),
    [
        (
            TREE,
            [[0], [2], [6], [7], [5], [1], [4], [3]],
            {4: [[(7, 6)], [(6, 2)]], 5: [[(5, 2)], [(2, 0)]], 7: [[(4, 1)]]},
        ),
        (FOREST, [[0, 2, 6], [1, 3], [5], [4]], {3: [[(5, 1)]]}),
        ([(0, 1), (0, 2), (4, 3), (3, 5)], [[0, 3], [2, 5], [1, 4]], {2: [[(2, 0), (5, 3)]]}),
    ],
)
def test_depth_first(edges, order, ended):
    """A branch that is at its end sends a message before the next one is entered; all trees at the same time."""
    pairs = torch.tensor(edges)
    arrivals = depth_first([pairs], 1 + max(max(nodes) for nodes in order), pairs.device)
    assert [arrival.visit.nodes.tolist() for arrival in arrivals] == order
    for place, arrival in enumerate(arrivals):
        sent = []
        for step in arrival.ended:
            sent.append([])
            for given in step:
                children = pairs[given.factors, 1 - given.position].tolist()
                assert given.put.equal(pairs[given.factors, given.position])
                sent[-1] += zip(children, given.put.tolist(), strict=True)
        assert [sorted(step) for step in sent] == ended.get(place, [])


def pair_kinds(n, edges, generator, forbidden=0.3):
    table = 0.7 * torch.randn(n, n, generator=generator).double()
    own = 0.7 * torch.randn(len(edges), n, n, generator=generator).double()
    left, right = 0.7 * torch.randn(2, n, 3, generator=generator).double()
    table, own = (x.masked_fill(torch.rand(x.shape, generator=generator) < forbidden, -math.inf) for x in (table, own))
    return {
        "dense": table,
        "own": own,
        "factored": ts.Factored(left, right),
        "scored": ts.Scored(lambda i, j: table[i, j], n, n),
    }


@pytest.mark.parametrize("edges", [TREE, FOREST, GRID], ids=["tree", "forest", "grid"])
@pytest.mark.parametrize("kind", ["dense", "own", "factored", "scored"])
def test_sums_are_unbiased_with_any_lists(kind, edges, generator):
    """Also by lists of other scores, as of earlier steps of training."""
    n, v = 5, int(torch.as_tensor(edges).max()) + 2  # one variable has no factors
    unary, pairs = 0.5 * torch.randn(v, n, generator=generator).double(), pair_kinds(n, edges, generator)[kind]
    near = 2 if kind == "factored" else ts.Neighbours(torch.randn(n, n, generator=generator), 2)
    truth = ts.PairwiseGraph(unary, edges, pairs, method="exact").log_partition()
    many = ts.PairwiseGraph(unary.expand(3_000, v, n), edges, pairs, method="exact")
    ratio = (
        many.sketch(3, proposal=ts.Lookahead(2, neighbours=near), generator=generator).log_partition() - truth
    ).exp()
    assert z_score(ratio, 1.0) < 4.5


def test_larger_factors_keep_to_landmarks(generator):
    """A forest of pairs, a triple, and a variable with fewer states."""
    sizes = {(0, 1): (5, 5), (1, 2, 3): (5, 5, 5), (4, 3): (5, 5), (3, 5): (5, 4)}
    factors = [(scope, torch.randn(size, generator=generator).double()) for scope, size in sizes.items()]
    unary = [torch.randn(4 if v == 5 else 5, generator=generator).double() for v in range(6)]
    truth = ts.FactorGraph(unary, factors).log_partition()
    many = ts.FactorGraph([u.expand(3_000, -1) for u in unary], factors)
    for proposal in (ts.Lookahead(2, neighbours=2), ts.Lookahead(2, neighbours=2, sequential=False)):
        ratio = (many.sketch(3, proposal=proposal, generator=generator).log_partition() - truth).exp()
        assert z_score(ratio, 1.0) < 4.5


@pytest.mark.parametrize("kind", ["dense", "own", "factored", "scored"])
def test_all_states_are_exact(kind, generator):
    unary, pairs = torch.randn(2, 8, 6, generator=generator).double(), pair_kinds(6, TREE, generator)[kind]
    tree = ts.PairwiseGraph(unary, TREE, pairs)
    small = tree.sketch(6, proposal=ts.Lookahead(2, neighbours=2), generator=generator)
    torch.testing.assert_close(small.log_partition(), tree.log_partition())
    # A sketch of a sketch: its states differ by variable, and have no neighbours.
    again = small.sketch(6, proposal=ts.Lookahead(2, neighbours=2), generator=generator)
    torch.testing.assert_close(again.log_partition(), tree.log_partition())


def test_pair_factors_are_as_edges(generator):
    unary, table = torch.randn(8, 30, generator=generator), torch.randn(7, 30, 30, generator=generator)
    graphs = ts.PairwiseGraph(unary, TREE, table), ts.FactorGraph(unary, [(torch.tensor(TREE), table)])
    one, two = (g.sketch(3, proposal=ts.Lookahead(4, neighbours=2), generator=generator.manual_seed(0)) for g in graphs)
    assert one.states.equal(two.states)
