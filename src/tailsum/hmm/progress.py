"""A line on the terminal that says how a fit goes; nothing where there is no terminal."""

import sys
from types import TracebackType


class Progress:
    """The step, the log-likelihood and what the last step gained; one line, written again and again."""

    def __init__(self, steps: int, *, shown: bool) -> None:
        self.steps, self.shown, self._written = steps, shown and sys.stderr.isatty(), False

    def __enter__(self) -> None: ...

    def show(self, step: int, log_likelihood: float, gain: float) -> None:
        """Write the line anew."""
        if self.shown:
            self._written = True
            sys.stderr.write(f"\rstep {step}/{self.steps}  log-likelihood {log_likelihood:.2f}  ({gain:+.3g})\x1b[K")
            sys.stderr.flush()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._written:
            sys.stderr.write("\n")
