"""What segmentations cost: elements written by operators, and tensors alive at once."""

import itertools

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import tailsum as ts
from tailsum.chains import segment_scan
from tailsum.numerics.memory import PeakMemory


class Written(TorchDispatchMode):
    """Counts the elements of all new tensors."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        given = {x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        fresh = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        self.count += sum(x.numel() for x in fresh if x.untyped_storage()._cdata not in given)
        return result


def written(length, form, lead):
    n, longest = 4, 6
    g = torch.Generator().manual_seed(0)
    shapes = [(length, longest, n)] if form == "table" else [(length, n), (longest, n)]
    pairs = (length - 1, n, n) if lead == "time" else (n, n)
    leaves = [torch.randn(shape, generator=g, requires_grad=True) for shape in (*shapes, pairs)]
    segment = leaves[0] if form == "table" else ts.Durations(*leaves[:-1])
    forward, backward = Written(), Written()
    with forward:
        total = ts.SemiMarkov(segment, leaves[-1]).log_partition()
    with backward:
        total.backward()
    return forward.count, backward.count


@pytest.mark.parametrize("lead", ["shared", "time"])
@pytest.mark.parametrize("form", ["table", "durations"])
def test_both_passes_grow_as_the_length_does(form, lead):
    counts = [written(length, form, lead) for length in (20, 40, 80)]
    for (one, one_back), (two, two_back) in itertools.pairwise(counts):
        assert two <= 2.1 * one
        assert two_back <= 2.1 * one_back
    assert counts[-1][1] <= 4 * counts[-1][0]


def leaves_of(length, longest, n):
    g = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, n, generator=g).double().requires_grad_() for shape in ((length,), (longest,), (n,))]


def operations(form, emission, duration, transition):
    segment = ts.Durations(emission, duration)
    model = ts.SemiMarkov(segment if form == "durations" else segment.tabled().scores, transition)
    return model.log_partition(), model.entropy(), (model.label_marginals() * emission).sum()


@pytest.mark.parametrize("form", ["table", "durations"])
def test_recomputed_windows_change_nothing(form, monkeypatch):
    """Values, gradients, and gradients of the gradients that the entropy and the marginals have."""
    leaves = leaves_of(8, 3, 2)
    expected = [(value, *torch.autograd.grad(value, leaves, retain_graph=True)) for value in operations(form, *leaves)]
    monkeypatch.setattr(segment_scan, "_KEPT", 0)
    monkeypatch.setattr(segment_scan, "_CHUNK", 1)
    found = [(value, *torch.autograd.grad(value, leaves, retain_graph=True)) for value in operations(form, *leaves)]
    for one, other in zip(found, expected, strict=True):
        for x, y in zip(one, other, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-10)
    assert torch.autograd.gradgradcheck(lambda *x: operations(form, *x)[0], leaves_of(3, 2, 1))


@pytest.mark.slow
def test_durations_never_build_the_table(monkeypatch):
    """Both passes of the log-partition; the entropy, the marginals of labels, the best, its score and samples."""
    monkeypatch.setattr(segment_scan, "_KEPT", 1 << 10)
    monkeypatch.setattr(segment_scan, "_CHUNK", 1)
    length, longest, n = 150, 60, 2
    table = 4 * length * longest * n
    emission, duration, transition = (x.detach().float().requires_grad_() for x in leaves_of(length, longest, n))
    with PeakMemory() as memory:
        model = ts.SemiMarkov(ts.Durations(emission, duration), transition)
        model.log_partition().backward()
    assert memory.largest < table / 5
    assert memory.peak < 1.5 * table
    with PeakMemory() as memory, torch.no_grad():
        model = ts.SemiMarkov(ts.Durations(emission, duration), transition)
        model.entropy(), model.label_marginals(), model.score(model.argmax()), model.sample((2,))
    assert memory.largest < table / 5
    assert memory.peak < 1.5 * table


@pytest.mark.parametrize("lead", [(4,), (1, 1), (1, 4)])
@pytest.mark.parametrize("factored", [False, True])
def test_samples_copy_columns_of_the_transition_alone(lead, factored, monkeypatch):
    n, draws = 60, 200
    monkeypatch.setattr("tailsum.chains.semi_markov.tile_rows", lambda *_: draws)
    table, left, right = torch.randn(*lead, n, n), torch.randn(*lead, n, 2), torch.randn(n, 2)
    model = ts.SemiMarkov(torch.randn(5, 2, n), ts.Factored(left, right) if factored else table)
    with PeakMemory() as memory:
        model.sample((draws,))
    assert memory.largest <= 8 * draws * 2 * n  # the scores of the segments that may end at a place, in float64


def test_densities_of_samples_build_no_parts():
    """As many numbers for each sample as it has kept states, not one for each duration and state."""
    length, longest, n, draws = 20, 16, 30, 50
    small = ts.SemiMarkov(torch.randn(length, longest, n), torch.randn(n, n)).sketch(2)
    sample = small.sample((draws,))
    with PeakMemory() as memory:
        small.sample_log_prob(sample)
    assert memory.largest < draws * length * longest * n
