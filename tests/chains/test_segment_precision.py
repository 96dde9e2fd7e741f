"""Segmentations in float32 and with masks by finite numbers: long sequences lose no digits, and nothing is NaN."""

import math

import pytest
import torch

import tailsum as ts

LOWEST = {dtype: torch.finfo(dtype).min for dtype in (torch.float32, torch.float64)}


def models(length, longest, n, offset, seed=0):
    """The same model in float32 and in float64; `offset` is added for each position."""
    g = torch.Generator().manual_seed(seed)
    segment = torch.randn(length, longest, n, generator=g) + offset * torch.arange(1, longest + 1)[:, None]
    transition = torch.randn(n, n, generator=g)
    return [ts.SemiMarkov(segment.to(dtype), transition.to(dtype)) for dtype in (torch.float32, torch.float64)]


@pytest.mark.parametrize(("length", "offset"), [(400, 0.0), (400, -100.0), (200, 30.0)])
def test_float32_does_not_drift_with_the_length(length, offset):
    single, double = models(length, 5, 4, offset)
    log_partition, expected = single.log_partition().double(), double.log_partition()
    torch.testing.assert_close(log_partition, expected, rtol=2e-7, atol=1e-4)
    torch.testing.assert_close(single.marginals().double(), double.marginals(), rtol=0, atol=2e-5)
    best = single.argmax()
    torch.testing.assert_close(double.score(best), double.score(double.argmax()), rtol=1e-7, atol=1e-4)
    torch.testing.assert_close(single.score(best).double(), double.score(best), rtol=1e-7, atol=0)


@pytest.mark.parametrize("offset", [0.0, -100.0])
def test_entropy_in_float32(offset):
    single, double = models(200, 5, 4, offset)
    torch.testing.assert_close(single.entropy().double(), double.entropy(), rtol=1e-5, atol=0)


def masked(seed, dtype, value):
    """A random model in which about half of the scores are masked by `value`; the last of each three by all of them."""
    g = torch.Generator().manual_seed(seed)
    length, longest, n = (int(torch.randint(1, size, (), generator=g)) for size in (6, 4, 4))
    segment, transition = torch.randn(2, length, longest, n, generator=g), torch.randn(n, n, generator=g)
    segment = segment.to(dtype).masked_fill(torch.rand(segment.shape, generator=g) < 0.4, value)
    if seed % 3 == 2:
        segment[1] = value
    return ts.SemiMarkov(segment, transition.to(dtype).masked_fill(torch.rand(n, n, generator=g) < 0.4, value))


@pytest.mark.parametrize("dtype", LOWEST, ids=str)
def test_masks_by_finite_numbers_are_minus_infinity(dtype):
    for seed in range(6):
        expected = masked(seed, dtype, -math.inf)
        for value in (-1e30, LOWEST[dtype]):
            found = masked(seed, dtype, value)
            for operation in ("log_partition", "entropy", "marginals", "label_marginals"):
                torch.testing.assert_close(getattr(found, operation)(), getattr(expected, operation)())
            torch.testing.assert_close(found.kl(found), expected.kl(expected))
            best = found.argmax()
            assert all(torch.equal(x, y) for x, y in zip(best, expected.argmax(), strict=True))
            torch.testing.assert_close(found.score(best), expected.score(best))


def test_an_impossible_sequence():
    """No segmentation; log Z and the entropy are minus infinity, and the divergence is infinite."""
    for value in (-math.inf, -1e30, LOWEST[torch.float32]):
        model = ts.SemiMarkov(torch.full((4, 3, 2), value), torch.zeros(2, 2))
        assert model.log_partition() == model.entropy() == -math.inf
        assert model.kl(model) == math.inf
        for found in (model.argmax(), model.sample()):
            assert found.starts.eq(-1).all()
            assert found.states.eq(-1).all()
            assert found.labels().eq(-1).all()
            assert model.score(found) == -math.inf


def test_what_stands_in_the_padding_of_segments_is_ignored():
    model = ts.SemiMarkov(torch.randn(2, 4, 3, 5), torch.randn(5, 5), [4, 2])
    clean = model.sample()
    dirty = ts.Segments(*(x.clone() for x in clean))
    for x in dirty:
        x[1, 2:] = 7
    assert torch.equal(model.score(dirty), model.score(clean))
    marked = clean._replace(durations=torch.where(clean.starts < 0, -1, clean.durations))
    assert torch.equal(model.score(marked), model.score(clean))
    assert model.score(ts.Segments(*torch.full((3, 2, 4), -1))).eq(-math.inf).all()
