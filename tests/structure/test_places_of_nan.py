"""NaN is reported at its index in the tensor that the user gave, however the model stores it."""

import math
import re

import pytest
import torch

import tailsum as ts
from tailsum import DependencyTree, FactorGraph, LinearChain, PairwiseGraph, SemiMarkov

EDGES = torch.tensor([[0, 1], [1, 2]])
PAIR, PAIRS = torch.zeros(4, 4), torch.zeros(2, 4, 4)
NODES = torch.zeros(2, 3, 4)
ONES = [torch.zeros(2), torch.zeros(3)]

# The name in the message, the place of NaN, the last of its tensor, and the model made of it.
PLACES = {
    "chain": ("emission", (1, 2, 3), lambda x: LinearChain(x, PAIR)),
    "chain, lengths": ("emission", (2, 3), lambda x: LinearChain(x, PAIR, lengths=[3, 3])),
    "chain, factors": ("emission", (2, 1), lambda x: LinearChain(ts.Factored(x, torch.zeros(4, 2)), PAIR)),
    "chain, pairs": ("transition", (3, 3), lambda x: LinearChain(NODES, x)),
    "chain, pairs of steps": ("transition", (1, 3, 3), lambda x: LinearChain(NODES, x, lengths=[3, 2])),
    "segments": ("segment", (1, 1, 0, 3), lambda x: SemiMarkov(x, PAIR)),
    "segments, lengths": ("segment", (2, 0, 3), lambda x: SemiMarkov(x, PAIR, lengths=[3, 3])),
    "segments, pairs": ("transition", (3, 3), lambda x: SemiMarkov(NODES, x)),
    "segments, pairs of steps": ("transition", (0, 3, 3), lambda x: SemiMarkov(NODES, x, lengths=[2, 1])),
    "durations": ("segment.duration", (1, 3), lambda x: SemiMarkov(ts.Durations(NODES, x), PAIR)),
    "ctc": ("log_probs", (1, 4, 3), lambda x: ts.CTC(x, torch.tensor([[1, 2], [2, 1]]))),
    "match": ("match", (1, 2, 3), lambda x: ts.Alignment(x, torch.zeros(3), torch.zeros(4), lengths=[1, 3])),
    "delete": ("delete", (1, 2), lambda x: ts.Alignment(NODES, x, torch.zeros(4))),
    "delete by cell": ("delete", (2, 4), lambda x: ts.Alignment(NODES, x, torch.zeros(4))),
    "insert": ("insert", (3,), lambda x: ts.Alignment(NODES, torch.zeros(3), x, other_lengths=[4, 2])),
    "insert by cell": ("insert", (1, 3, 3), lambda x: ts.Alignment(NODES, torch.zeros(3), x)),
    "spans": ("span", (1, 2, 2, 3), ts.SpanTree),
    "root": ("root", (1,), lambda x: ts.PCFG(x, torch.zeros(2, 6, 6), NODES)),
    "rule": ("rule", (1, 5, 5), lambda x: ts.PCFG(torch.zeros(2), x, NODES)),
    "leaves": ("emission", (1, 2, 3), lambda x: ts.PCFG(torch.zeros(2), torch.zeros(2, 6, 6), x)),
    "arcs": ("arc", (1, 2, 2), DependencyTree),
    "unary": ("unary", (1, 2, 3), lambda x: PairwiseGraph(x, EDGES, PAIR)),
    "unary of factors": ("unary", (1, 2, 3), lambda x: FactorGraph(x, [((0, 1), PAIR)])),
    "shared unary": ("unary", (2, 3), lambda x: PairwiseGraph(x, EDGES, PAIRS.expand(5, 2, 4, 4))),
    "factored unary": ("unary", (2, 1), lambda x: PairwiseGraph(ts.Factored(x, torch.zeros(4, 2)), EDGES, PAIR)),
    "unary of a grid": ("unary", (1, 2, 3), lambda x: PairwiseGraph.grid(2, 3, x, PAIR)),
    "listed unary": ("unary[2]", (3,), lambda x: PairwiseGraph([*ONES, x], EDGES, [torch.zeros(2, 3), PAIRS[0, :3]])),
    "pairwise": ("pairwise", (1, 3, 3), lambda x: PairwiseGraph(NODES, EDGES, x)),
    "shared pairwise": ("pairwise", (3, 3), lambda x: PairwiseGraph(NODES, EDGES, x)),
    "listed pairwise": ("pairwise[0]", (1, 2), lambda x: PairwiseGraph(ONES, EDGES[:1], [x])),
    "factor": ("factors[0]'s scores", (3, 3, 3), lambda x: FactorGraph(NODES, [((0, 1, 2), x)])),
}


@pytest.mark.parametrize("case", PLACES)
def test_nan_is_where_it_was_given(case, unchecked):
    name, place, build = PLACES[case]
    scores = torch.zeros([i + 1 for i in place])
    build(scores)
    scores[place] = math.nan
    with pytest.raises(
        ValueError, match=re.escape(f"{name} must not hold NaN or +inf (-inf forbids): got one at {[*place]}") + "$"
    ):
        build(scores)


@pytest.mark.parametrize("case", ["match", "delete", "insert"])
def test_nan_in_the_padding_of_an_alignment_is_ignored(case):
    given = {"match": torch.zeros(2, 3, 4), "delete": torch.zeros(3), "insert": torch.zeros(4)}
    plain = ts.Alignment(**given, lengths=[2, 1], other_lengths=[3, 0]).log_partition()
    given[case] = given[case].index_fill(-1, torch.tensor(given[case].shape[-1] - 1), math.nan)
    assert torch.equal(ts.Alignment(**given, lengths=[2, 1], other_lengths=[3, 0]).log_partition(), plain)
