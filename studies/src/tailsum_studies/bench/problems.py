"""Problems that other libraries solve too. All get the same leaves, and all are checked against ours in float64."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from tailsum_studies.bench.rows import BEST, BOTH, FORWARD, OURS, Sizes

TOLERANCE = 1e-4  # of the largest value, or of 1
REFERENCE = "tailsum in float64"


class Answers(NamedTuple):
    """A library's answers to a problem. The best configuration is in the library's own form; its score is for the check."""

    total: Callable[[], Tensor] | None = None
    best: Callable[[], object] | None = None
    best_score: Callable[[], Tensor] | None = None


Solve = Callable[..., Answers]  # of the leaves


@dataclass(frozen=True)
class Library:
    """How a library solves a problem, and what it can do.

    It needs about `bytes_needed`, where that is much, and time that grows with this power of the states.
    """

    solve: Solve
    operations: tuple[str, ...] = (FORWARD, BOTH)
    bytes_needed: float = 0.0
    power: int = 2


class Task(NamedTuple):
    """An operation of a library: how to run it, and what it was found to be wrong by."""

    run: Callable[[], object]
    error: float
    tolerance: float


@dataclass(frozen=True)
class Problem:
    """Something to solve: leaves of these shapes, the same for every library, and the libraries, ours first."""

    name: str
    sizes: Sizes
    shapes: tuple[tuple[int, ...], ...]
    libraries: dict[str, Library]
    prepare: Callable[[list[Tensor]], list[Tensor]] = field(default=list)

    def __str__(self) -> str:
        return f"{self.name} {self.sizes}"

    def leaves(self, device: torch.device, dtype: torch.dtype) -> list[Tensor]:
        """Random scores, without gradients."""
        generator = torch.Generator().manual_seed(0)
        made = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in self.shapes]
        return [x.to(device, dtype if x.is_floating_point() else None) for x in self.prepare(made)]

    def tasks(self, library: str, device: torch.device) -> dict[str, Task]:
        """The operations of a library, checked."""
        it = self.libraries[library]
        leaves, wide = (self.leaves(device, dtype) for dtype in (torch.float32, torch.float64))
        found: dict[str, Task] = {}
        for operation in it.operations:
            run, answer = _operation(it.solve, operation, leaves)
            _, truth = _operation(self.libraries[OURS].solve, operation, wide)
            expected = truth()
            difference = (answer().to(expected) - expected).abs().max().item()
            found[operation] = Task(run, difference, TOLERANCE * max(1.0, expected.abs().max().item()))
        return found


def _operation(solve: Solve, operation: str, leaves: list[Tensor]) -> tuple[Callable[[], object], Callable[[], Tensor]]:
    """How to run an operation, and the values that it is checked by: a gradient is that in the first of the leaves."""
    if operation == BOTH:
        own = [x.clone().requires_grad_() if x.is_floating_point() else x for x in leaves]
        inputs = [x for x in own if x.requires_grad]

        def both() -> tuple[Tensor, ...]:
            total = solve(*own).total
            assert total is not None
            return torch.autograd.grad(total().sum(), inputs, allow_unused=True)

        return both, lambda: both()[0]
    asked = (lambda: solve(*leaves).best) if operation == BEST else (lambda: solve(*leaves).total)
    checked = (lambda: solve(*leaves).best_score) if operation == BEST else asked

    def call(get: Callable[[], Callable[[], object] | None]) -> object:
        function = get()
        assert function is not None
        return function()

    def values() -> Tensor:
        found = call(checked)
        assert isinstance(found, Tensor)
        return found.detach()

    return lambda: call(asked), values
