"""The main job of `tailsum bench`: measure what is not measured yet, and skip what would take too long."""

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor

from tailsum import LinearChain
from tailsum_studies.bench.budget import Budget
from tailsum_studies.bench.chains import Embeddings, embeddings, exact_error, sketch_error
from tailsum_studies.bench.machine import claim, free_bytes, machine
from tailsum_studies.bench.measure import cost_of, measure
from tailsum_studies.bench.peers import MODULES, problems
from tailsum_studies.bench.plan import SWEEPS, Plan, cells_of, write_plan
from tailsum_studies.bench.predict import operations, predict, predict_peer
from tailsum_studies.bench.problems import REFERENCE, Problem
from tailsum_studies.bench.rows import (
    BOTH,
    CHAIN,
    CHOOSE,
    FAILED,
    FORWARD,
    MEASURED,
    OURS,
    SKIPPED,
    TOGETHER,
    WRONG,
    Results,
    Row,
    Sizes,
    read_rows,
)
from tailsum_studies.progress import shown

SPARE = 0.8  # of the free memory, at most this part


@dataclass(frozen=True)
class Settings:
    """What to measure, on which device, in how many seconds, and where the results go."""

    output: Path
    device: torch.device
    plan: Plan
    groups: Sequence[str]
    seconds: float
    fresh: bool = False


def bench(settings: Settings, console: Console) -> Results:
    """Measure all cells that the time allows. Every finished cell is in `results.csv` at once."""
    path = settings.output / "results.csv"
    if settings.fresh:
        for old in (path, settings.output / "machine.json"):
            old.unlink(missing_ok=True)
    results = Results(path, read_rows(path) if path.exists() else ())
    claim(settings.output, machine(settings.device))
    write_plan(settings.output, settings.plan)
    runner = Runner(settings, results, Budget(settings.seconds, settings.groups))
    with shown(console) as progress:
        for group in settings.groups:
            runner.budget.begin(group)
            cells = runner.cells(group)
            if group == "peers" and not problems(settings.device):
                console.print(f"No other library is installed ({', '.join(MODULES)}): nothing to compare with.")
            task = progress.add_task("", total=len(cells))
            for name, run in cells.items():
                progress.update(task, description=f"{group}: {name}"[:48].ljust(48))
                results.add(run())
                progress.advance(task)
            progress.remove_task(task)
    return results


class Runner:
    """Runs cells. The embeddings of the last sizes are kept, with their exact sum: cells of one chain follow another."""

    def __init__(self, settings: Settings, results: Results, budget: Budget) -> None:
        self.device, self.plan = settings.device, settings.plan
        self.results, self.budget = results, budget
        self._made: tuple[Sizes, Embeddings, Tensor | None] | None = None

    def cells(self, group: str) -> dict[str, Callable[[], list[Row]]]:
        """The cells of a group that are not finished, by name."""
        if group in SWEEPS:
            wanted = [sizes for sizes in cells_of(self.plan, group) if not self.results.finished(CHAIN, OURS, sizes)]
            return {str(sizes): functools.partial(self.chain, sizes) for sizes in wanted}
        return {
            f"{problem}, {library}": functools.partial(self.peer, problem, library)
            for problem in problems(self.device, quick=self.plan.quick)
            for library in problem.libraries
            if not self.results.finished(problem.name, library, problem.sizes)
        }

    def chain(self, sizes: Sizes) -> list[Row]:
        """A cell of a sweep: its rows, measured or skipped."""
        guesses = [predict(self.results, sizes, what, self.device.type) for what in operations(sizes)]
        found = [guess for guess in guesses if guess is not None]
        blank = [Row(CHAIN, OURS, *sizes, what, SKIPPED) for what in operations(sizes)]
        cost = max((guess.seconds for guess in found), default=0.0) + self._cost(found)  # of the check, and of the rest
        reason = self.budget.refusal(cost) or self._too_large(
            max((float(row.peak_bytes) for row in found), default=0.0)
        )
        if reason:
            return [replace(row, note=reason) for row in (found or blank)]
        return guarded(functools.partial(self._measure_chain, sizes), blank, (RuntimeError, MemoryError))

    def _cost(self, guesses: Sequence[Row]) -> float:
        return math.fsum(cost_of(guess.seconds, self.plan.target) for guess in guesses)

    def _too_large(self, size: float) -> str:
        if size > SPARE * free_bytes(self.device):
            return f"predicted to need {size / 2**30:.0f} GiB"
        return ""

    def _measure_chain(self, sizes: Sizes) -> list[Row]:
        made, exact = self._embedded(sizes)
        if not sizes.kept:
            checked = exact_error(made)
            runs: dict[str, Callable[[], object]] = {
                FORWARD: torch.no_grad()(lambda: made.chain().log_partition()),
                BOTH: lambda: backward(made.chain().log_partition(), made),
            }
        else:
            generator = torch.Generator(self.device).manual_seed(1)
            small = made.chain().sketch(sizes.kept, generator=generator)
            checked = sketch_error(small, exact)
            kept = small.kept
            assert kept is not None

            def choose() -> LinearChain:
                return made.chain().sketch(sizes.kept, generator=generator)

            runs = {
                CHOOSE: torch.no_grad()(choose),
                FORWARD: torch.no_grad()(lambda: made.chain().restrict(kept).log_partition()),
                BOTH: lambda: backward(made.chain().restrict(kept).log_partition(), made),
                TOGETHER: lambda: backward(choose().log_partition(), made),
            }
        return [self.row(CHAIN, OURS, sizes, what, run, checked) for what, run in runs.items()]

    def row(
        self,
        subject: str,
        library: str,
        sizes: Sizes,
        operation: str,
        run: Callable[[], object],
        checked: tuple[float, str, float],
    ) -> Row:
        """Measure an operation whose error, reference and tolerance are known. If it is wrong, its time is not."""
        error, reference, tolerance = checked
        row = Row(subject, library, *sizes, operation, WRONG, error=error, tolerance=tolerance, reference=reference)
        if not error <= tolerance:
            return row
        timing = measure(run, self.device, self.plan.target)
        return replace(row, status=MEASURED, **asdict(timing))

    def _embedded(self, sizes: Sizes) -> tuple[Embeddings, Tensor | None]:
        """The embeddings of a cell, and the exact sum for its check, if that is affordable."""
        whole = sizes._replace(kept=0)
        if self._made is None or self._made[0] != whole or (sizes.kept and self._made[2] is None):
            made = embeddings(whole, self.device)
            known = self.results.get(whole, FORWARD) or predict(self.results, whole, FORWARD, self.device.type)
            cheap = sizes.kept and known is not None and known.seconds < self.budget.limit / 4
            exact = None
            if cheap and known is not None and not self._too_large(float(known.peak_bytes)):
                with torch.no_grad():
                    exact = made.chain().log_partition()
            self._made = whole, made, exact
        return self._made[1], self._made[2]

    def peer(self, problem: Problem, library: str) -> list[Row]:
        """A comparison: the operations of one library, ours or a peer."""
        it = problem.libraries[library]
        who = (problem.name, library, problem.sizes)
        blank = [Row(problem.name, library, *problem.sizes, what, SKIPPED) for what in it.operations]
        guesses = [predict_peer(self.results, *who, what, it.power) for what in it.operations]
        found = [guess for guess in guesses if guess is not None]
        if reason := self._too_large(it.bytes_needed) or self.budget.refusal(self._cost(found)):
            return [replace(row, note=reason) for row in (found or blank)]

        def run() -> list[Row]:
            return [
                self.row(*who, what, task.run, (task.error, REFERENCE, task.tolerance))
                for what, task in problem.tasks(library, self.device).items()
            ]

        return guarded(run, blank, (Exception,))  # what a peer raises is its own business


def backward(total: Tensor, made: Embeddings) -> None:
    """The gradient in all embeddings, which is then dropped."""
    total.sum().backward()
    made.clear()


def guarded(run: Callable[[], list[Row]], blank: Iterable[Row], errors: tuple[type[Exception], ...]) -> list[Row]:
    """The rows, or, where memory was too small or a peer refused, rows that say so."""
    try:
        return run()
    except errors as error:
        said = (str(error).strip() or type(error).__name__).split("\n")[0][:200]
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return [replace(row, status=FAILED, note=said) for row in blank]
