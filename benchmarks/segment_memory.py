"""Resident memory of segmentations with very many states: `python -m benchmarks.segment_memory` prints a table.

Each operation runs in a process of its own (Linux): a heap that an earlier one left behind would hide what the next one
takes.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.measure import Figure
from tailsum import Durations, Factored, SemiMarkov, table_budget
from tailsum.structure.terms import tensors_in

BUDGET, ALLOWED = 256 << 20, 600 << 20
FORMS = ("table", "durations")

Operation = Callable[[SemiMarkov, SemiMarkov], Any]  # of a model and another one to compare it with
RECORDED: dict[str, Operation] = {
    "log_partition": lambda model, _: model.log_partition(),
    "marginals": lambda model, _: model.marginals().square(),
    "label_marginals": lambda model, _: model.label_marginals().square(),
    "entropy": lambda model, _: model.entropy(),
    "kl": lambda model, other: model.kl(other),
    "cross_entropy": lambda model, other: model.cross_entropy(other),
    "expectation": lambda model, other: model.expectation(other),
    "max": lambda model, _: model.max(),
    "rsample": lambda model, _: model.rsample(0.5).weights.square(),
    "sketch(100)": lambda model, _: model.sketch(100).entropy(),
}
OPERATIONS: dict[str, Operation] = {
    **RECORDED,
    "argmax": lambda model, _: model.argmax(),
    "topk(3)": lambda model, _: model.topk(3),
    "sample((10,))": lambda model, _: model.sample((10,)),
    "sample_distinct(3)": lambda model, _: model.sample_distinct(3),
}


def memory_figures(
    n: int = 20_000, longest: int = 4, length: int = 6, batch: int = 2, size: int = 32, form: str = "table"
) -> Iterator[Figure]:
    """The largest growth of a process, less the table budget and what it returns, for each operation."""
    table = 4 * n * n / 2**20
    for name in [*OPERATIONS, *(f"{name}, backward" for name in RECORDED)]:
        sizes = map(str, (n, longest, length, batch, size))
        run = [sys.executable, "-m", "benchmarks.segment_memory", form, name, *sizes]
        done = subprocess.run(run, check=True, capture_output=True, text=True)  # noqa: S603  (our own)
        grown, seconds = map(float, done.stdout.split())
        yield Figure(
            f"SemiMarkov ({form}) {name}, N={n:,} D={longest} T={length} B={batch}: memory beside inputs and results",
            f"{grown / 2**20:.0f} MiB (the table of pairs: {table:,.0f}; {seconds:.0f} s)",
            "at most 600 MiB over a table budget of 256 MiB",
            grown <= ALLOWED + BUDGET,
        )


def measured(form: str, name: str, sizes: tuple[int, ...]) -> tuple[int, float]:
    """The growth of this process less its results, in bytes, and seconds."""
    name, _, backward = name.partition(", ")
    _run(form, name, bool(backward), (20, *sizes[1:]))  # loads what is loaded on first use
    return _run(form, name, bool(backward), sizes)


def _run(form: str, name: str, backward: bool, sizes: tuple[int, ...]) -> tuple[int, float]:
    leaves, other = _leaves(form, sizes, 0), _model(form, _leaves(form, sizes, 1))
    model = _model(form, [x.requires_grad_(backward) for x in leaves])
    before, start = _resident("VmRSS"), time.perf_counter()
    with table_budget(BUDGET):
        found = OPERATIONS[name](model, other)
        if backward:
            found.sum().backward()
    seconds = time.perf_counter() - start
    results = [*tensors_in(found), *(x.grad for x in leaves if x.grad is not None)]
    grown = _resident("VmHWM") - before
    return grown - sum(x.numel() * x.element_size() for x in results), seconds


def _leaves(form: str, sizes: tuple[int, ...], seed: int) -> list[Tensor]:
    n, longest, length, batch, size = sizes
    g = torch.Generator().manual_seed(seed)
    own = [(batch, length, longest, n)] if form == "table" else [(batch, length, n), (longest, n)]
    return [torch.randn(shape, generator=g).mul_(0.5) for shape in (*own, (n, size), (n, size))]


def _model(form: str, leaves: list[Tensor]) -> SemiMarkov:
    *own, left, right = leaves
    return SemiMarkov(own[0] if form == "table" else Durations(*own), Factored(left, right))


def _resident(which: str) -> int:
    """Memory in bytes, now (`VmRSS`) or at most (`VmHWM`); getrusage would count what the parent process held."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(which))


if __name__ == "__main__":
    if len(sys.argv) > 2:
        print(*measured(sys.argv[1], sys.argv[2], tuple(map(int, sys.argv[3:]))))
    else:
        for form in FORMS:
            for figure in memory_figures(form=form):
                print(f"{'ok  ' if figure.reached else 'MISS'} {figure.name}: {figure.measured}", flush=True)
