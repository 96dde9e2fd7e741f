"""How training tells where it is: a bar on a terminal, and elsewhere, as in a log file, a plain line now and then."""

from collections.abc import Iterator
from contextlib import contextmanager
from math import isnan, nan
from time import monotonic
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tailsum_studies.progress import AT_LEAST_EVERY, say
from tailsum_studies.vae.train import Step


class Teller(Protocol):
    """What is reported of each step and of each look at the dev part."""

    def stepped(self, step: Step) -> None:
        """A step was made."""

    def checked(self, nll: float) -> None:
        """The dev part was looked at, after the last step."""


@contextmanager
def reported(console: Console, steps: int) -> Iterator[Teller]:
    """Tell of `steps` steps on a console."""
    if not console.is_terminal:
        yield Lines(console, steps)
        return
    # At 80 columns there is room for six digits of steps and of words a second, and no more.
    said = "a word {task.fields[nll]:.2f} (dev {task.fields[dev]:.2f}), {task.fields[pace]:,.0f} words/s"
    columns = (BarColumn(8), MofNCompleteColumn(), TextColumn(said), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        yield Bar(bar, steps)


class Bar:
    """A line that changes."""

    def __init__(self, bar: Progress, steps: int) -> None:
        self.bar = bar
        self.steps = bar.add_task("", total=steps, nll=nan, dev=nan, pace=nan)
        self.words = bar.add_task("", visible=False)

    def stepped(self, step: Step) -> None:
        """Move on."""
        self.bar.advance(self.words, step.words)
        pace = self.bar.tasks[self.words].speed or nan
        self.bar.update(self.steps, completed=step.number, nll=step.nll, pace=pace)

    def checked(self, nll: float) -> None:
        """Show the dev part."""
        self.bar.update(self.steps, dev=nll)


class Lines:
    """A line at each look at the dev part, and at least every minute."""

    def __init__(self, console: Console, steps: int) -> None:
        self.console, self.steps = console, steps
        self.last: Step | None = None
        self.words, self.start = 0, monotonic()
        self.since = self.start  # the last line

    def stepped(self, step: Step) -> None:
        """A line, if the last is long ago."""
        self.last = step
        self.words += step.words
        if monotonic() - self.since >= AT_LEAST_EVERY:
            self._say(nan)

    def checked(self, nll: float) -> None:
        """A line with the dev part."""
        self._say(nll)

    def _say(self, dev: float) -> None:
        assert self.last is not None
        self.since = monotonic()
        pace = self.words / max(self.since - self.start, 1e-9)
        shown = "" if isnan(dev) else f" (dev {dev:.2f})"
        said = f"step {self.last.number} of {self.steps}: a word {self.last.nll:.2f}{shown}, {pace:,.0f} words/s"
        say(self.console, said)
