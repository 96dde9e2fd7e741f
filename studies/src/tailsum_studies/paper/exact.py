"""Cells of the exact sum: what it takes on the models that estimators are measured on, for plots of cost to show it too."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from tailsum import PeakMemory, TopK, Uniform
from tailsum_studies.paper.cells import Cell, Made, Method, Subject, ask, measured
from tailsum_studies.paper.rows import EXACT, Estimate

REPEATS = 5


def exact_cell(subject: Subject, repeats: int = REPEATS) -> Cell[Estimate]:
    """Seconds and memory of the exact answers: rows whose estimates are the exact values."""
    n = subject.states
    everything = Method(EXACT, "all", n, TopK(n), Uniform(), repeats)  # names the cell: nothing is sketched
    quantities = subject.quantities
    return measured(subject, everything, Estimate, quantities, lambda found, _: _replicates(found, quantities, repeats))


@torch.no_grad()
def _replicates(found: Made, quantities: Sequence[str], repeats: int) -> Iterator[list[dict[str, Any]]]:
    peaks: dict[str, int] = {}
    for quantity in quantities:
        with PeakMemory() as memory:
            ask(found.model, quantity)
        peaks[quantity] = memory.peak
    for replicate in range(repeats):
        rows: list[dict[str, Any]] = []
        for quantity in quantities:
            start = time.perf_counter()
            answers = ask(found.model, quantity)
            seconds = round(time.perf_counter() - start, 6)
            same = {"quantity": quantity, "seconds": seconds, "peak_bytes": peaks[quantity]}
            places = enumerate(answers.flatten().tolist(), replicate * answers.numel())
            rows += [{**same, "replicate": place, "estimate": value, "exact": value} for place, value in places]
        yield rows
