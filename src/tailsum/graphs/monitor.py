"""Options of message passing, the record of its convergence, and the warning where messages do not converge."""

import warnings
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tailsum.numerics.fixed_point import Iterated
from tailsum.structure.frames import frames_of_ours


class ConvergenceWarning(RuntimeWarning):
    """Messages on a graph with loops were still changing after the last iteration."""


class Convergence(NamedTuple):
    """The number of iterations, the last change of a message, and whether it is within the tolerance."""

    iterations: Int[Tensor, "*batch"]
    change: Float[Tensor, "*batch"]
    converged: Bool[Tensor, "*batch"]


class Passing(NamedTuple):
    """Options of message passing: see `Graph`."""

    iterations: int
    damping: float
    tolerance: float
    implicit: bool  # whether gradients are taken at the fixed point
    warn: bool


def default_tolerance(dtype: torch.dtype) -> float:
    """The change of a message at which iteration stops: the square root of the dtype's precision."""
    return torch.finfo(dtype).eps ** 0.5


class Monitor:
    """The number of iterations and the last change of each of B instances, `of` the "sum" or the "maximum".

    Autograd keeps it alive as long as the messages. It holds none of them: a reference cycle through autograd is never
    freed.
    """

    def __init__(self, passing: Passing, forest: bool, of: str, zeros: Tensor) -> None:
        self.passing, self.forest, self.of = passing, forest, of
        self.iterations, self.change = zeros.long(), zeros

    def __call__(self, iterated: Iterated, of_gradient: bool) -> None:
        if not of_gradient:
            self.iterations = iterated.iterations
            self.change = torch.zeros_like(iterated.change) if self.forest else iterated.change
        moving = iterated.change > self.passing.tolerance
        if self.forest or not self.passing.warn or not moving.any():
            return
        damping = self.passing.damping
        advice = "damping 0.5, more iterations"
        if damping >= 0.5:
            advice = f"more damping than {damping:g} ({0.5 + 0.5 * damping:g}) together with more iterations"
        moved = f"the gradient through the messages of the {self.of}" if of_gradient else f"messages of the {self.of}"
        warnings.warn(
            f"{moved} on this graph did not converge: after {self.passing.iterations} iterations the last change of "
            f"{int(moving.sum())} of {len(moving)} instances is up to {iterated.change.max().item():.1e}, above the "
            f"tolerance {self.passing.tolerance:.1e} (see convergence({self.of!r})). Try {advice}, or a larger "
            f"tolerance",
            ConvergenceWarning,
            stacklevel=frames_of_ours(),
        )
