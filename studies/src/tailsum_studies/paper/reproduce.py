"""The main job of `tailsum reproduce`: run the cells of the wanted tables, keep what is finished, write the report.

These are the paper's Tables 2 to 5 and its Figure 2, what it proves and claims, and suites that it does not have.
"""

import contextlib
import platform
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from tailsum import __version__
from tailsum_studies.paper import tables
from tailsum_studies.paper.cells import Cell, seeded
from tailsum_studies.paper.gradients import gradients
from tailsum_studies.paper.memory import memory
from tailsum_studies.paper.relaxed import relaxed
from tailsum_studies.paper.results import rewrite_report, write_results
from tailsum_studies.paper.rows import Check, Direction
from tailsum_studies.paper.splits import splits
from tailsum_studies.paper.theory import REPEATS, STATEMENTS, checks
from tailsum_studies.paper.trained import Settings as Training
from tailsum_studies.paper.vae.cells import TRAINED, Experiment, Options
from tailsum_studies.progress import Tasks, shown

__all__ = ["TABLES", "Settings", "plan", "reproduce", "rewrite_report"]

# What each name runs; "hard" has the models trained on text and the gradients with it.
TABLES: dict[str, tuple[str, ...]] = {name: (name,) for name in ("table2", "table3", "table4", "hard", "theory")}
TABLES["hard"] += ("text", "gradients")
TABLES |= {name: (name,) for name in ("splits", "memory", "relaxed")}
TABLES["all"] = tuple(name for names in TABLES.values() for name in names)
TABLES |= {name: (name,) for name in TRAINED}  # hours of training: not a part of "all"


@dataclass(frozen=True)
class Settings:
    """What to run, and where the results go. `data` is text to train on; without it, Python's own documentation."""

    table: str
    states: tuple[int, ...]
    repeats: int
    seed: int
    output: Path
    data: Path | None = None
    training: Options = field(default_factory=Options)

    @property
    def cells(self) -> Path:
        """The folder of finished cells."""
        return self.output / "cells"

    @property
    def experiment(self) -> Experiment:
        """What trains structured VAEs: `repeats` is the number of seeds."""
        seeds = range(self.seed, self.seed + self.repeats)
        return Experiment(self.training, self.states, seeds, self.data, self.output / "runs")


def plan(settings: Settings) -> dict[str, list[Cell[Any]]]:
    """The cells of every wanted table, in the order in which they run."""
    states, repeats, seed = settings.states, settings.repeats, settings.seed
    theory = f"theory-r{REPEATS}-s{seed}"
    made: dict[str, Iterable[Cell[Any]]] = {
        "table2": tables.table2(states, repeats, seed),
        "table3": tables.table3(states, repeats, seed),
        "table4": tables.table4(states, repeats, seed),
        "hard": tables.hard(states, repeats, seed),
        "text": tables.text(settings.data, settings.cells, max(2, repeats // 10), seed),
        "gradients": _gradients(settings),
        **{name: settings.experiment.cells(name) for name in TRAINED},
        "theory": [Cell(theory, Check, len(STATEMENTS), lambda step: checks(REPEATS, seeded(seed, theory), step))],
        "splits": splits(min(states), repeats, seed),
        "memory": memory(min(states), seed),
        "relaxed": relaxed(settings.data, settings.cells, 4 * repeats, seed),
    }
    return {name: list(made[name]) for name in TABLES[settings.table]}


def _gradients(settings: Settings) -> Iterator[Cell[Direction]]:
    n, repeats, seed = min(settings.states), settings.repeats, settings.seed
    peaked = (tables.hard_subject(n, transition, emission, seed) for transition, emission in ((1.0, 1.0), (3.0, 3.0)))
    yield from gradients((tables.chain_subject(n, "dense", seed), *peaked), max(2, repeats // 20))
    # A batch of sentences scatters little, and takes long.
    yield from gradients(tables.text_subjects(settings.data, settings.cells, seed), max(2, repeats // 50))


def reproduce(settings: Settings, console: Console) -> Path:
    """Run what is not finished yet, and write tables, pictures and the page that ties them together; gives its path."""
    wanted = plan(settings)
    if settings.table in TRAINED and settings.training.workers > 1:
        settings.experiment.in_parallel(settings.table, settings.cells, console)
    cells = {cell.name: cell for group in wanted.values() for cell in group}
    rows = {name: found for name, cell in cells.items() if (found := cell.finished(settings.cells)) is not None}
    if rows:
        console.print(f"{len(rows)} of {len(cells)} cells were finished before.")
    facts = about(settings)
    minutes = settings.cells / "minutes.txt"
    with shown(console) as progress, _timed(minutes):
        task = progress.add_task("", total=sum(cell.steps for name, cell in cells.items() if name not in rows))
        for group, members in wanted.items():
            if group == "text":
                facts |= _train(settings, progress)
            for cell in members:
                if cell.name not in rows:
                    progress.update(task, description=cell.name[:60])
                    rows[cell.name] = cell.rows(settings.cells, lambda: progress.advance(task))
    results = {name: [row for cell in group for row in rows[cell.name]] for name, group in wanted.items()}
    facts["time"] = f"{sum(map(float, minutes.read_text().split())):.1f} minutes"
    return write_results(settings.output, results, facts)


@contextlib.contextmanager
def _timed(path: Path) -> Iterator[None]:
    """Write the minutes that are spent within it to a file, below those of earlier runs."""
    start = time.perf_counter()
    try:
        yield
    finally:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(f"{(time.perf_counter() - start) / 60:.2f}\n")


def _train(settings: Settings, progress: Tasks) -> dict[str, str]:
    """Train the models of text that are not trained yet, and say how well they do."""
    facts = {}
    for kind in tables.KINDS:
        task = progress.add_task(f"{kind.upper()} of {tables.text_name(settings.data)}", total=Training(kind).steps)
        step = partial(progress.advance, task)
        trained, _ = tables.prepare(kind, settings.data, settings.cells, settings.seed, step)
        progress.remove_task(task)
        record = trained.record
        facts[f"{kind.upper()} trained"] = (
            f"test loss {record.before:.2f} -> {record.after:.2f} nats per word (by counting words: {record.unigram:.2f})"
        )
    return facts


def about(settings: Settings) -> dict[str, str]:
    """What was run, and with what."""
    return {
        "command": f"tailsum reproduce {settings.table} --states {','.join(map(str, settings.states))} "
        f"--repeats {settings.repeats} --seed {settings.seed}"
        + (settings.training.typed() if settings.table in TRAINED else ""),
        "seed": str(settings.seed),
        "text": tables.text_name(settings.data),
        "tailsum": __version__,
        "torch": torch.__version__,
        "Python": platform.python_version(),
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads",
    }
