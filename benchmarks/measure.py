"""Seconds and bytes, as ratios of things measured in one run."""

import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import torch


@dataclass(frozen=True)
class Figure:
    """One measured figure and what it should be."""

    name: str
    measured: str
    goal: str
    reached: bool


def seconds(run: Callable[[], object], repeats: int = 3) -> float:
    """The median time of some runs after a warm-up; on a GPU, until the work is done."""
    times = []
    for _ in range(repeats + 1):
        _finish()
        start = time.perf_counter()
        run()
        _finish()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def _finish() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


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
        return self.peak - self.start


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
