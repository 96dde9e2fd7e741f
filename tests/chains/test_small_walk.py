"""Random paths of chains of few states, in blocks of time: the law of samples, and of long ones."""

import itertools
import math

import pytest
import torch

import tailsum as ts
from tailsum.chains.ways import small_walk


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def scores(kind, length, batch=2, n=3):
    nodes, pairs = torch.randn(batch, length, n), torch.randn(n, n)
    match kind:
        case "steps":
            pairs = torch.randn(length - 1, n, n)
        case "sequences":
            pairs = torch.randn(batch, 1, n, n)
        case "steps of sequences":
            pairs = torch.randn(batch, length - 1, n, n)
        case "forbidden":
            pairs[0, 1] = pairs[2, 2] = nodes[:, 1, 0] = -math.inf
        case "cold":
            nodes, pairs = 300 * nodes, 300 * pairs
    return nodes, pairs


KINDS = ["shared", "steps", "sequences", "steps of sequences", "forbidden", "cold"]


@pytest.fixture
def short_blocks(monkeypatch):
    monkeypatch.setattr(small_walk, "SHORTEST", 2)
    monkeypatch.setattr("tailsum.chains.ways.following.CHECKED", 1)


@pytest.mark.usefixtures("short_blocks")
@pytest.mark.parametrize("kind", KINDS)
def test_paths_follow_their_law(kind):
    """Every path of a short chain, as often as its probability says; 5.5 standard errors of 40,000 draws."""
    length, count = 6, 40_000
    nodes, pairs = scores(kind, length)
    lengths = torch.tensor([length, length - 2])
    chain = ts.LinearChain(nodes, pairs, lengths)
    drawn = torch.cat([chain.sample((2_000,), generator=seeded(i)) for i in range(count // 2_000)])
    for b, last in enumerate(lengths.tolist()):
        paths = torch.tensor(list(itertools.product(range(3), repeat=last)))
        padded = torch.cat((paths, torch.full((len(paths), length - last), -1)), 1)
        alone = ts.LinearChain(nodes[b], pairs[b] if kind.endswith("sequences") else pairs, lengths[b])
        probability = alone.log_prob(padded).double().exp()
        assert (drawn[:, b, last:] == -1).all()
        index = (drawn[:, b, :last] * 3 ** torch.arange(last - 1, -1, -1)).sum(-1)
        frequency = torch.bincount(index, minlength=len(paths)).double() / count
        assert frequency[probability == 0].sum() == 0
        assert ((frequency - probability).abs() <= 5.5 * (probability / count).sqrt() + 2 / count).all()


@pytest.mark.parametrize("kind", ["mixing", "sticky", "never"])
def test_blocks_find_the_path_that_steps_find(kind, monkeypatch):
    """The same random numbers in one block: one after the other, from the last position."""
    nodes, pairs = torch.randn(3, 400, 4), torch.randn(4, 4)
    if kind != "mixing":
        nodes, pairs = nodes / 10, torch.full((4, 4), -6.0 if kind == "sticky" else -math.inf).fill_diagonal_(0.0)
    walk = ts.LinearChain(nodes, pairs, [400, 390, 1])._backward_walk(ts.LinearChain(nodes, pairs).summed())
    last, chance = torch.tensor([399, 389, 0]), torch.rand(2, 3, 400, dtype=torch.float64)
    found, rand = [], torch.rand

    def given(*shape, **_):  # the random numbers of each position, cut into blocks, and then those of the ends
        if shape == (2, 3):
            return chance[..., -1]
        steps, blocks = shape[0], shape[1] // 6
        cut = torch.nn.functional.pad(chance[..., :399], (0, steps * blocks - 399))
        return cut.unflatten(-1, (blocks, steps)).flatten(0, 2).T

    monkeypatch.setattr(torch, "rand", given)
    for shortest in (1_000, 50):
        monkeypatch.setattr(small_walk, "SHORTEST", shortest)
        paths = small_walk.small_walk(walk.log_mass, walk.flat, last, 2, None)
        found.append([paths[:, b, : last[b] + 1] for b in range(3)])
    monkeypatch.setattr(torch, "rand", rand)
    assert all(map(torch.equal, *found))
    assert len(found[0][0].unique()) == (1 if kind == "never" else 4) or kind == "never"


def test_a_long_chain():
    """Frequencies of a path of 50,000 positions are near the marginals'; its pairs are possible."""
    nodes, pairs = torch.randn(50_000, 5), torch.randn(5, 5)
    pairs[0, 1] = -math.inf
    chain = ts.LinearChain(nodes, pairs)
    path = chain.sample(generator=seeded(0))
    chance = chain.marginals().gather(-1, path[:, None]).mean() - chain.marginals().square().sum(-1).mean()
    assert chance.abs() < 0.01
    assert chain.score(path) > -math.inf


@pytest.mark.parametrize("batch", [0, 2])
def test_nothing_possible_and_nothing_to_draw(batch):
    chain = ts.LinearChain(torch.full((batch, 5, 2), -math.inf), torch.zeros(2, 2))
    assert (chain.sample((3,)) == -1).all()
    assert chain.sample((0,)).shape == (0, batch, 5)


def test_many_paths_at_once_are_all_possible():
    """Two halves of the states that no path leaves, so that blocks meet late: those of some paths are followed again."""
    length, n, never = 513, 4, -math.inf
    here = torch.randint(n, (length,), generator=torch.Generator().manual_seed(0))
    node = torch.full((length, 2, n), never).double()
    node[torch.arange(length), :, here] = 0.0
    pairs = torch.full((2, n, 2, n), never).double()
    pairs[0, :, 0], pairs[1, :, 1] = 0.0, 0.0
    chain = ts.LinearChain(node.flatten(1), pairs.reshape(2 * n, 2 * n))
    for seed in range(20):
        assert (chain.score(chain.sample((16,), generator=torch.Generator().manual_seed(seed))) == 0.0).all()
