"""What a step of training will take, in memory and time, before it is begun.

Both follow from the sizes of the large tensors: B sentences of T words at once, N states of size d, K of them kept, V words. The
factors were fitted to small steps (up to 1 GB) on one CPU core. Memory, by `PeakMemory`, holds to within a factor of 2.5 in
the tests; time is rougher, and neither was measured on a GPU.
"""

import os
import re
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from time import perf_counter

import torch

from tailsum_studies.tables import is_kept
from tailsum_studies.vae.data import Corpus
from tailsum_studies.vae.settings import Settings

FLOAT = 4  # bytes
LONG = 30.0  # seconds that a step may take without a warning
LAUNCHES = 3e-3  # seconds a position, however little is computed there


@dataclass(frozen=True)
class Forecast:
    """The bytes that a step takes, by the options to lower if there are too many, and its arithmetic operations."""

    memory: dict[str, float]
    work: float
    positions: float  # that are worked on one after the other

    @property
    def total(self) -> float:
        """All bytes."""
        return sum(self.memory.values())

    def seconds(self, rate: float) -> float:
        """How long a step takes with so many operations a second."""
        return self.work / rate + self.positions * LAUNCHES


def forecast(settings: Settings, corpus: Corpus) -> Forecast:
    """What a step will take; what a pretrained encoder takes is not in it."""
    lengths = [len(sentence) for sentence in corpus.train]
    return Forecast(
        _memory(settings, len(corpus.vocabulary), max(lengths)),
        _work(settings, len(corpus.vocabulary), sum(lengths) / len(lengths)),
        settings.shards * sum(lengths) / len(lengths),
    )


def _memory(settings: Settings, V: int, T: int) -> dict[str, float]:
    """Bytes of weights (with gradients, Adam's moments, and copies), and of what the backward pass needs."""
    N, d, sums = settings.states, settings.state_size, settings.sums()
    at_once = ceil(settings.batch / settings.shards) * T
    inner = settings.size + settings.hidden + d
    sizes: dict[str, float] = {
        "--states or --state-size": 6 * N * (2 * d + 1),
        "--words or --size": 6 * V * (2 * settings.size + 1),
        "--batch, --words or --probes, or raise --shards": 3 * at_once * V * settings.probes,
        "--batch, --longest or --hidden, or raise --shards": 12 * at_once * inner,
        "--states, --batch or --longest, or raise --shards": 4 * at_once * N,
    }
    K, L = sums.kept, sums.landmarks
    match settings.estimator:
        case "topk" | "rdp":
            sizes["--kept, --batch or --longest, or raise --shards"] = at_once * (
                6 * _table(K**2, at_once) + 14 * K * d
            )
        case "tailsum" if K < N:
            few = at_once * N * K if d > K else 0  # a table is made where it is smaller than its factors
            table = at_once * (2.5 * _table(K**2, at_once) + 5 * K * d)
            sizes["--kept, --landmarks or --batch, or raise --shards"] = table + 2 * N * L + few
        case _:
            sizes["--states"] = 6 * _table(N**2, 1)
            sizes["--states, --batch or --longest, or raise --shards"] += 28 * at_once * N
    return {name: FLOAT * size for name, size in sizes.items()}


def _table(entries: int, copies: int) -> int:
    """What is kept of tables of so many entries: those over the budget are never built."""
    return entries if is_kept(FLOAT * entries * copies) else 0


def _work(settings: Settings, V: int, T: float) -> float:
    """Arithmetic operations of a step, forwards and backwards, as if all were those of matrix products."""
    B, N, d, sums = settings.batch, settings.states, settings.state_size, settings.sums()
    K, L = sums.kept, sums.landmarks
    words = 23 * settings.size * B * T * V * settings.probes
    match settings.estimator:
        case "topk" | "rdp":
            return words + B * T * (15_000 * N + 6_200 * K**2)
        case "tailsum" if K < N:
            return words + B * T * (N * (85_000 + 66 * d * (K + L)) + 7_000 * (K + L) ** 2)
        case _:
            return words + B * T * 15_000 * N + T * N**2 * (850 + 60 * B)


def what_to_lower(found: Forecast, settings: Settings) -> str:
    """The options that most of the memory is due to, and what they are now."""
    sums = settings.sums()
    now = {**settings.as_json(), "kept": sums.kept, "landmarks": sums.landmarks}
    options = max(found.memory, key=found.memory.__getitem__)
    return re.sub(r"--([a-z-]+)", lambda name: f"{name[0]} (now {now[name[1].replace('-', '_')]})", options)


def memory_of(device: torch.device) -> float:
    """The bytes of a GPU, or of the machine, or of what a container may use of it."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(there, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # none, or "max"
        return there


def rate_of(device: torch.device, size: int = 1024) -> float:
    """Arithmetic operations a second in a product of two matrices."""
    x = torch.ones(size, size, device=device)
    (x @ x)[0, 0].item()  # the first prepares
    start = perf_counter()
    (x @ x)[0, 0].item()  # waits for a GPU
    return 2 * size**3 / (perf_counter() - start)


def duration(seconds: float) -> str:
    """A time in a unit that suits it.

    >>> [duration(x) for x in (0.04, 12.3, 600.0, 20_000.0)]
    ['0.04 s', '12 s', '10 minutes', '5.6 hours']
    """
    for unit, size in (("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.2g} {unit}"
    return f"{seconds:.2g} s"
