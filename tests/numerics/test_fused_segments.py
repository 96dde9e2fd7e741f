"""Kernels of semi-Markov models in Triton's interpreter: whole models, several tiles, long sequences, samples."""

import math

import pytest
import torch

import tailsum as ts
from harness.interpreter import with_fast_numbers
from harness.poison import poison
from tailsum.chains.segment_paths import best_walk
from tailsum.chains.segment_sums import flat_example, log_segment_sum
from tailsum.numerics.fused.segment_tiles import Inputs

pytest.importorskip("triton")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, in the interpreter: the logarithm of zero


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch):
    poison(monkeypatch)


def slopes(kernel, example, use, dtype):
    inputs = [x.to(dtype).requires_grad_() for x in example.inputs]
    with ts.kernels(use):
        total = kernel(*inputs, **example.settings)
        finite = total.masked_fill(total == -math.inf, 0.0)
        return total.detach(), *torch.autograd.grad(finite.sum(), inputs)


@pytest.mark.parametrize("form", range(5))
def test_several_tiles(form, monkeypatch):
    small = {"D": 4, "K": 2, "I": 4, "J": 2, "num_warps": 1}

    def tiles(plain, *names):
        return lambda self, *given: plain(self, *given) | {name: small[name] for name in names}

    monkeypatch.setattr(Inputs, "tile", tiles(Inputs.tile, "D", "K", "num_warps"))
    monkeypatch.setattr(Inputs, "pair_tile", tiles(Inputs.pair_tile, "I", "J", "num_warps"))
    example = flat_example(batch=2, length=4, longest=3, n=3, form=form)
    results = (
        slopes(log_segment_sum, example, "always", torch.float32),
        slopes(log_segment_sum, example, "never", torch.float64),
    )
    for ours, truth in zip(*results, strict=True):
        torch.testing.assert_close(ours, truth, rtol=2e-5, atol=2e-5, check_dtype=False)
    with ts.kernels("always"):
        found = best_walk(*example.inputs, **example.settings)
    with ts.kernels("never"):
        assert torch.equal(found, best_walk(*(x.double() for x in example.inputs), **example.settings))


def built(form, dtype, censored=False, batch=(2,)):
    g = torch.Generator().manual_seed(1)

    def leaf(*shape):
        return torch.randn(shape, generator=g).to(dtype).requires_grad_()

    length, longest, n = 4, 3, 2
    leaves = [leaf(*batch, length, n), leaf(longest, n)] if form == "durations" else [leaf(*batch, length, longest, n)]
    if form == "factored":
        pairs = [leaf(n, 1), leaf(length - 1, n, 1)]
        transition = ts.Factored(*pairs)
    elif form == "by duration":
        pairs = [leaf(longest, n, n)]
        transition = ts.ByDuration(pairs[0])
    else:
        pairs = [leaf(n, n)]
        transition = pairs[0]
    segment = ts.Durations(*leaves) if form == "durations" else leaves[0]
    lengths = torch.randint(1, length + 1, batch, generator=g)
    return ts.SemiMarkov(segment, transition, lengths, censored=censored), [*leaves, *pairs]


@pytest.mark.parametrize("censored", [False, True])
@pytest.mark.parametrize("form", ["table", "durations", "factored", "by duration", "sketch"])
def test_models(form, censored):
    found = []
    for use, dtype in (("always", torch.float32), ("never", torch.float64)):
        with ts.kernels(use):
            model, leaves = built(form, dtype, censored, batch=(2, 1))
            if form == "sketch":
                index = torch.tensor([1, 0]).expand(2, 1, 4, 2)
                model = model.gather(index)
            total = model.log_partition()
            grads = torch.autograd.grad(total.sum(), leaves, retain_graph=True)
            second = torch.autograd.grad(model.entropy().sum(), leaves)
            found.append((total, *grads, *second, *model.argmax()))
    for ours, truth in zip(*found, strict=True):
        torch.testing.assert_close(ours, truth, rtol=2e-5, atol=2e-5, check_dtype=False)


def test_scores_of_pairs_of_some_dimensions_of_the_batch():
    segment, pairs = torch.randn(2, 3, 4, 2, 2), torch.randn(3, 3, 2, 2)
    model = ts.SemiMarkov(segment, pairs)
    with ts.kernels("always"):
        torch.testing.assert_close(
            model.log_partition(), ts.SemiMarkov(segment, pairs.expand(2, 3, 3, 2, 2)).log_partition()
        )
        found = model.log_partition()
    torch.testing.assert_close(found, model.log_partition())


def test_long_sequences_lose_no_digits():
    inputs = (torch.randn(1, 300, 2) - 50, *(torch.randn(2, 1, 3, 2) - 20), torch.randn(1, 1, 1, 2, 2))
    with ts.kernels("always"):
        found = log_segment_sum(*inputs, lengths=torch.tensor([300]))
    with ts.kernels("never"):
        truth = log_segment_sum(*(x.double() for x in inputs), lengths=torch.tensor([300]))
    assert abs(found - truth) < 1e-4  # of some 20,000


def test_masks_by_large_numbers_stay_with_their_segments():
    emission = torch.randn(1, 30, 2)
    emission[:, ::3] = -1e9
    found = []
    for use, dtype in (("always", torch.float32), ("never", torch.float64)):
        leaf = emission.to(dtype).requires_grad_()
        with ts.kernels(use):
            segment = ts.Durations(leaf, torch.ones(4, 2, dtype=dtype))
            total = ts.SemiMarkov(segment, torch.ones(2, 2, dtype=dtype)).log_partition()
        found.append(torch.autograd.grad(total.sum(), leaf)[0])
    torch.testing.assert_close(*found, rtol=2e-5, atol=2e-5, check_dtype=False)


def test_samples_follow_the_law(monkeypatch):
    with_fast_numbers(monkeypatch)
    model = ts.SemiMarkov(torch.randn(3, 2, 1), torch.randn(1, 1))
    torch.manual_seed(0)
    with ts.kernels("always"):
        samples = model.sample((150,))
    best = model.topk(5)
    for k in range(int((best.scores > -math.inf).sum())):
        same = (samples.starts == best.configurations.starts[k]).all(-1)
        chance = model.log_prob(best.configurations.at(k)).exp()
        assert abs(same.double().mean() - chance) < 4 * math.sqrt(0.25 / 150)


def test_impossible_sequences_are_empty():
    segment = torch.full((2, 4, 3, 2), -math.inf)
    segment[0] = 0.0
    with ts.kernels("always"):
        model = ts.SemiMarkov(segment, torch.zeros(2, 2))
        for found in (model.argmax(), model.sample()):
            assert found.starts[1].eq(-1).all()
            assert found.states[1].eq(-1).all()
            assert found.durations[0].sum() == 4


@pytest.mark.parametrize("batch", [0, 2])
@pytest.mark.parametrize("pairs", [(2, 2), (0, 2, 2)])
def test_a_single_position(batch, pairs):
    segment, found = torch.randn(batch, 1, 3, 2, requires_grad=True), []
    for use in ("always", "never"):
        with ts.kernels(use):
            model = ts.SemiMarkov(segment, torch.randn(pairs))
            assert model.sample((3,)).starts.shape == (3, batch, 1)
            found.append((model.log_partition(), model.entropy(), model.marginals(), model.argmax().states))
    for ours, truth in zip(*found, strict=True):
        torch.testing.assert_close(ours, truth)
