"""Resident memory of single operations, each in a process of its own (Linux).

A heap that an earlier operation left behind would hide what the next one takes.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from benchmarks.measure import Figure
from tailsum import table_budget
from tailsum.structure.terms import tensors_in

BUDGET, ALLOWED = 256 << 20, 600 << 20


def figure(module: str, name: str, n: int, arguments: Sequence[object]) -> Figure:
    """What `python -m MODULE ARGUMENTS` prints, `grown` of an operation with n states, against what is allowed."""
    run = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(run, check=True, capture_output=True, text=True)  # noqa: S603  (our own)
    size, seconds = map(float, done.stdout.split())
    return Figure(
        f"{name}: memory beside inputs and results",
        f"{size / 2**20:.0f} MiB (a table of pairs: {4 * n * n / 2**20:,.0f}; {seconds:.0f} s)",
        "at most 600 MiB over a table budget of 256 MiB",
        size <= ALLOWED + BUDGET,
    )


def grown(operation: Callable[[], Any], leaves: Sequence[Tensor], *, backward: bool) -> tuple[int, float]:
    """The growth of this process in bytes, less the results, and seconds."""
    Path("/proc/self/clear_refs").write_text("5")  # sets the peak to what there is now
    before, start = resident("VmRSS"), time.perf_counter()
    with table_budget(BUDGET):
        found = operation()
        if backward:
            found.sum().backward()
    seconds = time.perf_counter() - start
    results = [*tensors_in(found), *(x.grad for x in leaves if x.grad is not None)]
    return resident("VmHWM") - before - sum(x.numel() * x.element_size() for x in results), seconds


def resident(which: str) -> int:
    """Memory in bytes, now (`VmRSS`) or at most (`VmHWM`); getrusage would count what the parent process held."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(which))
