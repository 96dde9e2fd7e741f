"""Seconds and bytes of one operation: medians after a warm-up, in which its memory is measured on a CPU."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch

from tailsum import PeakMemory

T = TypeVar("T")

MOST_REPEATS = 30
SLOW = 1.0  # seconds: beyond it, one run is enough


@dataclass(frozen=True)
class Timing:
    """The median time of some runs, and the most memory that a run held beyond what was there before."""

    seconds: float
    fastest: float
    peak_bytes: int
    repeats: int


def repeats_of(seconds: float, target: float) -> int:
    """How often something is run that takes so long: for about `target` seconds, three times at least unless it is slow.

    >>> [repeats_of(seconds, 0.3) for seconds in (0.0001, 0.02, 0.9, 5.0)]
    [30, 15, 3, 1]
    """
    if seconds > SLOW:
        return 1
    return min(MOST_REPEATS, max(3, round(target / max(seconds, 1e-9))))


def cost_of(seconds: float, target: float) -> float:
    """How long it takes to measure something that takes so long, the warm-up included."""
    return seconds * (1 + repeats_of(seconds, target))


def measure(run: Callable[[], object], device: torch.device, target: float) -> Timing:
    """Time an operation on a device. A first run, not timed, has the memory and what is compiled or cached."""
    if device.type == "cuda":
        return _measure_cuda(run, device, target)
    with PeakMemory() as memory:
        warm = timed(run, device)[1]
    times = [timed(run, device)[1]]
    # The faster of two: one alone may have waited for other work on the machine, and then would not be repeated.
    times += [timed(run, device)[1] for _ in range(repeats_of(min(warm, times[0]), target) - 1)]
    return Timing(statistics.median(times), min(times), memory.peak, len(times))


def _measure_cuda(run: Callable[[], object], device: torch.device, target: float) -> Timing:
    run()
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    times = [timed(run, device)[1]]
    peak = torch.cuda.max_memory_allocated(device) - before
    times += [timed(run, device)[1] for _ in range(repeats_of(times[0], target) - 1)]
    return Timing(statistics.median(times), min(times), peak, len(times))


def timed(run: Callable[[], T], device: torch.device | None = None) -> tuple[T, float]:
    """A result, and the seconds until the device has done its work. Without a device: a GPU, if there is one."""
    _finish(device)
    start = time.perf_counter()
    result = run()
    _finish(device)
    return result, time.perf_counter() - start


def _finish(device: torch.device | None) -> None:
    """Wait for what was given to the device."""
    if torch.cuda.is_available() if device is None else device.type == "cuda":
        torch.cuda.synchronize(device)
