"""Entropy, divergence and cross-entropy of a chain by means that are carried along it, against the general way."""

import itertools
import math

import pytest
import torch

import tailsum as ts
import tailsum.chains.linear_chain as chain_module

BATCH, LENGTH, STATES = 3, 5, 4
LEADS = {"shared": (), "by step": (LENGTH - 1,), "by sequence": (BATCH, LENGTH - 1)}
OPERATIONS = {
    "entropy": lambda p, _: p.entropy(),
    "kl": lambda p, q: p.kl(q),
    "cross_entropy": lambda p, q: p.cross_entropy(q),
}


def made(kind, forbidden, seed):
    """Leaves, and what makes a chain of them."""
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.double)

    nodes = randn(BATCH, LENGTH, STATES)
    if kind == "factored":
        embeddings = randn(STATES, 3)
        return (nodes, embeddings), lambda x, e, lengths: ts.LinearChain(x, ts.Factored(e, e), lengths)
    pairs, mask = 3 * randn(*LEADS[kind], STATES, STATES), torch.zeros(STATES, STATES).double()
    if forbidden:
        nodes[0, 1, 2], mask[0, 1] = -math.inf, -math.inf
    return (nodes, pairs), lambda x, y, lengths: ts.LinearChain(x, y + mask.to(y.dtype), lengths)


KINDS = [*LEADS, "factored"]


@pytest.fixture
def taken(monkeypatch):
    """Whether each call found its answer in this way; `taken.off` sends them all the general way."""

    class Taken(list):
        off = False

    taken, inner = Taken(), chain_module.mean_score

    def spy(*inputs):
        found = None if taken.off else inner(*inputs)
        taken.append(found is not None)
        return found

    monkeypatch.setattr(chain_module, "mean_score", spy)
    return taken


MODELS = [
    (operation, kind, other)
    for operation, kind, other in itertools.product(OPERATIONS, KINDS, KINDS)
    if operation != "entropy" or kind == other  # which has no other model
]


def compared(operation, kind, other, kept, lengths, taken):
    """Values, gradients and gradients of gradients, in both ways."""
    (leaves, make), (others, make_other) = made(kind, True, 0), made(other, False, 1)
    inputs = [x.clone().requires_grad_() for x in (*leaves, *others)]
    used = inputs[:2] if operation == "entropy" else inputs
    directions = [torch.randn_like(x) for x in used]
    answers = []
    for taken.off in (False, True):
        p, q = make(*inputs[:2], lengths), make_other(*inputs[2:], lengths)
        p = p if kept is None else p.sketch(kept, generator=torch.Generator().manual_seed(2))
        value = OPERATIONS[operation](p, q)
        assert value.isfinite().all()
        first = torch.autograd.grad((value * torch.tensor([1.0, -2.0, 0.5])).sum(), used, create_graph=True)
        slope = sum((x * y).sum() for x, y in zip(first, directions, strict=True))
        answers.append((value, *first, *torch.autograd.grad(slope, used)))
    assert taken[0]
    torch.testing.assert_close(*answers, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("lengths", [None, [LENGTH, 1, 3]], ids=["full", "ragged"])
@pytest.mark.parametrize("kept", [None, 3], ids=["exact", "sketch"])
@pytest.mark.parametrize(("operation", "kind", "other"), MODELS)
def test_as_by_derivatives_of_the_log_partition(operation, kind, other, kept, lengths, taken):
    compared(operation, kind, other, kept, lengths, taken)


@pytest.mark.parametrize(("operation", "kind", "other"), MODELS)
def test_large_tables_are_streamed(operation, kind, other, taken, monkeypatch):
    monkeypatch.setattr("tailsum.chains.weighed.tile_rows", lambda *_: 3)  # of four: two tiles
    with ts.table_budget(0):
        compared(operation, kind, other, None, [LENGTH, 1, 3], taken)


@pytest.mark.parametrize("lengths", [None, [6, 1]])
def test_an_offset_of_a_streamed_table_costs_no_digits(lengths, taken):
    nodes, pairs = torch.randn(2, 6, 5), torch.randn(5, 5, 5).mul(64).round().div(64)  # which the offset does not round
    offset = torch.tensor([1e5, 3e4, 0.0, -1e5, 7.0])[:, None, None]
    expected = ts.LinearChain(nodes.double(), pairs.double(), lengths).entropy()
    with ts.table_budget(0):
        found = ts.LinearChain(nodes, pairs + offset, lengths).entropy()
    assert taken == [True, True]
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "operation", [x if x == "entropy" else pytest.param(x, marks=pytest.mark.slow) for x in OPERATIONS]
)
def test_digits_are_not_lost_along_a_long_chain(operation, taken):
    """In float32, where the means of whole paths have 10,000 times the size of what states differ by."""
    scores = [torch.randn(3000, 8) * 2, torch.randn(8, 8), torch.randn(3000, 8), torch.randn(8, 8)]
    used = 2 if operation == "entropy" else 4
    answers = []
    for dtype in (torch.float32, torch.float64):
        leaves = [x.to(dtype).requires_grad_() for x in scores]
        value = OPERATIONS[operation](ts.LinearChain(*leaves[:2]), ts.LinearChain(*leaves[2:]))
        answers.append([x.double() for x in (value, *torch.autograd.grad(value, leaves[:used]))])
    assert all(taken)
    for single, double in zip(*answers, strict=True):
        tolerance = 2e-5 if single.shape == (8, 8) else 2e-6  # a pair's gradient is a sum over all steps
        torch.testing.assert_close(single, double, rtol=0, atol=tolerance * double.abs().max().item())


@pytest.mark.parametrize("operation", ["kl", "cross_entropy"])
def test_the_other_model_may_have_another_type(operation):
    (p, make), (q, make_other) = made("shared", False, 0), made("by step", False, 1)
    answers = [
        OPERATIONS[operation](make(*(x.to(a) for x in p), None), make_other(*(x.to(b) for x in q), None)).double()
        for a, b in itertools.product((torch.float64, torch.float32), repeat=2)
    ]
    torch.testing.assert_close(torch.stack(answers), answers[0].expand(4, -1), rtol=1e-5, atol=1e-5)


def test_a_wide_range_takes_wider_numbers(taken):
    nodes = torch.tensor([[0.0, -150.0], [0.0, 0.0], [0.0, 300.0]])
    pairs = torch.tensor([[0.0, -200.0], [-200.0, 0.0]])
    single, double = ts.LinearChain(nodes, pairs).entropy(), ts.LinearChain(nodes.double(), pairs.double()).entropy()
    assert taken == [True, True]
    torch.testing.assert_close(single.double(), double, rtol=0, atol=1e-5)


def test_what_has_no_room_for_another_gauge_goes_the_general_way(taken, monkeypatch):
    """Every path breaks a mask; in float32, differences of such sums would have no digits."""
    nodes, pairs = torch.randn(6, 5), torch.randn(5, 5)
    nodes[1, 2:] -= 1e6
    pairs[:2] -= 1e6
    expected = ts.LinearChain(nodes.double(), pairs.double()).entropy()
    monkeypatch.setattr("tailsum.chains.plan.has_room", lambda *_: False)
    assert taken == [True]
    torch.testing.assert_close(ts.LinearChain(nodes, pairs).entropy().double(), expected, rtol=0, atol=1e-5)
    assert taken == [True, False]


def test_an_impossible_sequence_leaves_the_others_alone():
    nodes = torch.randn(2, 4, 3).double()
    nodes[0, 2] = -math.inf
    nodes.requires_grad_()
    entropy = ts.LinearChain(nodes, torch.zeros(3, 3).double()).entropy()
    alone = ts.LinearChain(nodes[1], torch.zeros(3, 3).double()).entropy()
    assert entropy[0] == -math.inf
    torch.testing.assert_close(entropy[1], alone)
    (gradient,) = torch.autograd.grad(entropy[1], nodes)
    torch.testing.assert_close(gradient, torch.autograd.grad(alone, nodes)[0])


@pytest.mark.parametrize("seed", range(5))
def test_what_leads_nowhere_may_be_forbidden(seed):
    """State 2 of the second position has a way in, which the other model forbids, and no way on: no path uses it."""
    generator = torch.Generator().manual_seed(seed)
    nodes, pairs = torch.randn(4, 3, generator=generator), torch.randn(3, 3, 3, generator=generator)
    pairs[1, 2] = -math.inf
    other = torch.randn(3, 3, 3, generator=generator)
    other[0, :, 2] = -math.inf
    assert ts.LinearChain(nodes, pairs).kl(ts.LinearChain(nodes, other)).isfinite()


@pytest.mark.parametrize("budget", [0, 1 << 30])
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.slow)])
def test_masks_by_the_lowest_number(dtype, budget):
    """They do what minus infinity does, also where a state has one and the pairs that lead to it have one."""
    generator = torch.Generator().manual_seed(0)
    other, possible = ts.LinearChain(torch.zeros(4, 3, dtype=dtype), torch.zeros(3, 3, dtype=dtype)), 0
    for _ in range(16):
        nodes, pairs = (torch.randn(*shape, 3, generator=generator).to(dtype) for shape in ((4,), (3,)))
        masks = [torch.rand(x.shape, generator=generator) < 0.35 for x in (nodes, pairs)]
        found = []
        for lowest in (-math.inf, torch.finfo(dtype).min):
            leaves = [x.masked_fill(m, lowest).requires_grad_() for x, m in zip((nodes, pairs), masks, strict=True)]
            chain = ts.LinearChain(*leaves)
            with ts.table_budget(budget):
                values = torch.stack([chain.entropy(), chain.kl(other), chain.sketch(3).refine().entropy()])
                found.append([values, *(g for x in values for g in torch.autograd.grad(x, leaves, retain_graph=True))])
        if found[0][0].isfinite().all():
            possible += 1
            for a, b in zip(*found, strict=True):
                torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-4)
    assert possible > 5


def test_a_position_masked_by_the_lowest_number_is_impossible():
    nodes, pairs = torch.randn(4, 3), torch.randn(3, 3)
    nodes[2] = torch.finfo(torch.float32).min
    chain = ts.LinearChain(nodes, pairs)
    assert chain.log_partition() == chain.entropy() == -math.inf
