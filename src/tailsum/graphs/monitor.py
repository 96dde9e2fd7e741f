"""Whether the messages of a graph converge: what is recorded of it, and the warning where they do not."""

import inspect
import warnings
from typing import NamedTuple

import torch
from torch import Tensor

from tailsum.numerics.fixed_point import Iterated


class ConvergenceWarning(RuntimeWarning):
    """Messages on a graph with loops still changed after the last iteration."""


class Passing(NamedTuple):
    """Options of message passing: see `Graph`."""

    iterations: int
    damping: float
    tolerance: float
    implicit: bool  # whether gradients are taken at the fixed point
    warn: bool


class Monitor:
    """The number of iterations and the last change of each of B instances.

    Autograd keeps it as long as the messages. It holds none of them: a reference cycle through autograd is never freed.
    """

    def __init__(self, passing: Passing, forest: bool, none: Tensor) -> None:
        self.passing, self.forest = passing, forest
        self.iterations, self.change = none.long(), none

    def __call__(self, iterated: Iterated, of_gradient: bool) -> None:
        if not of_gradient:
            self.iterations = iterated.iterations
            self.change = torch.zeros_like(iterated.change) if self.forest else iterated.change
        moving = iterated.change > self.passing.tolerance
        if self.forest or not self.passing.warn or not moving.any():
            return
        what = "the gradient through the messages" if of_gradient else "messages"
        warnings.warn(
            f"{what} on this graph did not converge: after {self.passing.iterations} iterations the last change of "
            f"{int(moving.sum())} of {len(moving)} instances is up to {iterated.change.max().item():.1e}, above the "
            f"tolerance {self.passing.tolerance:.1e}. Try damping (0.5), more iterations, or a larger tolerance",
            ConvergenceWarning,
            stacklevel=_frames_of_ours(),
        )


def _frames_of_ours() -> int:
    """The stack level of the first caller outside this package, for warnings."""
    frame, count = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").split(".")[0] in ("tailsum", "torch"):
        frame, count = frame.f_back, count + 1
    return count
