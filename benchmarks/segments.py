"""Time and memory of segmentations: how they grow with the length, and what they hold without a table."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from benchmarks.measure import Figure, ResidentMemory
from tailsum import Durations, SemiMarkov
from tailsum_studies.bench.measure import timed


def leaves(*shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]


def growth_figures(longest: int = 100, n: int = 20, lengths: tuple[int, ...] = (250, 1000, 4000)) -> Iterator[Figure]:
    """Forward and backward of the log-partition as the length grows."""
    _check_durations()
    passes: list[tuple[float, float]] = []
    for length in lengths:
        segment, transition = leaves((length, longest, n), (n, n))
        best = [math.inf, math.inf]
        for _ in range(3):
            total, forward = timed(SemiMarkov(segment, transition).log_partition)
            _, backward = timed(total.backward)
            best = [min(a, b) for a, b in zip(best, (forward, backward), strict=True)]
        passes.append((best[0], best[1]))
    first, last = sum(passes[0]), sum(passes[-1])
    slope = math.log(last / first) / math.log(lengths[-1] / lengths[0])
    yield Figure(
        f"segments forward + backward, D={longest} N={n}, T={lengths[0]} to {lengths[-1]:,}: slope of log time in log T",
        f"{slope:.2f} ({first:.2f} s to {last:.2f} s)",
        "at most 1.1",
        slope <= 1.1,
    )
    ratio = max(backward / forward for forward, backward in passes)
    yield Figure("the same: backward over forward", f"{ratio:.1f}", "at most 4", ratio <= 4)


def durations_figures(length: int = 100_000, longest: int = 1000, n: int = 24) -> Iterator[Figure]:
    """Both passes without the table of all segments, which would be 9 GiB."""
    emission, duration, transition = leaves((length, n), (longest, n), (n, n))
    with ResidentMemory() as memory:
        model = SemiMarkov(Durations(emission, duration), transition)
        total, forward = timed(model.log_partition)
        _, backward = timed(total.backward)
    if emission.grad is None or not torch.allclose(emission.grad.sum(-1), torch.ones(length), atol=1e-3):
        raise AssertionError("the probabilities of the states at a position do not add up to one")
    yield Figure(
        f"durations forward + backward, T={length:,} D={longest:,} N={n}: peak memory",
        f"{memory.growth / 2**30:.2f} GiB (the table: {4 * length * longest * n / 2**30:.1f}; {forward:.0f} + {backward:.0f} s)",
        "under 2 GiB",
        memory.growth < 2 << 30,
    )


def _check_durations() -> None:
    emission, duration, transition = (x.double() for x in leaves((12, 3), (5, 3), (3, 3)))
    lean = SemiMarkov(Durations(emission, duration), transition)
    torch.testing.assert_close(lean.log_partition(), lean.tabled().log_partition())
