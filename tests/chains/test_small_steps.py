"""Steps with few numbers take a shorter way: to the same values and derivatives as the long one."""

import math

import pytest
import torch

import tailsum as ts
from tailsum.chains.ways import plain_steps, small_steps, time_blocks
from tailsum.numerics.memory import PeakMemory
from tailsum.scores import table


def scores(kind, length=6, batch=3, n=4):
    node, pairs = torch.randn(batch, length, n), torch.randn(n, n)
    match kind:
        case "steps of their own":
            pairs = torch.randn(length - 1, n, n)
        case "sequences of their own":
            pairs = torch.randn(batch, 1, n, n)
        case "steps of sequences of their own":
            pairs = torch.randn(batch, length - 1, n, n)
        case "wide":
            node, pairs = 40 * node, 40 * pairs
        case "forbidden":
            pairs[torch.rand(n, n) < 0.4] = -math.inf
            node[:, 2, 1] = -math.inf
        case "offset":
            node, pairs = node - 1e4, pairs + 300.0
        case "impossible":
            node[0, 3] = -math.inf
        case "left to right":
            pairs[torch.ones(n, n).tril(-1).bool()] = -math.inf
        case "masked":
            node[torch.rand(node.shape) < 0.3] = -1e4
            pairs[torch.rand(n, n) < 0.3] = -1e9
    return [x.double().requires_grad_() for x in (node, pairs)]


def answers(node, pairs, lengths):
    chain = ts.LinearChain(node, pairs, lengths)
    total, entropy = chain.log_partition(), chain.entropy()
    possible = total > -math.inf
    gradients = torch.autograd.grad(total[possible].sum() + entropy[possible].sum(), (node, pairs))
    return total, entropy, chain.marginals(), chain.argmax(), *gradients


OWN = ["steps of their own", "sequences of their own", "steps of sequences of their own"]
KINDS = ["plain", *OWN, "wide", "forbidden", "offset", "impossible", "left to right", "masked"]


@pytest.mark.parametrize("kind", KINDS)
def test_both_ways_agree(kind, monkeypatch):
    given, lengths = scores(kind), torch.tensor([6, 4, 1])
    short = answers(*given, lengths)
    monkeypatch.setattr(table, "SMALL", 0)
    monkeypatch.setattr("tailsum.chains.best_paths.packed_path", lambda *_: None)
    for one, other in zip(short, answers(*given, lengths), strict=True):
        torch.testing.assert_close(one, other)


def test_only_a_narrow_range_is_taken():
    def found(node, pairs):
        made = table.Table(ts.Dense(pairs[None, None]))
        return small_steps.forward(node, node.amax(-1), made)

    node, pairs = torch.randn(5, 2, 3), torch.randn(3, 3)
    assert found(node, pairs) is not None
    apart = torch.full((3, 3), -70.0)
    apart.fill_diagonal_(0.0)
    best = torch.tensor([[0.0, -60.0, -60.0], [-60.0, 0.0, -60.0]])[:, None]  # the best states are far apart
    assert found(best, apart) is None
    log_mass, _, total = plain_steps.forward(node, node.amax(-1), table.Table(ts.Dense(pairs[None, None])))
    torch.testing.assert_close(found(node, pairs)[0], log_mass)
    torch.testing.assert_close(found(node, pairs)[2], total)


@pytest.fixture(params=["guesses", "unit vectors", "neither"])
def in_blocks(request, monkeypatch):
    """Short chains are cut into blocks too, and this says how often."""
    cuts, cut = [], time_blocks.Blocks.cut
    monkeypatch.setattr(time_blocks, "SHORTEST", 2)
    monkeypatch.setattr(time_blocks, "SHORTEST_BLOCK", 3)
    monkeypatch.setattr(time_blocks, "RUNS", 20 if request.param == "guesses" else 0)
    if request.param != "unit vectors":
        monkeypatch.setattr(time_blocks, "LARGEST", 0)
    monkeypatch.setattr(time_blocks.Blocks, "cut", lambda self, x: cuts.append(self) or cut(self, x))
    return cuts


@pytest.mark.parametrize("length", [6, 41, 43])  # the last one in whole blocks
@pytest.mark.parametrize("kind", KINDS)
def test_blocks_of_time_agree_with_steps(kind, length, in_blocks, monkeypatch):
    given, lengths = scores(kind, length), torch.tensor([length, length // 2, 1])
    together = answers(*given, lengths)
    if kind not in {"wide", "impossible"}:  # those may go to log space
        assert len(in_blocks) > 8
        assert {cut.length for cut in in_blocks} == {3}
    monkeypatch.setattr(table, "SMALL", 0)
    monkeypatch.setattr("tailsum.chains.best_paths.packed_path", lambda *_: None)
    for one, other in zip(together, answers(*given, lengths), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("kind", ["plain", "steps of their own"])
def test_chains_that_forget_need_no_unit_vectors(kind, monkeypatch):
    monkeypatch.setattr(time_blocks, "_too_large", lambda _: pytest.fail("the guesses did not settle"))
    node, pairs = scores(kind, length=1_000, batch=2)
    chain = ts.LinearChain(node, pairs, [1_000, 900])
    total, mean = chain.log_partition(), chain.entropy()  # runs along the chain, back, and along it once more
    torch.autograd.grad((total + mean).sum(), (node, pairs))


@pytest.mark.parametrize("kind", ["never", "slowly"])
def test_chains_that_do_not_forget(kind, monkeypatch):
    """Each state leads to itself: a guess tells nothing, and a wrong one must not be taken for settled."""
    node, pairs = (
        torch.randn(1, 1_000, 3).double() / 10,
        torch.full((3, 3), -math.inf if kind == "never" else -9.0).double(),
    )
    pairs.fill_diagonal_(0.0)
    tensors = [x.requires_grad_() for x in (node, pairs)]
    together = answers(*tensors, None)
    monkeypatch.setattr(time_blocks, "SHORTEST", 10_000)
    for one, other in zip(together, answers(*tensors, None), strict=True):
        torch.testing.assert_close(one, other)


def test_a_guess_that_dies_within_its_block_is_not_settled():
    """State 0 dominates the first blocks, but no path is in it: it is forbidden at both ends, and leads to itself alone."""
    node, pairs = torch.zeros(450, 2).double(), torch.full((2, 2), -math.inf).double().fill_diagonal_(0.0)
    node[1:129, 0], node[0, 0], node[150:, 0] = 12.0, -math.inf, -math.inf
    chain = ts.LinearChain(node, pairs)
    assert chain.log_partition() == 0.0
    assert chain.entropy() == 0.0
    assert (chain.marginals() == torch.tensor([0.0, 1.0])).all()


def test_small_differences_add_up_where_nothing_is_forgotten():
    """Two states that lead to themselves: each step favours one by less than the rounding of a block."""
    node = torch.zeros(100_000, 2)
    node[:, 0] = 6e-6
    chain = ts.LinearChain(node, torch.full((2, 2), -math.inf).fill_diagonal_(0.0))
    expected = (node.double().sum(0)).softmax(-1)
    assert (chain.marginals() - expected).abs().max() < 1e-3
    assert chain.entropy().item() == pytest.approx(torch.special.entr(expected).sum().item(), abs=1e-3)


def test_tables_of_many_sequences_are_not_copied_for_every_step():
    with PeakMemory() as memory:
        ts.LinearChain(torch.randn(2, 1_000, 64), ts.Dense(torch.randn(2, 1, 64, 64))).log_partition()
    assert memory.largest < 4 * 2 * 1_000 * 64 * 8


@pytest.mark.parametrize("kind", ["plain", "steps of sequences of their own"])
@pytest.mark.parametrize("operation", [ts.LinearChain.log_partition, ts.LinearChain.entropy, ts.LinearChain.marginals])
def test_derivatives_of_blocks(operation, kind, in_blocks):
    leaves = scores(kind, length=7, batch=2, n=2)
    function = lambda node, pairs: operation(ts.LinearChain(node, pairs)).sin()  # noqa: E731
    assert torch.autograd.gradcheck(function, leaves)
    assert torch.autograd.gradgradcheck(function, leaves)
    assert in_blocks


def test_a_long_chain_in_float32():
    """The longest that users have: as many digits as step by step."""
    generator = torch.Generator().manual_seed(0)
    node, pairs = torch.randn(1, 20_000, 4, generator=generator), 2 * torch.randn(4, 4, generator=generator)
    assert time_blocks.blocks(19_999, 1, pairs[None, None]) is not None
    answers = [
        ts.LinearChain(x.to(dtype), y.to(dtype)) for x, y in [(node, pairs)] for dtype in (torch.float32, torch.float64)
    ]
    narrow, wide = ((chain.log_partition(), chain.marginals(), chain.entropy()) for chain in answers)
    for one, other in zip(narrow, wide, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-6, atol=1e-5)
