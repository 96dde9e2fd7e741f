"""How long work tells where it is: a bar on a terminal, and elsewhere, as in a log file, plain lines."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import TimeRemainingColumn as Remaining

AT_LEAST_EVERY = 60.0  # seconds between two lines of a log


def say(console: Console, text: str) -> None:
    """Print one line unchanged: it is not wrapped, and what looks like markup (in a path, say) is shown."""
    console.print(text, soft_wrap=True, markup=False, highlight=False)


@dataclass
class _Task:
    description: str
    total: int
    done: int = 0


class Lines:
    """What is used here of `rich.progress.Progress`: a line when other work begins, and at least every minute.

    >>> import sys
    >>> lines = Lines(Console(file=sys.stdout))
    >>> task = lines.add_task("Likelihood of dev", total=1200)
    Likelihood of dev: 0 of 1,200
    >>> lines.advance(task, 300)
    >>> lines.update(task, description="the other half")
    the other half: 300 of 1,200
    """

    def __init__(self, console: Console) -> None:
        self.console, self.since = console, monotonic()
        self.tasks: list[_Task] = []

    def add_task(self, description: str, *, total: int) -> TaskID:
        """A line, if there is something to say yet."""
        self.tasks.append(_Task(description, total))
        if description:
            self._say(self.tasks[-1])
        return TaskID(len(self.tasks) - 1)

    def update(self, task_id: TaskID, *, description: str) -> None:
        """A line."""
        self.tasks[task_id].description = description
        self._say(self.tasks[task_id])

    def advance(self, task_id: TaskID, advance: int = 1) -> None:
        """A line, if the last is long ago."""
        task = self.tasks[task_id]
        task.done += advance
        if monotonic() - self.since >= AT_LEAST_EVERY:
            self._say(task)

    def remove_task(self, task_id: TaskID) -> None:
        """Nothing: what is written stays."""

    def _say(self, task: _Task) -> None:
        self.since = monotonic()
        say(self.console, f"{task.description.rstrip()}: {task.done:,} of {task.total:,}")


Tasks = Progress | Lines


@contextmanager
def shown(console: Console, transient: bool = True) -> Iterator[Tasks]:
    """Show pieces of work; on a terminal, the bars of a transient one go in the end."""
    if not console.is_terminal:
        yield Lines(console)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), Remaining())
    with Progress(*columns, console=console, transient=transient) as bars:
        yield bars
