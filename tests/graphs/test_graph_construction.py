"""Ways to make a graph: grids, networkx, edges and factors in all forms; and how graphs are shown."""

import networkx as nx
import numpy as np
import pytest
import torch

import tailsum as ts

zeros, tensor = torch.zeros, torch.tensor

UNARY, EDGES, PAIRWISE = zeros(2, 4, 3), [(0, 1), (1, 2), (2, 3)], zeros(3, 3)
RAGGED = [zeros(2), zeros(3), zeros(1), zeros(3)]
TABLES = [zeros(2, 3), zeros(3, 1), zeros(1, 3)]
TRIPLE = zeros(3, 3, 3)


def attributed(graph, n=3):
    """A graph with scores at its nodes and edges."""
    for node in graph.nodes:
        graph.nodes[node]["unary"] = zeros(n)
    for edge in graph.edges:
        graph.edges[edge]["pairwise"] = zeros(n, n)
    return graph


def pairs():
    return ts.PairwiseGraph(UNARY, EDGES, PAIRWISE)


def triples():
    return ts.FactorGraph(UNARY, [((0, 1, 2), TRIPLE), ((2, 3), PAIRWISE)])


def loop():
    return ts.PairwiseGraph(UNARY, [*EDGES, (3, 0)], PAIRWISE)


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 4), (4, 1), (2, 2), (3, 4), (5, 2)])
def test_grid_edges_equal_explicit_loops(height, width):
    right = [[i * width + j, i * width + j + 1] for i in range(height) for j in range(width - 1)]
    down = [[i * width + j, (i + 1) * width + j] for i in range(height - 1) for j in range(width)]
    edges = ts.grid_edges(height, width)
    assert edges.shape == (len(right + down), 2)
    assert edges.dtype == torch.long
    assert edges.tolist() == right + down


def same(one, other):
    """The same graph, by the score of every configuration tried and by the log-partition."""
    assert one.n_states == other.n_states
    assert torch.equal(one.edges, other.edges)
    states = torch.stack([torch.randint(int(row.isfinite().sum()), (20,)) for row in other.node_scores()], -1)
    for found, expected in (
        (one.score(states), other.score(states)),
        (one.log_partition(), other.log_partition()),
    ):
        torch.testing.assert_close(found, expected, check_dtype=False, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("flat", [False, True])
def test_grid_equals_the_graph_of_its_edges(flat):
    unary, pairwise = torch.randn(2, 3, 4), torch.randn(7, 4, 4)
    grid = ts.PairwiseGraph.grid(2, 3, unary.flatten(0, 1) if flat else unary, pairwise)
    direct = ts.PairwiseGraph(unary.reshape(6, 4), ts.grid_edges(2, 3), pairwise)
    same(grid, direct)
    assert not grid.is_forest


def test_grid_in_a_batch_and_by_factors():
    unary, pairwise = torch.randn(5, 2, 3, 4), torch.randn(4, 4)
    grid = ts.PairwiseGraph.grid(2, 3, unary, pairwise, damping=0.1)
    assert grid.batch_shape == (5,)
    assert grid.damping == 0.1
    flat = ts.PairwiseGraph.grid(2, 3, unary.flatten(1, 2), pairwise, damping=0.1)
    torch.testing.assert_close(grid.log_partition(), flat.log_partition())
    context, states = torch.randn(6, 2), torch.randn(4, 2)
    factored = ts.PairwiseGraph.grid(2, 3, ts.Factored(context, states), pairwise)
    table = ts.PairwiseGraph.grid(2, 3, context @ states.mT, pairwise)
    torch.testing.assert_close(factored.log_partition(), table.log_partition())


def test_a_grid_of_one_row_is_a_chain():
    unary, pairwise = torch.randn(4, 3).double(), torch.randn(3, 3).double()
    chain = ts.LinearChain(unary, pairwise)
    for size in ((1, 4), (4, 1)):
        grid = ts.PairwiseGraph.grid(*size, unary, pairwise)
        assert grid.is_forest
        torch.testing.assert_close(grid.log_partition(), chain.log_partition())


FORMS = {"tensors": lambda x: x, "arrays": lambda x: x.numpy(), "lists": lambda x: x.tolist()}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", [nx.Graph, nx.DiGraph, nx.MultiGraph])
@pytest.mark.parametrize("sizes", [(3, 3, 3, 3), (2, 3, 1, 4)])
def test_from_networkx_equals_the_direct_construction(kind, form, sizes):
    """Nodes and edges in their own order, whatever their names."""
    names = ["c", (1, 2), 7, "a"]
    unary = [torch.randn(size) for size in sizes]
    graph = kind()
    for name, row in zip(names, unary, strict=True):
        graph.add_node(name, unary=FORMS[form](row), colour="red")
    graph.add_edges_from([(names[0], names[1]), (names[3], names[1]), (names[2], names[3])])
    edges = [(names.index(u), names.index(v)) for u, v in graph.edges()]  # undirected ones may be turned round
    pairwise = [torch.randn(sizes[u], sizes[v]) for u, v in edges]
    for edge, table in zip(graph.edges, pairwise, strict=True):
        graph.edges[edge]["pairwise"] = FORMS[form](table)
    same(ts.PairwiseGraph.from_networkx(graph), ts.PairwiseGraph(unary, edges, pairwise))


def test_from_networkx_with_scores_for_all():
    unary, pairwise = torch.randn(5, 3), torch.randn(3, 3)
    graph = nx.cycle_graph(5)
    same(
        ts.PairwiseGraph.from_networkx(graph, unary, pairwise, iterations=200),
        ts.PairwiseGraph(unary, list(graph.edges), pairwise, iterations=200),
    )


def test_from_networkx_by_attributes_of_other_names():
    graph = nx.DiGraph()
    graph.add_node("x", field=np.array([1, 2]))
    graph.add_node("y", field=np.array([0.5, 0.0], dtype=np.float32))
    graph.add_edge("y", "x", coupling=[[0, 1], [2, 3]])
    found = ts.PairwiseGraph.from_networkx(graph, "field", "coupling")
    direct = ts.PairwiseGraph(tensor([[1.0, 2.0], [0.5, 0.0]]), [(1, 0)], tensor([[0.0, 1.0], [2.0, 3.0]]))
    same(found, direct)
    assert found.dtype == torch.float32


def test_from_networkx_without_edges():
    graph = attributed(nx.empty_graph(3), 2)
    torch.testing.assert_close(ts.PairwiseGraph.from_networkx(graph).log_partition(), tensor(8.0).log())


def test_edges_as_tensors_lists_and_tuples():
    unary, pairwise = torch.randn(4, 3), torch.randn(3, 3, 3)
    first = ts.PairwiseGraph(unary, EDGES, pairwise)
    for edges in (tensor(EDGES), tensor(EDGES, dtype=torch.int32), [list(e) for e in EDGES], tuple(EDGES)):
        same(ts.PairwiseGraph(unary, edges, pairwise), first)


def test_factors_in_all_forms():
    unary, pairwise, triple = torch.randn(4, 3), torch.randn(2, 3, 3), torch.randn(3, 3, 3)
    one_by_one = ts.FactorGraph(unary, [((0, 1), pairwise[0]), ((1, 2), pairwise[1]), ((3, 2, 0), triple)])
    together = ts.FactorGraph(unary, [(tensor([[0, 1], [1, 2]]), pairwise), ([[3, 2, 0]], triple)])
    states = torch.randint(3, (20, 4))
    torch.testing.assert_close(one_by_one.score(states), together.score(states))


def test_factors_over_one_variable_are_added_to_its_scores():
    unary, more, pairwise = torch.randn(4, 3), torch.randn(2, 3), torch.randn(3, 3)
    found = ts.FactorGraph(unary, [((2,), more[0]), ((1, 2), pairwise), ([[0], [3]], more)])
    added = unary.clone()
    added[2] += more[0]
    added[0] += more[0]
    added[3] += more[1]
    torch.testing.assert_close(found.log_partition(), ts.FactorGraph(added, [((1, 2), pairwise)]).log_partition())


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (pairs, "PairwiseGraph(batch=[2], V=4, factors=3, N=3, forest)"),
        (loop, "PairwiseGraph(batch=[2], V=4, factors=4, N=3, with loops, exact)"),
        (triples, "FactorGraph(batch=[2], V=4, factors=2, N=3, forest)"),
        (lambda: pairs().sketch(2), "PairwiseGraph(batch=[2], V=4, factors=3, N=2 of 3, forest)"),
        (lambda: triples().sketch(1), "FactorGraph(batch=[2], V=4, factors=2, N=1 of 3, forest)"),
        (
            lambda: ts.PairwiseGraph.grid(2, 2, zeros(4, 5), zeros(5, 5)),
            "PairwiseGraph(batch=[], V=4, factors=4, N=5, with loops, exact)",
        ),
        (lambda: ts.PairwiseGraph(RAGGED, EDGES, TABLES), "PairwiseGraph(batch=[], V=4, factors=3, N=3, forest)"),
        (lambda: ts.PairwiseGraph(UNARY, [], PAIRWISE), "PairwiseGraph(batch=[2], V=4, factors=0, N=3, forest)"),
    ],
)
def test_repr(model, text):
    assert repr(model()) == text
