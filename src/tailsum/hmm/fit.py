"""Fitting a hidden Markov model: EM, EM on minibatches, or gradients; from several starts, shown, interrupted and resumed."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from tailsum.hmm.progress import Progress
from tailsum.hmm.sequences import Data, Lengths, Sequences
from tailsum.hmm.steps import Ascent, Expectation
from tailsum.numerics.check import at_least

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailsum.hmm.model import HiddenMarkov


@dataclass
class Course:
    """How a fit went: the log-likelihood of all data (plus the log-density of the priors) before each step."""

    log_likelihoods: list[float]
    converged: bool = False

    @property
    def steps(self) -> int:
        """How many steps were made."""
        return len(self.log_likelihoods)


@dataclass(frozen=True, kw_only=True)
class Fit:
    """How to fit a model.

    `method` is "em" (closed form), or "gradient" (Adam with `learning_rate`; any emission and transition). At most `steps` are
    made; a step of EM that gains less than `tolerance` nats ends the fit. With `batch_size`, each step goes through the sequences in
    batches: by EM, of all counts; with `forget` below one (stochastic EM), parameters follow each batch, and older counts lose
    weight: after batch n the newest ones count `(n + 2) ** -forget`.

    `start` is "data" (parameters made from the data) or "keep" (as they are). The best of `restarts` starts goes on. `states`
    are those known, -1 elsewhere; if all are, one step is enough. `inputs` go to the transition. With `checkpoint`, a file, the
    fit is written after each step, and goes on from there if it was interrupted. `monitor` is called with the model and the
    course before each step, and ends the fit by returning True. `all_reduce` adds the counts of all ranks of the default
    process group, each of which has its own data.
    """

    method: Literal["em", "gradient"] = "em"
    steps: int = 100
    tolerance: float = 1e-2
    batch_size: int | None = None
    forget: float = 1.0
    learning_rate: float = 0.05
    start: Literal["data", "keep"] = "data"
    restarts: int = 1
    states: Data | None = None
    inputs: Data | None = None
    checkpoint: str | Path | None = None
    monitor: "Callable[[HiddenMarkov, Course], bool | None] | None" = None
    generator: torch.Generator | None = None
    all_reduce: bool = False
    progress: bool = True

    def __post_init__(self) -> None:
        at_least(0, steps=self.steps)
        at_least(1, restarts=self.restarts)
        if self.batch_size is not None:
            at_least(1, batch_size=self.batch_size)
        for name, given, known in (
            ("method", self.method, ("em", "gradient")),
            ("start", self.start, ("data", "keep")),
        ):
            if given not in known:
                raise ValueError(f"{name} must be one of {known}: got {given!r}")
        if not 0.5 < self.forget <= 1.0:
            raise ValueError(f"forget must be above 0.5 and at most 1: got {self.forget}")

    def run(self, model: "HiddenMarkov", data: Data, lengths: Lengths) -> Course:
        """Fit a model in place."""
        given = model.sequences(data, lengths, self.inputs, self.states)
        if not given.data.numel():
            raise ValueError("data must hold an observation: got none")
        resumed = self._resumed(model)
        if resumed is not None:
            return self._go_on(model, given, *resumed)
        if self.start == "keep":
            return self._go_on(model, given, Course([]))
        best: tuple[float, dict[str, Tensor]] | None = None
        for _ in range(self.restarts):
            model.start(given, self.generator)
            if self.restarts > 1:
                reached = Fit(start="keep", steps=min(5, self.steps), progress=False, generator=self.generator)
                reached._go_on(model, given, Course([]))
                total = model.expected(given).log_likelihood.item()
                if best is None or total > best[0]:
                    best = total, {name: x.clone() for name, x in model.state_dict().items()}
        if best is not None:
            model.load_state_dict(best[1])
        return self._go_on(model, given, Course([]))

    def _go_on(
        self, model: "HiddenMarkov", given: Sequences, course: Course, state: dict[str, Any] | None = None
    ) -> Course:
        step = (Ascent if self.method == "gradient" else Expectation)(self, model)
        if state is not None:
            step.load(state)
        with Progress(self.steps, shown=self.progress) as bar:
            while course.steps < self.steps and not course.converged:
                if self.monitor is not None and self.monitor(model, course):
                    break
                value = step(given)
                if not math.isfinite(value):
                    raise ValueError(f"data must be possible under the model: the log-likelihood is {value}")
                gain = value - course.log_likelihoods[-1] if course.log_likelihoods else math.inf
                course.log_likelihoods.append(value)
                course.converged = gain < self.tolerance and self.method == "em" and self.forget == 1.0
                bar.show(course.steps, value, gain)
                self._save(model, course, step.state())
        return course

    def _save(self, model: "HiddenMarkov", course: Course, state: dict[str, Any]) -> None:
        if self.checkpoint is None:
            return
        path = Path(self.checkpoint)
        fresh = path.with_name(path.name + ".new")
        torch.save({"model": model.state_dict(), "course": vars(course), "steps": state}, fresh)
        fresh.replace(path)  # at once: an interruption leaves the old file or the new one

    def _resumed(self, model: "HiddenMarkov") -> tuple[Course, dict[str, Any]] | None:
        if self.checkpoint is None or not Path(self.checkpoint).exists():
            return None
        saved = torch.load(self.checkpoint, map_location=model.device, weights_only=True)
        model.load_state_dict(saved["model"])
        return Course(**saved["course"]), saved["steps"]
