"""How a model is fitted, and how that went."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from tailsum.hmm.core import MarkovModel
from tailsum.hmm.course import Course
from tailsum.hmm.sequences import Data
from tailsum.numerics.check import at_least, check_choice


@dataclass(frozen=True, kw_only=True)
class Fit:
    """How to fit a model.

    `method` is "em" (closed form), or "gradient" (Adam with `learning_rate`; any emission and transition). With `kept`, gradients
    go through sums over that many states at each position, chosen anew each time (see `sketch`): for very many states. At most `steps` are
    made; a step of EM that gains less than `tolerance` nats ends the fit. With `batch_size`, each step goes through the sequences in
    batches: by EM, of all counts; with `forget` below one (stochastic EM), the first step is of all counts, then parameters follow
    each batch, and older counts lose weight: after batch n the newest ones count `(n + 2) ** -forget`.

    `start` is "data" (parameters made from the data) or "keep" (as they are). The best of `restarts` starts goes on. `states`
    are those known, -1 elsewhere; if all are, one step is enough. `inputs` go to the transition. With `checkpoint`, a file, the
    fit is written after each step, and goes on from there if it was interrupted. `monitor` is called with the model and the
    course before each step, and ends the fit by returning True. `all_reduce` adds the counts of all ranks of the default
    process group, each of which has its own data.
    """

    method: str = "em"
    steps: int = 100
    tolerance: float = 1e-2
    batch_size: int | None = None
    forget: float = 1.0
    learning_rate: float = 0.05
    kept: int | None = None
    start: str = "data"
    restarts: int = 1
    states: Data | None = None
    inputs: Data | None = None
    checkpoint: str | Path | None = None
    monitor: Callable[[MarkovModel, Course], bool | None] | None = None
    generator: torch.Generator | None = None
    all_reduce: bool = False
    progress: bool = True

    def __post_init__(self) -> None:
        at_least(0, steps=self.steps)
        at_least(1, restarts=self.restarts)
        if self.batch_size is not None:
            at_least(1, batch_size=self.batch_size)
        if self.kept is not None:
            at_least(1, kept=self.kept)
            if self.method != "gradient":
                raise ValueError(
                    "kept must be None for EM, which needs the counts of all states: give method='gradient'"
                )
        check_choice("method", self.method, "em", "gradient")
        check_choice("start", self.start, "data", "keep")
        if not 0.5 < self.forget <= 1.0:
            raise ValueError(f"forget must be above 0.5 and at most 1: got {self.forget}")
