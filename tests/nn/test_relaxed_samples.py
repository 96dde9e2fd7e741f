"""Relaxed samples of states as a decoder uses them: the chances they were drawn by, and mixtures of embeddings."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nn_cases import SHAPES, close, conditionals

from harness.chains import ChainTruth
from tailsum import LinearChain
from tailsum.structure.relaxed import RelaxedSample


def chain_of(lengths, n, seed, dtype=torch.double, forbidden=False):
    generator = torch.Generator().manual_seed(seed)
    emission = torch.randn(len(lengths), max(lengths), n, generator=generator).to(dtype)
    if forbidden:
        emission[..., -1] = torch.where(torch.arange(max(lengths)) % 2 == 0, -math.inf, emission[..., -1])
    transition = torch.randn(n, n, generator=generator).to(dtype)
    return emission.requires_grad_(), transition.requires_grad_(), torch.tensor(lengths)


@given(
    **SHAPES,
    samples=st.sampled_from([(), (2,), (2, 2)]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    hard=st.booleans(),
    forbidden=st.booleans(),
)
@settings(max_examples=40)
def test_chances_are_those_that_a_state_was_drawn_by(lengths, n, seed, samples, dtype, hard, forbidden):
    emission, transition, length = chain_of(lengths, n, seed, dtype, forbidden)
    torch.manual_seed(seed)
    sample = LinearChain(emission, transition, length).rsample(0.7, hard, sample_shape=samples)
    assert sample.chances is not None
    assert sample.chances.dtype == dtype
    assert sample.chances.shape == sample.weights.shape == (*samples, *emission.shape)
    torch.manual_seed(seed + 1)
    factor = torch.randn(sample.chances.shape).to(dtype)
    tolerance, total = 1e-9 if dtype == torch.double else 1e-5, torch.zeros(()).to(dtype)
    for s in itertools.product(*map(range, samples)):
        for b, row in enumerate(lengths):
            expected = conditionals(emission[b, :row], transition, sample.hard[(*s, b)][:row])
            close(sample.chances[(*s, b)][:row], expected.to(dtype), tolerance)
            assert not sample.chances[(*s, b)][row:].any()
            assert (sample.chances[(*s, b)][range(row), sample.hard[(*s, b)][:row]] > 0).all()
            total = total + (factor[(*s, b)][:row] * expected).sum()
    inside = (torch.arange(max(lengths)) < length[:, None]).to(dtype)
    close(sample.chances.sum(-1), inside.expand(*samples, -1, -1), tolerance)
    if not forbidden:
        found = torch.autograd.grad(
            (factor * sample.chances).sum(), (emission, transition), materialize_grads=True, allow_unused=True
        )
        expected = torch.autograd.grad(total, (emission, transition), materialize_grads=True, allow_unused=True)
        for a, b in zip(found, expected, strict=True):
            close(a, b, 10 * tolerance)


@given(**SHAPES, k=st.integers(1, 3))
@settings(max_examples=20)
def test_chances_in_a_sketch_are_those_of_its_weighted_states(lengths, n, seed, k):
    chain = LinearChain(*chain_of(lengths, n, seed)).sketch(
        min(k, n - 1), generator=torch.Generator().manual_seed(seed)
    )
    sample = chain.rsample(hard=True)
    assert sample.chances is not None
    nodes, pairs = chain.terms()
    scores, pairs = nodes.scores + chain.log_weight, pairs.block().expand(len(lengths), -1, -1, -1)
    own = sample.weights.argmax(-1)
    chosen = sample.states.gather(-1, own[..., None])[..., 0]
    close(torch.where(sample.weights.sum(-1) > 0, chosen, -1), sample.hard)
    for b, row in enumerate(lengths):
        truth = ChainTruth(scores[b, :row], pairs[b][: row - 1])
        for t in range(row):
            fits = (truth.paths[:, t + 1 :] == own[b, t + 1 : row]).all(-1)
            mass = torch.stack([truth.probability[fits & (truth.paths[:, t] == i)].sum() for i in range(truth.n)])
            close(sample.chances[b, t], mass / mass.sum())


MIXED = [
    ((2, 3), (2, 3), "own"),
    ((2, 3), (2, 3), "shared"),
    ((2, 3), (2, 3), "shared by sentences"),
    ((2, 3), (2, 3), "shared by positions"),
    ((2, 3), (2, 3), "the same, written out"),
    ((1, 3), (1, 3), "own"),
    ((1, 3), (1, 3), "shared"),
    ((2, 1), (2, 1), "own"),
    ((1, 1), (1, 1), "own"),
    ((3,), (3,), "own"),
    ((3,), (3,), "shared"),
    ((1,), (1,), "own"),
    ((4, 2, 3), (2, 3), "own"),
    ((4, 2, 3), (2, 3), "shared"),
    ((4, 1, 3), (1, 3), "own"),
    ((5, 4, 1, 3), (1, 3), "shared"),
    ((1, 2, 3), (2, 3), "own"),
]


@pytest.mark.parametrize(("lead", "of_states", "kind"), MIXED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mixtures_are_those_of_the_gathered_embeddings(lead, of_states, kind, dtype):
    n, k = 7, 4
    drawn = torch.randint(n, (*of_states, k))
    states = {
        "own": lambda: drawn,
        "shared": lambda: drawn.reshape(-1, k)[0].expand(*of_states, k),
        "shared by sentences": lambda: drawn[:1].expand(*of_states, k),
        "shared by positions": lambda: drawn[:, :1].expand(*of_states, k),
        "the same, written out": lambda: drawn[:1, :1].expand(*of_states, k).contiguous(),
    }[kind]()
    weights = torch.randn(*lead, k, dtype=dtype).softmax(-1).requires_grad_()
    embeddings, factor = torch.randn(n, 5, dtype=dtype, requires_grad=True), torch.randn(*lead, 5, dtype=dtype)
    found = RelaxedSample(weights, states, None).mix(embeddings)
    expected = (weights[..., None] * embeddings[states]).sum(-2)
    assert found.shape == (*lead, 5)
    close(found, expected, 1e-5)
    of = [torch.autograd.grad((x * factor).sum(), (weights, embeddings)) for x in (found, expected)]
    for a, b in zip(*of, strict=True):
        close(a, b, 1e-5)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("kept", [None, 2])
def test_mixtures_of_what_a_chain_gives(batch, kept):
    chain = LinearChain(*chain_of([3] * batch, 4, 0))
    sample = (chain if kept is None else chain.sketch(kept)).rsample(hard=True, sample_shape=(3,))
    table = torch.randn(4, 5).double()
    close(sample.mix(table), table[sample.hard])
