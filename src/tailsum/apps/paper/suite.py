"""The cells of the harder suite: peaked chains four times as long as the paper's. It has no such table."""

import functools
from collections.abc import Iterable, Iterator

import torch

from tailsum.apps.paper.cells import Cell, Made, Subject, cell, ours, rivals
from tailsum.apps.paper.chains import HARD_SETTINGS, hard_chain
from tailsum.apps.paper.rows import Estimate
from tailsum.sketch.proposal import LocalGlobal

PERCENT = (1, 10)


def hard(states: Iterable[int], repeats: int, seed: int) -> Iterator[Cell[Estimate]]:
    """Log Z and entropy of peaked chains. These are slow where there are many states: so fewer repeats."""
    for n in states:
        # Where transitions are peaked, each state has its own few successors, and landmarks must be among them.
        few, landmarks = max(2, repeats // (4 if n < 10_000 else 10)), max(512, n // 5)
        for transition, emission in HARD_SETTINGS:
            subject = hard_subject(n, transition, emission, seed)
            for percent in PERCENT:
                for method in (*rivals(n, percent, few), ours(n, percent, few, landmarks)):
                    yield cell(subject, method)


def hard_subject(n: int, transition: float, emission: float, seed: int) -> Subject:
    """A peaked chain, its scores of the given standard deviations."""
    return Subject(f"s={transition:g} e={emission:g}", n, seed, functools.partial(_make, n, transition, emission))


def _make(n: int, transition: float, emission: float, generator: torch.Generator) -> Made:
    return Made(hard_chain(n, transition, emission, generator=generator), {"paper": LocalGlobal()})
