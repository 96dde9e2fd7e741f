"""Best paths: digits on long chains, no more paths than there are, and none where none is possible."""

import itertools
import math

import pytest
import torch

import tailsum as ts
from tailsum.numerics.memory import PeakMemory

MASKS = [-math.inf, -1e30, torch.finfo(torch.float32).min]


@pytest.mark.parametrize(("offset", "pair_offset"), [(-1000, 0), (0, 1000)])
def test_offsets_cost_no_digits(offset, pair_offset):
    nodes, pairs = torch.randn(600, 10) + offset, torch.randn(10, 10) + pair_offset
    single, double = ts.LinearChain(nodes, pairs), ts.LinearChain(nodes.double(), pairs.double())
    best = double.topk(4)
    torch.testing.assert_close(double.score(single.argmax()), best.scores[0], rtol=0, atol=1e-3)
    paths, scores = single.topk(4)
    torch.testing.assert_close(double.score(paths), best.scores, rtol=0, atol=1e-3)
    assert (scores[:-1] >= scores[1:]).all()
    assert len(paths.unique(dim=0)) == 4


def by_enumeration(nodes, pairs, length):
    """All possible paths of one sequence and their scores, best first."""
    found = []
    for path in itertools.product(range(nodes.shape[-1]), repeat=length):
        score = sum(nodes[t, i].item() for t, i in enumerate(path))
        score += sum(pairs[t, i, j].item() for t, (i, j) in enumerate(itertools.pairwise(path)))
        if score > -1e29:
            found.append((score, path))
    return sorted(found, reverse=True)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("seed", range(8))
def test_as_many_paths_as_exist(seed, mask):
    g = torch.Generator().manual_seed(seed)
    nodes, pairs = torch.randn(3, 4, 2, generator=g), torch.randn(3, 3, 2, 2, generator=g)
    for x in (nodes, pairs):
        x.masked_fill_(torch.rand(x.shape, generator=g) < 0.15, mask)
    lengths = torch.tensor([4, 2, 1])
    chain = ts.LinearChain(nodes, pairs, lengths)
    every = [by_enumeration(nodes[b], pairs[b], n) for b, n in enumerate(lengths.tolist())]
    for k in (1, 2, 5, 1000):
        paths, scores = chain.topk(k)
        assert len(paths) == len(scores) == min(k, max(map(len, every)))
        for b, expected in enumerate(every):
            count = min(k, len(expected))
            wanted = torch.tensor([score for score, _ in expected[:count]], dtype=torch.float32)
            torch.testing.assert_close(scores[:count, b], wanted)
            found = [tuple(path[: lengths[b]]) for path in paths[:count, b].tolist()]
            assert len(set(found)) == count
            assert paths[:, b, lengths[b] :].eq(-1).all()
            assert paths[count:, b].eq(-1).all()
            assert scores[count:, b].eq(-math.inf).all()
            assert chain.argmax()[b].tolist() == (paths[0, b].tolist() if count else [-1] * 4)


def test_no_more_memory_than_paths():
    chain = ts.LinearChain(torch.randn(4, 3), torch.randn(3, 3))
    with PeakMemory() as memory:
        paths, scores = chain.topk(10**12)
    assert len(paths) == len(scores) == 81
    assert memory.largest <= 81 * 4 * 8


def test_scores_of_the_best_have_gradients():
    nodes, pairs = torch.randn(2, 4, 3).double().requires_grad_(), torch.randn(3, 3).double().requires_grad_()
    chain = ts.LinearChain(nodes, pairs, [4, 2])
    paths, scores = chain.topk(3)
    found = torch.autograd.grad(scores[1].sum(), nodes)[0]
    inside = paths[1] >= 0
    one_hot = torch.nn.functional.one_hot(paths[1].clamp(min=0), 3) * inside[..., None]
    assert torch.equal(found, one_hot.double())
    with torch.no_grad():
        assert not chain.topk(3).scores.requires_grad


@pytest.mark.parametrize("blocked", [0, 1, 2])
def test_an_impossible_sequence_has_no_path(blocked):
    nodes = torch.randn(3, 4, 3)
    nodes[1, blocked] = -math.inf
    chain = ts.LinearChain(nodes, torch.randn(3, 3), [4, 3, 2])
    relaxed = chain.rsample()
    for paths in (chain.argmax(), chain.sample((5,)), chain.topk(3).configurations, relaxed.hard):
        assert paths[..., 1, :].eq(-1).all()
        assert paths[..., [0, 2], :2].ge(0).all()
        assert paths[..., 2, 2:].eq(-1).all()
        score = chain.score(paths)
        assert score[..., 1].eq(-math.inf).all()
        assert score[..., [0, 2]].isfinite().all()
    assert relaxed.weights[1].eq(0).all()
    assert relaxed.mix(torch.randn(3, 2))[1].eq(0).all()
    assert chain.log_prob(chain.argmax())[1] == chain.entropy()[1] == -math.inf
    assert chain.kl(chain)[1] == math.inf
    alone = ts.LinearChain(nodes[1], torch.randn(3, 3))
    assert len(alone.topk(3).configurations) == 0


def test_the_padding_of_given_paths_is_ignored():
    chain = ts.LinearChain(torch.randn(2, 4, 3), torch.randn(3, 3), [4, 2])
    path = torch.tensor([[0, 1, 2, 0], [2, 1, -1, -1]])
    for value in (0, 2, 77, -5):
        other = path.clone()
        other[1, 2:] = value
        assert torch.equal(chain.score(other), chain.score(path))


@pytest.mark.parametrize("shape", [(3, 3), (4, 3, 3), (1, 4, 3, 3), (2, 4, 3, 3)])
@pytest.mark.parametrize("k", [1, 2])
def test_scores_given_as_a_transposed_table_are_not_changed(shape, k):
    table = torch.randn(shape)
    before = table.clone()
    ts.LinearChain(torch.randn(2, 5, 3), table.mT).topk(k)
    ts.LinearChain(torch.randn(2, 5, 3), table.mT).argmax()
    assert torch.equal(table, before)
