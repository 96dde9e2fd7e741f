"""Sketches of graphs without loops: landmarks that see little, different graphs in a batch, and where it is hard.

Replicates are a batch of identical graphs. Estimates are divided by the truth, so that they scatter around one.
"""

import dataclasses
import math

import pytest
import torch

import tailsum as ts
from harness.graphs import EDGES
from harness.registry import sparse
from harness.statistics import off
from tailsum.graphs import graph_sweep

N = 5
PROPOSALS = {
    "uniform": ts.Uniform(),
    "local": ts.Local(),
    "lookahead": ts.Lookahead(8),
    "lookahead, static": ts.Lookahead(8, sequential=False),
}
FEW = {
    "1": ts.Lookahead(1),
    "1, static": ts.Lookahead(1, sequential=False),
    "2, no rounds": ts.Lookahead(2, rounds=0),
}
REPLICATES = 6000


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
@pytest.mark.parametrize("few", FEW)
def test_partition_of_a_triple_of_which_a_landmark_sees_a_half(few, order, generator):
    """Two joint states are possible, and the one landmark of a variable goes with one of them."""
    table = torch.full((2, 2, 2), -math.inf).double()
    table[0, 0, 0] = table[0, 1, 1] = 0.0
    many = ts.FactorGraph(torch.zeros(REPLICATES, 3, 2).double(), [(order, table)])
    whole = ts.FactorGraph(torch.zeros(3, 2).double(), [(order, table)])
    assert off(many.sketch(1, proposal=FEW[few], generator=generator), whole) < 4.5


@pytest.mark.parametrize("few", ["1", "1, static"])
@pytest.mark.parametrize("name", ["pairs-dense of each edge", "factors-triples"])
def test_states_that_are_ruled_out_are_noticed(name, few, generator, monkeypatch):
    """Were what no landmark reaches taken for forbidden, sums would be too low."""
    case = sparse(name, 0.4, 1)
    monkeypatch.setattr(graph_sweep, "fill_unreached", lambda sent: sent)
    proposal = dataclasses.replace(FEW[few], neighbours=0)  # which reach such states
    sketch = case.many(REPLICATES).sketch(2, proposal=proposal, generator=generator)
    assert off(sketch, case.model()) > 4.5


@pytest.mark.parametrize("proposal", PROPOSALS)
def test_partition_of_different_graphs_in_a_batch(proposal, generator):
    unary = torch.randn(3, 6, N).double()
    pairwise = 0.7 * torch.randn(3, 4, N, N).double()
    pairwise[1, :, 0, 1:] = -math.inf
    whole = ts.PairwiseGraph(unary, EDGES, pairwise)
    many = ts.PairwiseGraph(unary.expand(REPLICATES, -1, -1, -1), EDGES, pairwise)
    assert off(many.sketch(3, proposal=PROPOSALS[proposal], generator=generator), whole) < 4.5


@pytest.mark.parametrize("schedule", ["sweep", "flooding"])
def test_partition_by_either_schedule(schedule, generator):
    g = torch.Generator().manual_seed(1)
    unary, pairwise = (0.7 * torch.randn(*shape, N, generator=g).double() for shape in ((6,), (N,)))
    whole = ts.PairwiseGraph(unary, EDGES, pairwise, schedule=schedule)
    many = ts.PairwiseGraph(unary.expand(REPLICATES, -1, -1), EDGES, pairwise, schedule=schedule)
    assert off(many.sketch(2, proposal=ts.Lookahead(4), generator=generator), whole) < 4.5


def hard_pairs(replicates, seed):
    """A tree of ten variables and 150 states, whose neighbours matter more than their own scores."""
    g = torch.Generator().manual_seed(seed)
    unary = torch.randn(10, 150, generator=g).double()
    left, right = 1.5 * torch.randn(2, 150, 4, generator=g).double()
    edges = [(i, (i - 1) // 2) for i in range(1, 10)]
    return ts.PairwiseGraph(unary.expand(replicates, -1, -1), edges, ts.Factored(left, right))


def hard_triples(replicates, seed):
    g = torch.Generator().manual_seed(seed)
    unary = torch.randn(7, 24, generator=g).double()
    triples = 3 * torch.randn(3, 24, 24, 24, generator=g).double()
    scopes = torch.tensor([(0, 1, 2), (2, 3, 4), (5, 4, 6)])
    return ts.FactorGraph(unary.expand(replicates, -1, -1), [(scopes, triples)])


def rmse(model, k, proposal):
    found = model.sketch(k, proposal=proposal, generator=torch.Generator().manual_seed(0)).log_partition()
    return (found - model.log_partition()).square().mean().sqrt().item()


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("make", "k", "proposal", "least"),
    [(hard_pairs, 12, None, 3), (hard_triples, 6, None, 3), (hard_pairs, 12, ts.Lookahead(10), 2)],
)
def test_lookahead_beats_local(make, k, proposal, least, seed):
    """By default, with more landmarks than these graphs have states; and with few landmarks."""
    model = make(40, seed)
    assert least * rmse(model, k, proposal) < rmse(model, k, ts.Local())
