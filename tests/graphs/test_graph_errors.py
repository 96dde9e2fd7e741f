"""Bad input to graphs: a ValueError that names the argument, what it was and what was expected."""

import math

import networkx as nx
import pytest
import torch

import tailsum as ts
from harness.misuse import OPERATIONS, SKETCHES, fails, misused, with_value

zeros, tensor = torch.zeros, torch.tensor


UNARY, EDGES, PAIRWISE = zeros(2, 4, 3), [(0, 1), (1, 2), (2, 3)], zeros(3, 3)
RAGGED = [zeros(2), zeros(3), zeros(1), zeros(3)]
TABLES = [zeros(2, 3), zeros(3, 1), zeros(1, 3)]

WRONG_UNARY = [
    (None, "unary must be .*: got NoneType"),
    ("unary", "unary must be .*: got str"),
    (ts.Dense(zeros(4, 3)), "unary must be a tensor, Factored or a list of tensors: got Dense"),
    (zeros(3), r"unary must be \[\*batch, V, N\].*: got \[3\]"),
    (zeros(()), r"unary must be \[\*batch, V, N\].*: got \[\]"),
    (zeros(0, 3), r"unary must have at least one variable and one state: got \[0"),
    (zeros(4, 0), r"unary must have at least one variable and one state: got \[4\b.*\b0\b"),
    (UNARY.long(), "unary must be floating-point: got torch.int64"),
    (UNARY.bool(), "unary must be floating-point: got torch.bool"),
    (UNARY.to(torch.complex64), "unary must be floating-point: got torch.complex64"),
    (with_value(UNARY, math.nan), r"unary must not hold NaN or \+inf .* got one at \[1, 3, 2\]"),
    (with_value(UNARY, math.inf), r"unary must not hold NaN or \+inf"),
    (ts.Factored(with_value(zeros(4, 2), math.nan), zeros(3, 2)), r"unary must not hold NaN or \+inf"),
    (ts.Factored(zeros(4, 2), with_value(zeros(3, 2), -math.inf)), "unary must have finite factors: got -inf"),
    ([], "unary must have at least one variable: got an empty list"),
    ([zeros(3), zeros(0)], r"unary\[1\] must be \[\*batch, N_v\] with at least one state: got \[0\]"),
    ([zeros(3), zeros(())], r"unary\[1\] must be \[\*batch, N_v\].*: got \[\]"),
    ([zeros(3), zeros(2, 3), zeros(5, 2)], r"unary.* batch shape.*\[5\]|unary.*broadcast"),
    ([zeros(3), with_value(zeros(2), math.nan)], r"unary\[1\] must not hold NaN or \+inf"),
    ([zeros(3), with_value(zeros(2), math.inf)], r"unary\[1\] must not hold NaN or \+inf"),
    ([zeros(3), None], r"unary\[1\] must be .*: got NoneType|unary"),
    ([zeros(3), "ab"], r"unary\[1\] must be .*: got str|unary"),
    ([zeros(3), zeros(3).to(torch.complex64)], "unary.* must be floating-point: got torch.complex64"),
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("unary", "words"), WRONG_UNARY)
def test_unary(unary, words):
    fails(lambda: ts.PairwiseGraph(unary, [], zeros(3, 3)), words)
    fails(lambda: ts.FactorGraph(unary, []), words)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("edges", "words"),
    [
        ([(0, 1), (1, 4)], r"edges must join variables 0 to 3, as unary has: got \[1, 4\] at 1"),
        ([(0, 1), (-1, 2)], r"edges must join variables 0 to 3, as unary has: got \[-1, 2\] at 1"),
        ([(0, 1), (2, 2)], r"edges must join different variables: got \[2, 2\] at 1"),
        ([(0, 1), (1, 2), (0, 1)], r"edges must be given once each, .*: got \[0, 1\] more than once"),
        ([(0, 1), (1, 2), (2, 1)], r"edges must be given once each, .*: got \[1, 2\] more than once"),
        ([0, 1], r"edges must be \[E, 2\]: got \[2\]"),
        ([(0, 1, 2)], r"edges must be \[E, 2\]: got \[1, 3\]"),
        ([[(0, 1)]], r"edges must be \[E, 2\]: got \[1, 1, 2\]"),
        (tensor(3), r"edges must be \[E, 2\]: got \[\]"),
        (zeros(0, 3).long(), r"edges must be \[E, 2\]: got \[0, 3\]"),
        (tensor([[0.0, 1.0]]), "edges must be integers: got torch.float32"),
        ([(0.0, 1.0)], "edges must be integers: got torch.float32"),
        (tensor([[True, False]]), "edges must be integers: got torch.bool"),
        ([(0, 1), (1,)], r"edges must be integers, in a tensor or lists of equal length: got \[\(0, 1\), \(1,\)\]"),
        ([("a", "b")], "edges must be"),
        (None, "edges must be .*: got NoneType"),
        (3, r"edges must be \[E, 2\]: got \[\]"),
    ],
)
def test_edges(edges, words):
    fails(lambda: ts.PairwiseGraph(UNARY, edges, PAIRWISE), words)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("pairwise", "words"),
    [
        (None, "pairwise must be .*: got NoneType"),
        ("pairwise", "pairwise must be .*: got str"),
        (3.0, "pairwise must be .*: got float"),
        (zeros(3), r"pairwise must be .*: got \[3\]"),
        (zeros(()), r"pairwise must be .*: got \[\]"),
        (zeros(2, 3), "pairwise must join 3 states with 3, as unary has: got 2 with 3"),
        (zeros(3, 4), "pairwise must join 3 states with 3, as unary has: got 3 with 4"),
        (zeros(3, 2, 2), "pairwise must join 3 states with 3, as unary has: got 2 with 2"),
        (ts.Factored(zeros(4, 2), zeros(3, 2)), "pairwise must join 3 states with 3, as unary has: got 4 with 3"),
        (ts.Scored(lambda i, j: i * 0.0, 3, 2), "pairwise must join 3 states with 3, as unary has: got 3 with 2"),
        (zeros(4, 3, 3), "pairwise must have 1 or 3 edges in dimension -3: got 4"),
        (zeros(2, 2, 3, 3), "pairwise must have 1 or 3 edges in dimension -3: got 2"),
        (zeros(5, 3, 3, 3), r"pairwise has batch shape \[5\], which does not match unary's \[2\]"),
        (ts.Factored(zeros(5, 1, 3, 2), zeros(3, 2)), r"pairwise has batch shape \[5\].* unary's \[2\]"),
        (PAIRWISE.long(), "pairwise must be floating-point: got torch.int64"),
        (with_value(PAIRWISE, math.nan), r"pairwise must not hold NaN or \+inf .* got one at \[2, 2\]"),
        (with_value(PAIRWISE, math.inf), r"pairwise must not hold NaN or \+inf .* got one at \[2, 2\]"),
        (ts.Factored(with_value(zeros(3, 2), -math.inf), zeros(3, 2)), "pairwise must have finite factors: got -inf"),
        (PAIRWISE.to("meta"), "pairwise must be on cpu, where the other scores are: got meta"),
        ([zeros(3, 3)], "pairwise must have one table for each of the 3 edges: got 1"),
        ([zeros(3, 3)] * 4, "pairwise must have one table for each of the 3 edges: got 4"),
        ([], "pairwise must have one table for each of the 3 edges: got 0"),
        ([zeros(3, 3), zeros(3, 3), zeros(3)], r"pairwise\[2\] must be .*: got \[3\]"),
        ([zeros(3, 3), zeros(3, 4), zeros(3, 3)], r"pairwise\[1\] must be .*: got \[3, 4\]"),
        ([zeros(3, 3), zeros(2, 3), zeros(3, 3)], r"pairwise\[1\] must be .*: got \[2, 3\]"),
        ([zeros(3, 3), zeros(3, 3), zeros(3, 0)], r"pairwise\[2\] must be .*: got \[3, 0\]"),
        ([zeros(3, 3), None, zeros(3, 3)], "pairwise"),
        ([zeros(3, 3), zeros(2, 3, 3), zeros(5, 3, 3)], r"pairwise.* batch shape|pairwise.*broadcast"),
        ([zeros(3, 3), zeros(5, 3, 3), zeros(3, 3)], r"pairwise has batch shape \[5\].* unary's \[2\]"),
        ([zeros(3, 3), with_value(PAIRWISE, math.nan), zeros(3, 3)], r"pairwise\[1\] must not hold NaN or \+inf"),
    ],
)
def test_pairwise(pairwise, words):
    fails(lambda: ts.PairwiseGraph(UNARY, EDGES, pairwise), words)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("e", range(3))
@pytest.mark.parametrize("change", [(1, 0), (0, 1), (-1, 0), (0, -1)])
def test_ragged_tables_that_do_not_have_the_states_of_their_variables(e, change):
    """Larger and smaller: neither may be cut or filled up."""
    sizes = [size + by for size, by in zip(TABLES[e].shape, change, strict=True)]
    tables = [zeros(sizes) if i == e else table for i, table in enumerate(TABLES)]
    if sizes != list(TABLES[e].shape):
        fails(
            lambda: ts.PairwiseGraph(RAGGED, EDGES, tables),
            rf"pairwise\[{e}\] must be .*: got \[{sizes[0]}, {sizes[1]}\]",
        )
        factors = list(zip(EDGES, tables, strict=True))
        fails(lambda: ts.FactorGraph(RAGGED, factors), rf"factors\[{e}\].*: got \[.*{sizes[0]}, {sizes[1]}\]")


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("shape", [(2, 2, 1), (3, 3, 1), (2, 3, 2), (2, 1, 3), (3, 3, 3)])
def test_ragged_factors_that_do_not_have_the_states_of_their_variables(shape):
    fails(lambda: ts.FactorGraph(RAGGED, [((0, 1, 2), zeros(shape))]), r"factors\[0\]")


@pytest.mark.usefixtures("unchecked")
def test_ragged_tables_exchanged():
    fails(
        lambda: ts.PairwiseGraph(RAGGED, EDGES, [TABLES[0].mT, *TABLES[1:]]), r"pairwise\[0\] must be .*: got \[3, 2\]"
    )


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"iterations": 0}, "iterations must be a whole number of at least 1: got 0"),
        ({"iterations": -3}, "iterations must be a whole number of at least 1: got -3"),
        ({"iterations": 2.5}, "iterations must be a whole number of at least 1: got 2.5"),
        ({"iterations": True}, "iterations must be a whole number of at least 1: got True"),
        ({"iterations": None}, "iterations must be a whole number of at least 1: got None"),
        ({"damping": 1}, "damping must lie between 0 and 1, 1 excluded: got 1"),
        ({"damping": 1.5}, "damping must lie between 0 and 1, 1 excluded: got 1.5"),
        ({"damping": -0.1}, "damping must lie between 0 and 1, 1 excluded: got -0.1"),
        ({"damping": math.nan}, "damping must lie between 0 and 1, 1 excluded: got nan"),
        ({"tolerance": -1e-9}, "tolerance must be at least 0: got -1e-09"),
        ({"tolerance": math.nan}, "tolerance must be at least 0: got nan"),
        ({"schedule": "random"}, 'schedule must be "sweep" or "flooding": got \'random\''),
        ({"schedule": None}, 'schedule must be "sweep" or "flooding": got None'),
        ({"gradient": "none"}, 'gradient must be "implicit" or "unrolled": got \'none\''),
        ({"method": "best"}, 'method must be "auto", "exact" or "propagation": got \'best\''),
        ({"method": None}, 'method must be "auto", "exact" or "propagation": got None'),
        ({"gradient": True}, 'gradient must be "implicit" or "unrolled": got True'),
    ],
)
def test_how_messages_are_passed(how, words):
    fails(lambda: ts.PairwiseGraph(UNARY, EDGES, PAIRWISE, **how), words)
    fails(lambda: ts.FactorGraph(UNARY, [((0, 1), PAIRWISE)], **how), words)
    fails(lambda: ts.PairwiseGraph.grid(2, 2, zeros(4, 3), PAIRWISE, **how), words)
    fails(lambda: ts.PairwiseGraph.from_networkx(nx.path_graph(4), UNARY, PAIRWISE, **how), words)


TRIPLE = zeros(3, 3, 3)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("factors", "words"),
    [
        (None, "factors must be .*: got NoneType"),
        (3, "factors must be .*: got int"),
        ([TRIPLE], r"factors\[0\] must be a pair \(variables, scores\): got Tensor"),
        ([((0, 1),)], r"factors\[0\] must be a pair \(variables, scores\): got tuple"),
        ([((0, 1), PAIRWISE, 1)], r"factors\[0\] must be a pair \(variables, scores\): got tuple"),
        ([((0, 1), PAIRWISE), None], r"factors\[1\] must be a pair \(variables, scores\): got NoneType"),
        ([((0, 1, 4), TRIPLE)], r"factors\[0\] must be over variables 0 to 3, as unary has: got \[0, 1, 4\]"),
        ([((0, 1, -1), TRIPLE)], r"factors\[0\] must be over variables 0 to 3, as unary has: got \[0, 1, -1\]"),
        ([((0, 1, 0), TRIPLE)], r"factors\[0\] must be over different variables: got \[0, 1, 0\]"),
        ([((), zeros(()))], r"factors\[0\]'s variables must be .*"),
        (([([], zeros(()))]), r"factors\[0\]'s variables must be .*"),
        ([((0.0, 1.0), PAIRWISE)], r"factors\[0\]'s variables must be integers: got torch.float32"),
        ([((True, False), PAIRWISE)], r"factors\[0\]'s variables must be integers: got torch.bool"),
        ([(("a", "b"), PAIRWISE)], r"factors\[0\]'s variables must be"),
        ([(None, PAIRWISE)], r"factors\[0\]'s variables must be"),
        ([(((0, 1), (1,)), PAIRWISE)], r"factors\[0\]'s variables must be"),
        ([(2, zeros(3))], r"factors\[0\]'s variables must be \[r\] or \[F, r\], r at least 1: got \[\]"),
        ([([[[0, 1]]], PAIRWISE)], r"factors\[0\]'s variables must be .*: got \[1, 1, 2\]"),
        ([((0, 1), None)], r"factors\[0\]'s scores must have a dimension for each of its 2 variables: got NoneType"),
        ([((0, 1), [[0.0]])], r"factors\[0\]'s scores must have .*: got list"),
        ([((0, 1), zeros(3))], r"factors\[0\]'s scores must have .* 2 variables: got \[3\]"),
        ([((0, 1, 2), PAIRWISE)], r"factors\[0\]'s scores must have .* 3 variables: got \[3, 3\]"),
        (
            [((0, 1), zeros(3, 4))],
            r"factors\[0\]'s scores must be of \[3, 3\] states, as the variables \[0, 1\] have: got \[3, 4\]",
        ),
        (
            [((0, 1), zeros(3, 0))],
            r"factors\[0\]'s scores must be of \[3, 3\] states, as the variables \[0, 1\] have: got \[3, 0\]",
        ),
        ([((0, 1), PAIRWISE.long())], r"factors\[0\]'s scores must be floating-point: got torch.int64"),
        ([((0, 1), with_value(PAIRWISE, math.nan))], r"factors\[0\]'s scores must not hold NaN .* at \[2, 2\]"),
        ([((0, 1), with_value(PAIRWISE, math.inf))], r"factors\[0\]'s scores must not hold NaN .* at \[2, 2\]"),
        ([((0, 1), PAIRWISE.to("meta"))], r"factors\[0\]'s scores must be on cpu, .*: got meta"),
        ([((0, 1), zeros(5, 3, 3))], r"factors\[0\] has batch shape \[5\], which does not match .* \[2\]"),
        (
            [((0, 1), zeros(4, 1, 3, 3)), ((1, 2), zeros(5, 1, 3, 3))],
            r"factors\[1\] has batch shape \[5, 1\], which does not match .* \[4, 2\]",
        ),
        ([([(0, 1), (1, 2)], zeros(3, 3, 3))], r"factors\[0\]'s scores must be of 1 or 2 factors in dimension -3: got"),
        ([([(0, 1), (1, 0)], PAIRWISE)], r"factors\[0\] must be the only one over \[0, 1\], .*: got two"),
        ([((0, 1), PAIRWISE), ((1, 0), PAIRWISE)], r"factors\[1\] must be the only one over \[0, 1\], .*: got two"),
        ([((2,), zeros(3)), ((2,), zeros(3))], r"factors\[1\] must be the only one over \[2\], .*: got two"),
        ([((0, 1, 2), TRIPLE), ((2, 0, 1), TRIPLE)], r"factors\[1\] must be the only one over \[0, 1, 2\]"),
        ([([(0, 1), (1, 4)], PAIRWISE)], r"factors\[0\] must be over variables 0 to 3, as unary has: got \[1, 4\]"),
    ],
)
def test_factors(factors, words):
    fails(lambda: ts.FactorGraph(UNARY, factors), words)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("height", "width", "unary", "words"),
    [
        (2, 3, zeros(5, 3), r"unary must be \[\*batch, 2, 3, N\], as height and width say: got \[5, 3\]"),
        (2, 3, zeros(3, 2, 3), r"unary must be \[\*batch, 2, 3, N\], as height and width say: got \[3, 2, 3\]"),
        (2, 3, zeros(3), r"unary must be \[\*batch, 2, 3, N\].*: got \[3\]"),
        (2, 3, zeros(()), r"unary must be \[\*batch, 2, 3, N\].*: got \[\]"),
        (2, 3, ts.Factored(zeros(4, 2), zeros(3, 2)), r"unary must be \[\*batch, 2, 3, N\].*: got \[4, 2\]"),
        (0, 3, zeros(0, 3, 3), "height must be .*: got 0|at least one variable"),
        (3, 0, zeros(0, 3), "width must be .*: got 0|at least one variable"),
        (-2, -3, zeros(6, 3), "height must be a whole number of at least 1: got -2"),
        (-2, 3, zeros(6, 3), r"height must be .*: got -2|unary must be \[\*batch, -2, 3, N\]"),
        (2.0, 3, zeros(6, 3), "height must be a whole number of at least 1: got 2.0"),
        (2, 3.0, zeros(6, 3), "width must be a whole number of at least 1: got 3.0"),
        (2, 3, None, "unary must be .*: got NoneType"),
        (2, 3, "x", "unary must be .*: got str"),
    ],
)
def test_grid(height, width, unary, words):
    fails(lambda: ts.PairwiseGraph.grid(height, width, unary, PAIRWISE), words)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("size", "words"),
    [
        ((0, 3), "height must be a whole number of at least 1: got 0"),
        ((3, 0), "width must be a whole number of at least 1: got 0"),
        ((-1, 3), "height must be a whole number of at least 1: got -1"),
        ((-2, -2), "height must be a whole number of at least 1: got -2"),
        ((2, 1.5), "width must be a whole number of at least 1: got 1.5"),
    ],
)
def test_sizes_of_grid_edges(size, words):
    fails(lambda: ts.grid_edges(*size), words)


def attributed(graph, n=3):
    """A graph with scores at its nodes and edges."""
    for node in graph.nodes:
        graph.nodes[node]["unary"] = zeros(n)
    for edge in graph.edges:
        graph.edges[edge]["pairwise"] = zeros(n, n)
    return graph


def without(graph, *, node=None, edge=None):
    if node is not None:
        del graph.nodes[node]["unary"]
    if edge is not None:
        del graph.edges[edge]["pairwise"]
    return graph


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("graph", "how", "words"),
    [
        (without(attributed(nx.path_graph(4)), node=2), {}, r"node 2 must have an attribute 'unary': got \[\]"),
        (
            without(attributed(nx.path_graph(4)), edge=(1, 2)),
            {},
            r"edge \(1, 2\) must have an attribute 'pairwise': got \[\]",
        ),
        (
            attributed(nx.path_graph(4)),
            {"unary": "score"},
            r"node 0 must have an attribute 'score': got \['unary'\]",
        ),
        (
            attributed(nx.path_graph(4)),
            {"pairwise": "score"},
            r"edge \(0, 1\) must have an attribute 'score': got \['pairwise'\]",
        ),
        (attributed(nx.Graph([(0, 1), (1, 1)])), {}, r"edges must join different variables: got \[1, 1\]"),
        (attributed(nx.MultiGraph([(0, 1), (0, 1)])), {}, r"edges must be given once each.*: got \[0, 1\]"),
        (attributed(nx.DiGraph([(0, 1), (1, 0)])), {}, r"edges must be given once each.*: got \[0, 1\]"),
        (nx.Graph(), {}, "unary must have at least one variable: got an empty list"),
        (nx.path_graph(3), {"unary": zeros(4, 2), "pairwise": zeros(2, 2)}, "unary"),
        (nx.path_graph(5), {"unary": zeros(4, 2), "pairwise": zeros(2, 2)}, "edges must join|unary"),
        (nx.path_graph(4), {"unary": zeros(4, 2), "pairwise": zeros(2, 3)}, "pairwise must join 2 states with 2"),
    ],
)
def test_from_networkx(graph, how, words):
    fails(lambda: ts.PairwiseGraph.from_networkx(graph, **how), words)


@pytest.mark.usefixtures("unchecked")
def test_from_networkx_with_wrong_attributes():
    graph = attributed(nx.path_graph(3))
    graph.edges[1, 2]["pairwise"] = zeros(3, 2)
    fails(lambda: ts.PairwiseGraph.from_networkx(graph), r"pairwise\[1\] must be .*: got \[3, 2\]")
    graph.edges[1, 2]["pairwise"] = [[math.nan] * 3] * 3
    fails(lambda: ts.PairwiseGraph.from_networkx(graph), r"pairwise' of edge \(1, 2\) must not hold NaN or \+inf")
    graph.edges[1, 2]["pairwise"] = "x"
    fails(lambda: ts.PairwiseGraph.from_networkx(graph), "edge|pairwise")
    graph.nodes[1]["unary"] = None
    fails(lambda: ts.PairwiseGraph.from_networkx(graph), "node 1|unary")


# Use.


def pairs():
    return ts.PairwiseGraph(UNARY, EDGES, PAIRWISE)


def triples():
    return ts.FactorGraph(UNARY, [((0, 1, 2), TRIPLE), ((2, 3), PAIRWISE)])


def loop():
    return ts.PairwiseGraph(UNARY, [*EDGES, (3, 0)], PAIRWISE)


BOTH = pytest.mark.parametrize("make", [pairs, triples, loop])


@pytest.mark.usefixtures("unchecked")
@BOTH
@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda m: m.score(zeros(2, 3).long()), r"states must be \[..., V\] with V = 4: got \[2, 3\]"),
        (lambda m: m.score(tensor(0)), r"states must be \[..., V\] with V = 4: got \[\]"),
        (
            lambda m: m.score(zeros(3, 4).long()),
            r"states has batch shape \[3\], which does not match the model's \[2\]",
        ),
        (lambda m: m.score(zeros(2, 4)), "states must be integers: got torch.float32"),
        (lambda m: m.score(zeros(2, 4).bool()), "states must be integers: got torch.bool"),
        (lambda m: m.score(tensor([0, 1, 3, 0])), "states must lie between 0 and N-1 = 2: got one outside"),
        (lambda m: m.score(tensor([0, -1, 1, 0])), "states must lie between 0 and N-1 = 2: got one outside"),
        (lambda m: m.score(tensor([-2, -2, -2, -2])), "states must lie between 0 and N-1 = 2: got one outside"),
        (lambda m: m.log_prob(tensor([0, 1, 3, 0])), "states must lie between 0 and N-1 = 2: got one outside"),
        (lambda m: m.sketch(2, proposal=ts.Global()), "the global proposal needs state embeddings: .*Factored unary"),
        (lambda m: m.sketch(2, proposal=ts.LocalGlobal()), "the global proposal needs state embeddings"),
        (lambda m: m.kl(3), "other must be a .*Graph: got int"),
        (lambda m: m.kl(ts.LinearChain(UNARY, PAIRWISE)), "other must be a .*Graph: got LinearChain"),
        (lambda m: m.sketch(2).score(tensor([0, 1, 3, 0])), "states must lie between 0 and N-1 = 2"),
    ],
)
def test_use(make, use, words):
    fails(lambda: use(make()), words)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("use", "words"), [*OPERATIONS, *SKETCHES])
def test_use_of_a_graph_with_loops(use, words):
    """As of all structures; a graph with loops is no case, because its sums are approximations."""
    misused(loop(), use, words)


@pytest.mark.usefixtures("unchecked")
def test_values_to_scatter_over_a_graph_with_loops():
    fails(lambda: loop().sketch(2).scatter(zeros(2, 4, 3)), r"values must be \[..., 4, 2\]: got \[2, 4, 3\]")
    fails(lambda: loop().kl(loop().sketch(2)), "other must have the same .*states")


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "other",
    [
        ts.PairwiseGraph(UNARY, [(0, 1), (1, 2), (1, 3)], PAIRWISE),
        ts.PairwiseGraph(UNARY, [(0, 1), (1, 2), (3, 2)], PAIRWISE),  # the same, but for a direction
        ts.PairwiseGraph(UNARY, EDGES[:2], PAIRWISE),
        ts.PairwiseGraph(zeros(2, 5, 3), EDGES, PAIRWISE),
        ts.PairwiseGraph(zeros(2, 4, 2), EDGES, zeros(2, 2)),
    ],
)
@pytest.mark.parametrize("use", ["kl", "cross_entropy"])
def test_divergence_from_another_graph(other, use):
    fails(lambda: getattr(pairs(), use)(other), "other must have the same .*: got PairwiseGraph")


@pytest.mark.usefixtures("unchecked")
def test_divergence_from_other_factors_or_a_larger_batch():
    other = ts.FactorGraph(UNARY, [((0, 2, 1), TRIPLE), ((2, 3), PAIRWISE)])
    fails(lambda: triples().kl(other), "other must have the same .*: got FactorGraph")
    fails(lambda: triples().kl(pairs()), "other must be a FactorGraph: got PairwiseGraph")
    large = ts.PairwiseGraph(zeros(3, 2, 4, 3), EDGES, PAIRWISE)
    fails(lambda: pairs().kl(large), r"other must have a batch shape within \[2\]: got \[3, 2\]")
    odd = ts.PairwiseGraph(zeros(5, 4, 3), EDGES, PAIRWISE)
    fails(lambda: pairs().kl(odd), r"other has batch shape \[5\], which does not match this model's \[2\]")


@pytest.mark.usefixtures("unchecked")
def test_no_configuration_scores_minus_infinity():
    assert pairs().score(torch.full((2, 4), -1)).tolist() == [-math.inf] * 2
    assert triples().log_prob(torch.full((4,), -1)).tolist() == [-math.inf] * 2
