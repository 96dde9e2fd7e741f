"""Lists of neighbours, messages along them, and sketches that need them."""

import math

import pytest
import torch

import tailsum as ts
import tailsum.numerics.tiles as table_module
from harness.statistics import z_score
from tailsum.chains.chain_sweep import ChainSweep
from tailsum.numerics.memory import PeakMemory
from tailsum.sketch.neighbours import Near


def table(n, generator, forbidden=0.0):
    scores = torch.randn(n, n, generator=generator)
    return scores.masked_fill(torch.rand(n, n, generator=generator) < forbidden, -math.inf)


def kinds(n, generator):
    left, right = torch.randn(2, n, 5, generator=generator)
    scores = table(n, generator, 0.3)
    return {
        "dense": (scores, ts.Dense(scores)),
        "factored": (left @ right.T, ts.Factored(left, right)),
        "scored": (scores, ts.Scored(lambda i, j: scores[i, j], n, n)),
    }


def best_of_leaders(scores, size):
    """The highest scores in each row of those columns that are the best of their group, columns with the same j % groups."""
    groups = min(len(scores), 4 * size)
    leaders = [[max(row[g::groups]) for g in range(groups)] for row in scores.tolist()]
    return torch.tensor([sorted(row, reverse=True)[:size] for row in leaders])


@pytest.mark.parametrize("tile", [None, 1, 40])
@pytest.mark.parametrize(("n", "size"), [(60, 3), (61, 3), (50, 1), (5, 5), (6, 64), (9, 1), (1, 2)])
@pytest.mark.parametrize("kind", ["dense", "factored", "scored"])
def test_lists_have_the_best_of_those_that_lead_their_group(kind, n, size, tile, generator, monkeypatch):
    if tile:
        monkeypatch.setattr("tailsum.sketch.neighbours.tile_rows", lambda *_: tile)
    scores, potential = kinds(n, generator)[kind]
    near, size = ts.Neighbours(potential, size), min(n, size)
    for found, truth in ((near.successors, scores), (near.predecessors, scores.T)):
        torch.testing.assert_close(truth.gather(1, found), best_of_leaders(truth, size), rtol=1e-4, atol=1e-5)
        assert all(len(set(row)) == size for row in found.tolist())


def test_lists_of_scores_beyond_the_range_of_float32():
    scores = torch.tensor([[-1e300, 1e300, 0.0], [1.0, -math.inf, 2.0], [-math.inf, -math.inf, -math.inf]]).double()
    near = ts.Neighbours(scores, 1)
    assert near.successors[:2].tolist() == [[1], [2]]


@pytest.mark.parametrize("tile", [None, 3])
@pytest.mark.parametrize("lead", [(), (1,), (4,), (2, 1), (2, 4)])
def test_a_message_of_all_states_as_neighbours_is_exact(lead, tile, generator, monkeypatch):
    """Whatever the landmarks are: what they estimate of the neighbours' part is taken out."""
    if tile:
        monkeypatch.setattr("tailsum.sketch.neighbours.tile_rows", lambda *_: tile)
    n, value = 8, torch.randn(2, 8, generator=generator)
    scores = torch.randn(*lead, n, n, generator=generator)
    shared = scores.flatten(0, -3)[0] if lead else scores
    lists = ts.Neighbours(shared, n)
    both = Near(ts.Dense(scores), ts.Dense(scores.mT), lists, value.device)
    kept = ts.Optimal(3)(value, generator)
    at = scores[..., min(1, lead[-1] - 1), :, :] if lead else scores
    for near, way in ((both.back, at), (both.onward, at.mT)):
        sent = torch.logsumexp(
            way.expand(2, n, n).gather(-1, kept.index[:, None].expand(2, n, 3))
            + (value.gather(-1, kept.index) + kept.log_weight)[:, None],
            -1,
        )
        exact = (way + value[:, None]).logsumexp(-1)
        assert not torch.allclose(sent, exact, atol=0.01)
        torch.testing.assert_close(near.at_step(1).joined(sent, value, kept), exact, rtol=1e-4, atol=1e-4)


def test_a_message_is_no_less_than_the_part_of_the_state_itself(generator):
    n, value = 30, torch.randn(30, generator=generator)
    scores = table(n, generator, 0.5)
    back = Near(ts.Dense(scores), ts.Dense(scores.mT), 4, value.device).back
    part = scores.diagonal() + value
    for k in (1, 5):
        kept = ts.Optimal(k)(value, generator)
        sent = (scores[:, kept.index] + value[kept.index] + kept.log_weight).logsumexp(-1)
        found = back.joined(sent, value, kept)
        assert not found.isnan().any()
        assert (found >= part - 1e-5).all()
        near = (scores.gather(1, back.partners) + value[back.partners]).logsumexp(-1)
        assert ((found == -math.inf) == ((sent == -math.inf) & (near == -math.inf))).all()


def sticky(n, generator, replicates=()):
    states = 1.5 * torch.randn(n, 16, generator=generator) / 2
    nodes = torch.randn(10, n, generator=generator)
    return ts.LinearChain(nodes.expand(*replicates, 10, n), ts.Factored(states, states))


def test_sticky_chains_need_them(generator):
    many, chain = (sticky(2_000, generator.manual_seed(0), shape) for shape in ((16,), ()))
    errors = {
        size: many.sketch(20, proposal=ts.Lookahead(8, neighbours=size), generator=generator).log_partition()
        - chain.log_partition()
        for size in (0, 16)
    }
    assert errors[16].abs().max() < 0.05
    assert errors[0].abs().max() > 1.0


@pytest.mark.parametrize("forbidden", [0.0, 0.4])
def test_sums_are_unbiased_with_any_lists(forbidden, generator):
    """Lists of other scores, as of earlier steps of training."""
    nodes, pairs = torch.randn(4, 7, generator=generator).double(), table(7, generator, forbidden).double()
    stale = ts.Neighbours(torch.randn(7, 7, generator=generator), 2)
    truth = ts.LinearChain(nodes, pairs).log_partition()
    many = ts.LinearChain(nodes.expand(50_000, 4, 7), pairs)
    for neighbours in (stale, 2):
        proposal = ts.Lookahead(2, neighbours=neighbours)
        ratio = (many.sketch(2, proposal=proposal, generator=generator).log_partition() - truth).exp()
        assert z_score(ratio, 1.0) < 4


def test_sticky_segmentations_need_them(generator):
    states = 1.5 * torch.randn(1_000, 16, generator=generator) / 2
    segment, pairs = torch.randn(8, 3, 1_000, generator=generator), ts.Factored(states, states)
    truth = ts.SemiMarkov(segment, pairs).log_partition()
    many = ts.SemiMarkov(segment.expand(8, 8, 3, 1_000), pairs)
    for size, close in ((0, False), (16, True)):
        small = many.sketch(20, proposal=ts.Lookahead(8, neighbours=size), generator=generator)
        assert bool((small.log_partition() - truth).abs().max() < 0.05) is close


@pytest.mark.parametrize("sequential", [True, False])
@pytest.mark.parametrize("lead", [(), (4,), (3, 4)])
def test_segmentations_of_several_lengths_are_unbiased(lead, sequential, generator):
    """By lists of other scores; some transitions are forbidden."""
    n, lengths = 5, torch.tensor([5, 3, 1])
    segment = torch.randn(3, 5, 2, n, generator=generator).double()
    pairs = torch.randn(*lead, n, n, generator=generator).double()
    pairs = pairs.masked_fill(torch.rand(pairs.shape, generator=generator) < 0.3, -math.inf)
    stale = ts.Neighbours(torch.randn(n, n, generator=generator), 2)
    truth = ts.SemiMarkov(segment, pairs, lengths).log_partition()
    many = ts.SemiMarkov(segment.expand(5_000, 3, 5, 2, n), pairs, lengths)
    proposal = ts.Lookahead(2, neighbours=stale, sequential=sequential)
    ratio = (many.sketch(3, proposal=proposal, generator=generator).log_partition() - truth).exp()
    assert z_score(ratio, 1.0) < 4.5


def test_sticky_dependency_trees_need_them(generator):
    states = 1.5 * torch.randn(600, 16, generator=generator) / 2
    arc, node = torch.randn(5, 5, generator=generator), torch.randn(5, 600, generator=generator)
    tree = ts.DependencyTree(arc, node=node, transition=ts.Factored(states, states))
    many = ts.DependencyTree(arc.expand(8, 5, 5), node=node, transition=ts.Factored(states, states))
    for size, close in ((0, False), (16, True)):
        small = many.sketch(20, proposal=ts.Lookahead(16, neighbours=size), generator=generator)
        assert bool((small.log_partition() - tree.log_partition()).abs().max() < 0.1) is close


@pytest.mark.parametrize("sequential", [True, False])
def test_dependency_trees_of_several_lengths_are_unbiased(sequential, generator):
    """By lists of other scores; some pairs of states are forbidden."""
    n, lengths = 4, torch.tensor([4, 2, 1])
    arc, node = torch.randn(3, 4, 4, generator=generator).double(), torch.randn(3, 4, n, generator=generator).double()
    pairs, stale = table(n, generator, 0.3).double(), ts.Neighbours(torch.randn(n, n, generator=generator), 2)
    truth = ts.DependencyTree(arc, lengths, node=node, transition=pairs).log_partition()
    many = ts.DependencyTree(arc.expand(4_000, 3, 4, 4), lengths, node=node, transition=pairs)
    proposal = ts.Lookahead(2, neighbours=stale, sequential=sequential)
    ratio = (many.sketch(2, proposal=proposal, generator=generator).log_partition() - truth).exp()
    assert z_score(ratio, 1.0) < 4.5


def test_scores_that_vary_along_the_chain(generator):
    """Each state has itself: chains that stay where they are."""
    n = 400
    pairs = torch.randn(9, n, n, generator=generator) + 12 * torch.eye(n)
    chain = ts.LinearChain(torch.randn(10, n, generator=generator), pairs)
    for size, close in ((0, False), (64, True)):
        small = chain.sketch(10, proposal=ts.Lookahead(4, neighbours=size), generator=generator)
        assert bool((small.log_partition() - chain.log_partition()).abs() < 0.3) is close


@pytest.mark.parametrize(
    ("neighbours", "shared", "wanted"), [(32, True, (192, 0)), (32, False, (512, 1)), (0, True, (512, 1))]
)
def test_fewer_landmarks_where_there_are_lists(neighbours, shared, wanted, monkeypatch, generator):
    looks = []
    monkeypatch.setattr(ChainSweep, "look", lambda self, landmarks, _: looks.append(landmarks))
    monkeypatch.setattr(ChainSweep, "sequence", lambda self, selection, g: selection(self.nodes, g))
    pairs = torch.randn(*(() if shared else (2,)), 600, 600, generator=generator)
    ts.LinearChain(torch.randn(3, 600), pairs).sketch(5, proposal=ts.Lookahead(neighbours=neighbours))
    landmarks, rounds = wanted
    assert looks == [landmarks >> 2 * later for later in range(rounds, -1, -1)]


def test_lists_are_made_once_for_many_sketches(monkeypatch, generator):
    made, make = [], ts.Neighbours.__init__
    monkeypatch.setattr(ts.Neighbours, "__init__", lambda self, *how: (made.append(self), make(self, *how))[1])
    monkeypatch.setattr("tailsum.structure.sketches._at_a_time", lambda *_: 1)
    chain = sticky(600, generator)
    ts.estimate(chain, "log_partition", k=20, replicates=4, generator=generator)
    assert len(made) == 1
    once = ts.Lookahead().listed(chain)
    assert once.neighbours is made[-1]
    assert len(made) == 2
    few = chain.sketch(5, proposal=once, generator=torch.Generator().manual_seed(0)).states
    assert len(made) == 2
    assert torch.equal(few, chain.sketch(5, generator=torch.Generator().manual_seed(0)).states)


def test_no_table_of_all_pairs_is_built(monkeypatch):
    monkeypatch.setitem(table_module._TILE, "cpu", 1 << 16)
    left, right = torch.randn(2, 3_000, 4)
    with PeakMemory() as memory:
        ts.Neighbours(ts.Factored(left, right), 8)
    assert memory.largest < 4 * 3_000 * 64


def test_a_function_that_would_be_evaluated_too_often_has_no_lists(monkeypatch):
    monkeypatch.setattr("tailsum.sketch.neighbours.PAIRS", 99 * ts.Scored.time_per_score)
    pairs = ts.Scored(lambda i, j: (i * j).float(), 10, 10)
    back = Near(pairs, pairs.transposed(), 4, torch.device("cpu")).back
    assert back.partners.tolist() == [[i] for i in range(10)]


def test_lists_of_a_function_are_made_on_its_device():
    def function(i, j):
        raise RuntimeError(f"{i.device} {j.device}")

    with pytest.raises(RuntimeError, match="meta meta"):
        ts.Neighbours(ts.Scored(function, 4, 4, device=torch.device("meta")))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda: ts.Neighbours(torch.zeros(3, 4, 4)), r"transition must be .* that all steps share: got .*\[3\]"),
        (lambda: ts.Neighbours(3), "transition must be a table .*: got 3"),
        (lambda: ts.Neighbours(torch.zeros(4, 4), 0), "size must be a whole number of at least 1: got 0"),
        (lambda: ts.Lookahead(neighbours=-1), "neighbours must be a whole number of at least 0: got -1"),
        (
            lambda: ts.LinearChain(torch.zeros(3, 5), torch.zeros(5, 5)).sketch(
                2, proposal=ts.Lookahead(neighbours=ts.Neighbours(torch.zeros(4, 4)))
            ),
            r"neighbours must have lists of 5 states, as the model: got Neighbours\(N=4, size=4\)",
        ),
    ],
)
def test_errors(use, words):
    with pytest.raises(ValueError, match=words):
        use()
