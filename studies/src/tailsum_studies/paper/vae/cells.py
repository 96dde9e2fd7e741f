"""The cells of Table 5 and Figure 2, in turn or several at a time."""

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from rich.console import Console

from tailsum_studies.paper.cells import Cell
from tailsum_studies.paper.vae.design import SIZES, Plan, Scale, figure2_ways, table5_ways
from tailsum_studies.paper.vae.training import Training, cell_of
from tailsum_studies.progress import say

TRAINED = ("table5", "figure2")


@dataclass(frozen=True)
class Options:
    """How to train: the scale, the encoder, the device, and how many runs at a time."""

    scale: Scale = "small"
    encoder: str = "lstm"
    device: str | None = None
    workers: int = 1

    def typed(self) -> str:
        """As they stand on a command line."""
        device = "" if self.device is None else f" --device {self.device}"
        workers = "" if self.workers == 1 else f" --workers {self.workers}"
        return f" --scale {self.scale} --encoder {quote(Path(self.encoder).name)}{device}{workers}"


@dataclass(frozen=True)
class Experiment:
    """Table 5 or Figure 2: with how many states, from which seeds, on which text, and where the runs lie."""

    options: Options
    states: tuple[int, ...]
    seeds: range
    data: Path | None
    runs: Path

    def trainings(self, table: str) -> Iterator[Training]:
        """Every run: all rows of a seed before those of the next."""
        options, data = self.options, None if self.data is None else str(self.data.resolve())
        plan = Plan(options.scale, SIZES[options.scale], data, options.encoder)
        for n in self.states:
            ways = plan.ways(table5_ways(n), n) if table == "table5" else figure2_ways(n)
            for seed in self.seeds:
                yield from (Training(plan, way, n, seed, self.runs, options.device) for way in ways)

    def cells(self, table: str) -> Iterator[Cell[Any]]:
        """A cell for each run."""
        return (cell_of(table, training) for training in self.trainings(table))

    def in_parallel(self, table: str, folder: Path, console: Console) -> None:
        """Finish the cells, `workers` at a time, each in a process; their files are read afterwards."""
        cells = ((cell_of(table, training), training) for training in self.trainings(table))
        waiting = {cell.name: training for cell, training in cells if cell.finished(folder) is None}
        context = multiprocessing.get_context("spawn")  # a process that has used a GPU must not be forked
        with ProcessPoolExecutor(min(self.options.workers, len(waiting)) or 1, context) as pool:
            begun = {pool.submit(finish, table, training, folder): name for name, training in waiting.items()}
            try:
                for number, future in enumerate(as_completed(begun), 1):
                    future.result()
                    say(console, f"{begun[future]}: finished, {number} of {len(begun)}")
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise


def finish(table: str, training: Training, folder: Path) -> None:
    """Train and measure one run, and write its cell."""
    cell_of(table, training).rows(folder, lambda: None)
