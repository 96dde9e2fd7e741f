"""Fitting a hidden Markov model: from several starts, shown, interrupted and resumed."""

import math
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tailsum.hmm.core import MarkovModel
from tailsum.hmm.course import Course
from tailsum.hmm.files import form
from tailsum.hmm.options import Fit
from tailsum.hmm.progress import Progress
from tailsum.hmm.sequences import Data, Lengths, Sequences
from tailsum.hmm.steps import Ascent, Expectation


def fit(model: MarkovModel, data: Data, lengths: Lengths, how: Fit) -> Course:
    """Fit a model in place."""
    given = model.sequences(data, lengths, how.inputs, how.states)
    if not given.data.numel():
        raise ValueError("data must hold an observation: got none")
    resumed = _resumed(how, model, given)
    if resumed is not None:
        return _go_on(how, model, given, *resumed)
    if how.start == "keep":
        return _go_on(how, model, given, Course([]))
    best: tuple[float, dict[str, Tensor]] | None = None
    for _ in range(how.restarts):
        model.start(given, how.generator)
        if how.all_reduce:  # every rank begins with the first one's, made from its data
            for x in model.state_dict().values():
                torch.distributed.broadcast(x, 0)
        if how.restarts > 1:
            few = replace(how, steps=max(1, min(5, how.steps)), progress=False, checkpoint=None, monitor=None)
            total = _go_on(few, model, given, Course([])).log_likelihoods[-1]
            if best is None or total > best[0]:
                best = total, {name: x.clone() for name, x in model.state_dict().items()}
    if best is not None:
        model.load_state_dict(best[1])
    return _go_on(how, model, given, Course([]))


def _go_on(
    how: Fit, model: MarkovModel, given: Sequences, course: Course, state: dict[str, Any] | None = None
) -> Course:
    model.fitted = course
    step = (Ascent if how.method == "gradient" else Expectation)(how, model)
    if state is not None:
        step.load(state)
    bar = Progress(how.steps, shown=how.progress)
    with bar:
        while course.steps < how.steps and not course.converged:
            if how.monitor is not None and how.monitor(model, course):
                break
            value = step(given)
            if not math.isfinite(value):
                raise ValueError(f"data must be possible under the model: the log-likelihood is {value}")
            gain = value - course.log_likelihoods[-1] if course.log_likelihoods else math.inf
            course.log_likelihoods.append(value)
            course.converged = gain < how.tolerance and how.method == "em" and how.forget == 1.0
            bar.show(course.steps, value, gain)
            _save(how, model, course, step.state(), given)
    return course


def _save(how: Fit, model: MarkovModel, course: Course, state: dict[str, Any], given: Sequences) -> None:
    if how.checkpoint is None:
        return
    path = Path(how.checkpoint)
    fresh = path.with_name(path.name + ".new")
    saved = {"model": model.state_dict(), "course": vars(course), "steps": state, "kind": _kind(how, model, given)}
    torch.save(saved, fresh)
    fresh.replace(path)  # at once: an interruption leaves the old file or the new one


def _resumed(how: Fit, model: MarkovModel, given: Sequences) -> tuple[Course, dict[str, Any]] | None:
    if how.checkpoint is None or not Path(how.checkpoint).exists():
        return None
    try:
        saved = torch.load(how.checkpoint, map_location=model.device, weights_only=True)
    except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise ValueError(f"checkpoint must be a file that a fit wrote: {how.checkpoint} cannot be read") from error
    if saved["kind"] != _kind(how, model, given):
        raise ValueError(f"checkpoint must be of {_kind(how, model, given)}: got {saved['kind']}")
    model.load_state_dict(saved["model"])
    return Course(**saved["course"]), saved["steps"]


def _kind(how: Fit, model: MarkovModel, given: Sequences) -> str:
    shape = f"{len(given.lengths)} sequences, {int(given.lengths.sum())} positions"
    total = given.data.double().nan_to_num().sum().item()
    return f"a fit by {how.method} to {shape} with the sum {total:.9g} of {form(model)}"
