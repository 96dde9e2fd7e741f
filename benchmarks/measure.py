"""Seconds and bytes, as ratios of things measured in one run."""

import statistics
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import torch
from torch import Tensor
from typing_extensions import Self

from tailsum import Propose, Selection, Structure, estimate
from tailsum_studies.bench.measure import timed


@dataclass(frozen=True)
class Figure:
    """One measured figure and what it should be."""

    name: str
    measured: str
    goal: str
    reached: bool


def seconds(run: Callable[[], object], repeats: int = 3) -> float:
    """The median time of some runs after a warm-up."""
    return statistics.median([timed(run)[1] for _ in range(repeats + 1)][1:])


@dataclass(frozen=True)
class Replicates:
    """Log-partition and entropy of several sketches of one model, each alone, and the mean seconds of one."""

    log_partition: Tensor
    entropy: Tensor
    seconds: float


def replicate(
    model: Structure,
    count: int,
    selection: Selection,
    proposal: Propose | None = None,
    generator: torch.Generator | None = None,
) -> Replicates:
    def both(small: Structure) -> Tensor:
        return torch.stack((small.log_partition(), small.entropy()), -1)

    def run() -> Tensor:
        how = {"selection": selection, "proposal": proposal, "generator": generator}
        return estimate(model, both, replicates=count, check=False, **how).replicates

    found, duration = timed(run)
    return Replicates(found[..., 0], found[..., 1], duration / count)


class ResidentMemory:
    """Within it, the largest growth of the process in bytes: all memory, also what no tensor accounts for (Linux)."""

    def __enter__(self) -> Self:
        self.start = self.peak = _resident()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.005):
            self.peak = max(self.peak, _resident())

    @property
    def growth(self) -> int:
        """Peak minus start."""
        return self.peak - self.start


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
