"""Best trees of grammars of low rank, found by bounds, and trees of least expected risk, against enumeration."""

import math

import pytest
import torch

import tailsum as ts
from harness.agree import close
from harness.registry import made, possible, small
from tailsum.numerics.memory import PeakMemory
from tailsum.trees.rules import best_pairs


def rule_scores(head, left, right):
    return (head[:, :, None, None] + left[:, None, :, None] + right[:, None, None]).logsumexp(-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["plain", "peaked", "forbidden", "far apart", "own"])
def test_best_pairs_equal_the_maximum_over_a_table(kind, dtype, monkeypatch, generator):
    monkeypatch.setattr(best_pairs, "FIRST", 4)
    groups = 2 if kind == "own" else 1
    head, left, right = (
        torch.randn(g, n, 5, generator=generator, dtype=dtype) for g, n in ((groups, 7), (1, 9), (1, 6))
    )
    pairs = torch.randn(groups, 3, 54, generator=generator, dtype=dtype) * (10 if kind == "peaked" else 1)
    if kind == "forbidden":
        head[:, 2], left[:, :4, 1:], pairs[:, 1], pairs[:, 2, 3:] = (-math.inf,) * 4
    if kind == "far apart":  # products underflow
        head[:, :, 1:] -= 300
        left[:, 3:, 0] -= 500
    found = best_pairs.best_pairs(pairs, head, left, right)
    table = torch.cat([rule_scores(h[None], left, right) for h in head]).flatten(2)
    close(found, (pairs[:, :, None] + table[:, None]).amax(-1), rtol=1e-5, atol=1e-5)


def test_pairs_are_scored_once(monkeypatch, generator):
    """In the order of their bounds, and those of a head that needs no more of them not at all."""
    scored, score = [], best_pairs._Search._scored

    def watched(search, heads, some, own):
        scored.append((len(heads), some))
        return score(search, heads, some, own)

    monkeypatch.setattr(best_pairs, "FIRST", 4)
    monkeypatch.setattr(best_pairs._Search, "_scored", watched)
    head, left, right = (torch.randn(1, n, 5, generator=generator) for n in (7, 9, 6))
    best_pairs.best_pairs(torch.randn(1, 1, 54, generator=generator), head, left, right)
    pairs = torch.cat([some for _, some in scored])
    assert len(scored) > 1
    assert len(pairs.unique()) == len(pairs)
    assert sum(heads * len(some) for heads, some in scored) < 7 * 54


@pytest.mark.parametrize("batch", [(), (3,)])
def test_argmax_of_a_grammar_by_bounds_is_that_of_its_table(batch, monkeypatch):
    monkeypatch.setattr("tailsum.trees.rules.low_rank.tile_size", lambda _: 0)
    monkeypatch.setattr(best_pairs, "FIRST", 3)
    rule = ts.LowRankRule(torch.randn(*batch, 6, 4).double(), torch.randn(11, 4).double(), torch.randn(11, 4).double())
    given = torch.randn(6).double(), torch.randn(*batch, 5, 5).double()
    grammar, table = ts.PCFG(given[0], rule, given[1]), ts.PCFG(given[0], rule.block(), given[1])
    found, expected = grammar.argmax(), table.argmax()
    assert torch.equal(found.spans, expected.spans)
    assert torch.equal(found.states, expected.states)
    close(grammar.topk(3).scores, table.topk(3).scores)


def test_argmax_of_a_large_grammar_builds_no_table_of_rules():
    n = p = 200
    factors = (torch.randn(n, 8).log_softmax(-1), *(torch.randn(n + p, 8).log_softmax(0) for _ in range(2)))
    grammar = ts.PCFG(torch.randn(n), ts.LowRankRule(*factors), torch.randn(4, p))
    with PeakMemory() as memory:
        best = grammar.argmax()
    assert memory.largest < 4 * n**3 / 4  # a quarter of the smallest table
    assert grammar.score(best) >= grammar.score(grammar.sample((50,))).max()


@pytest.mark.parametrize("way", ["whole", "restricted"])
@pytest.mark.parametrize("name", ["spans-dense", "pcfg-dense", "pcfg-low rank"])
def test_trees_of_least_risk(name, way):
    """No tree has a higher expected number of right spans, with their states or without."""
    case, model = possible(name, way, forbidden=0.1)
    labelled, plain = case.rows(model.mbr()), case.rows(model.mbr(labelled=False))
    for b, truth in enumerate(case.truths(model)):
        expected = (truth.parts * truth.marginals).flatten(1).sum(-1)
        close(expected[truth.index_of(case.read(labelled[0, b], b))], expected.max())
        spans = (truth.parts.sum(-1) * truth.marginals.sum(-1)).flatten(1).sum(-1)
        found = case.read(plain[0, b], b)
        close(spans[truth.index_of(found)], spans.max())
        assert all(state == truth.marginals[i, j].argmax() for i, j, state in found)


def test_no_tree_of_least_risk_where_none_is_possible():
    case = small("pcfg-dense", seed=1)
    case.block(1)
    tree = made(case, "whole").mbr()
    assert tree.states[1].eq(-1).all()
    assert tree.spans[1].eq(-1).all()
    assert tree.states[0].ge(0).all()
