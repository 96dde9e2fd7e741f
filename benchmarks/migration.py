"""Time and memory of the scripts on the migration pages, before and after: `python -m benchmarks.migration [PAGE ..]`.

Each of these pages has the blocks `make_data`, `before` and `after`. They are run as they stand on the page, at larger sizes,
each in a process of its own with one thread; the page's own check compares the results first. Times are processor time, which
does not count what else the machine is doing.
"""

import argparse
import logging
import multiprocessing
import re
import statistics
import sys
import time
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.measure import ResidentMemory
from tailsum_studies.bench.peers import supar_structs

DOCS = Path(__file__).parent.parent / "docs"
SIZES = {
    "from_hmmlearn": [
        {"n_states": 16, "n_symbols": 100, "n_sequences": 32, "length": 50},
        {"n_states": 128, "n_symbols": 100, "n_sequences": 32, "length": 50},
    ],
    "from_supar": [{"batch": 32, "length": 20}, {"batch": 32, "length": 40}],
}


class Cost(NamedTuple):
    """The median processor time of a script, and how far the process grew while it first ran."""

    seconds: float
    grown: int


def script(page: str) -> dict[str, Any]:
    """The names that the blocks of a page define, after they have run; its check is among them."""
    names: dict[str, Any] = {}
    if page == "from_supar":
        sys.modules["supar.structs"] = supar_structs()
    for block in re.findall(r"```python\n(.*?)```", (DOCS / f"{page}.md").read_text(), re.DOTALL):
        exec(compile(block, page, "exec"), names)  # noqa: S102  (our own pages)
    return names


def cost(page: str, side: str, sizes: dict[str, int], repeats: int = 3) -> Cost:
    """What `side`, `before` or `after`, of a page takes."""
    torch.set_num_threads(1)
    logging.getLogger("hmmlearn").setLevel(logging.ERROR)  # it warns that there is little data
    warnings.simplefilter("ignore")
    names = script(page)
    run = names[side]
    data = names["make_data"](**sizes)
    with ResidentMemory() as memory:
        run(*data)
    times = [time.process_time()]
    for _ in range(repeats):
        run(*data)
        times.append(time.process_time())
    return Cost(statistics.median(b - a for a, b in pairwise(times)), memory.growth)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.migration", description=__doc__)
    parser.add_argument("pages", nargs="*", default=list(SIZES), help=", ".join(SIZES))
    print("| sizes | before | after | times faster |\n|---|---|---|---|")
    for page in parser.parse_args().pages:
        for sizes in SIZES[page]:
            with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
                before, after = (pool.apply(cost, (page, side, sizes)) for side in ("before", "after"))
            text = ", ".join(f"{name.replace('n_', '')} {value}" for name, value in sizes.items())
            both = (f"{c.seconds * 1000:.0f} ms, {c.grown / 2**20:.0f} MiB" for c in (before, after))
            print(f"| {text} | {' | '.join(both)} | {before.seconds / after.seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
