"""Best paths by whole numbers, in blocks of time: no other path has a higher score."""

import math

import numpy as np
import pytest
import torch

import tailsum as ts
from tailsum.chains.ways import packed_paths, time_blocks
from tailsum.chains.ways.following import follow

KINDS = [
    "plain",
    "steps",
    "sequences",
    "steps of sequences",
    "forbidden",
    "forgets nothing",
    "cold",
    "offset",
    "masked",
    "ties",
]


def scores(kind, length, batch, n):
    nodes, pairs = torch.randn(batch, length, n).double(), torch.randn(n, n).double()
    match kind:
        case "steps":
            pairs = torch.randn(length - 1, n, n).double()
        case "sequences":
            pairs = torch.randn(batch, 1, n, n).double()
        case "steps of sequences":
            pairs = torch.randn(batch, length - 1, n, n).double()
        case "forbidden":
            pairs[torch.rand(n, n) < 0.4] = -math.inf
            nodes[torch.rand(nodes.shape) < 0.2] = -math.inf
        case "forgets nothing":  # every start stays apart from the others
            pairs = pairs.fill_(-math.inf).fill_diagonal_(0.0)
            pairs[torch.arange(n), torch.arange(n).roll(-1)] = -0.5
            nodes[:, 1:] = 0.0
        case "cold":
            nodes, pairs = 1000 * nodes, 1000 * pairs
        case "offset":
            nodes = nodes + 1e6 * torch.randn(batch, length, 1)
        case "masked":
            nodes[torch.rand(nodes.shape) < 0.3] = -1e4
            pairs[torch.rand(n, n) < 0.3] = -1e30
        case "ties":
            nodes, pairs = nodes.round(), pairs.round()
    return nodes, pairs


@pytest.fixture
def short_blocks(monkeypatch):
    """Short chains are cut into blocks too; which blocks were run, None for all."""
    runs, run = [], packed_paths._Messages.run
    monkeypatch.setattr(packed_paths, "SHORTEST", 8)
    monkeypatch.setattr(packed_paths._Messages, "run", lambda self, *given: runs.append(given[1]) or run(self, *given))
    return runs


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("length", [2, 7, 16, 17, 18, 130])
@pytest.mark.parametrize("kind", KINDS)
def test_the_score_is_as_high_as_by_the_other_way(kind, length, n, dtype, short_blocks, monkeypatch):
    nodes, pairs = (x.to(dtype) for x in scores(kind, length, 3, n))
    chain = ts.LinearChain(nodes, pairs, [length, length // 2, 1])
    path = chain.argmax()
    assert short_blocks
    monkeypatch.setattr("tailsum.chains.best_paths.packed_path", lambda *_: None)
    other = chain.argmax()
    wide = ts.LinearChain(nodes.double(), pairs.double(), chain.lengths)
    assert torch.equal(path < 0, other < 0)
    torch.testing.assert_close(
        wide.score(path), wide.score(other), rtol=1e-7, atol=1e-5 if dtype == torch.float32 else 1e-9
    )


def test_blocks_that_forget_nothing_are_run_one_by_one(short_blocks):
    nodes, pairs = scores("forgets nothing", 60, 1, 4)
    ts.LinearChain(nodes, pairs).argmax()
    assert short_blocks[:2] == [None, None]
    assert set(short_blocks[2:]) >= {2, 3, 4, 5, 6}
    short_blocks.clear()
    ts.LinearChain(*scores("plain", 60, 1, 4)).argmax()
    assert set(short_blocks) == {None}


def test_many_sequences_are_taken_in_parts(monkeypatch):
    monkeypatch.setattr(packed_paths, "CACHE", 4 * 9 * 2)
    nodes, pairs = torch.randn(5, 6, 3), torch.randn(5, 1, 3, 3)
    for table in (pairs, pairs[0, 0]):
        chain = ts.LinearChain(nodes, table)
        torch.testing.assert_close(chain.max(), chain.topk(1).scores[0])


def test_scores_too_far_apart_for_whole_numbers():
    nodes, pairs = torch.randn(2, 30, 3), torch.randn(3, 3)
    nodes[:, ::3, 1] = -1e20
    chain = ts.LinearChain(nodes, pairs)
    assert packed_paths.packed_path(nodes, ts.Dense(pairs[None, None]), torch.tensor([29, 29])) is None
    torch.testing.assert_close(chain.max(), chain.topk(1).scores[0])


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(("steps", "blocks"), [(5, 1), (20, 2), (20, 7), (40, 300)])
def test_paths_along_maps(steps, blocks, batch, monkeypatch):
    monkeypatch.setattr("tailsum.chains.ways.following.CHECKED", 3)
    random, n = np.random.default_rng(0), 4
    for meet in (False, True):
        maps = random.integers(n, size=(steps, n, batch, blocks))
        if not meet:
            maps = np.argsort(random.random(maps.shape), 1)  # permutations: no two paths meet
        final, total = random.integers(n, size=batch), steps * blocks
        length = random.integers(total + 1, size=batch)
        moves = np.clip(length[:, None] - steps * np.arange(blocks), 0, steps)
        guess, flat = random.integers(n, size=moves.shape), maps.reshape(steps, n, -1)
        origin = lambda t, states, lanes, flat=flat: flat[t, states, lanes]  # noqa: E731
        found = follow(origin, steps, guess, final, moves).reshape(batch, -1)
        for b in range(batch):
            state = final[b]
            for t in range(total - 1, -1, -1):
                state = maps[t % steps, state, b, t // steps] if t < length[b] else state
                assert found[b, t] == state


def test_settled_starts_are_the_ends_before_them():
    """Any blocks: here numbers, of which some blocks forget their start and others do not."""
    gains, forgets = [3, 1, 4, 1, 5, 9, 2, 6], [0, 1, 0, 0, 0, 0, 1, 0]
    start, ended = np.arange(100, 108), np.zeros(8, np.int64)

    def run(start, block):
        for i, k in enumerate(range(8) if block is None else [block]):
            ended[k] = gains[k] + (0 if forgets[k] else start[i])

    start[0] = 7
    time_blocks.settled(run, lambda: ended, start)
    assert start.tolist() == [7, 10, 1, 5, 6, 11, 20, 2]


@pytest.mark.parametrize("length", [2, 300])
def test_scores_that_are_not_contiguous(length):
    nodes, pairs = torch.randn(length, 3, 4), torch.randn(4, 4)
    result = ts.LinearChain(nodes.transpose(0, 1), pairs).argmax()
    assert torch.equal(result, ts.LinearChain(nodes.transpose(0, 1).contiguous(), pairs).argmax())
