"""The cells of the harder suite: peaked chains four times as long as the paper's."""

import functools
from collections.abc import Iterable, Iterator

import torch

from tailsum.paper.cells import Cell, Made, Method, Subject, cell, ours, share_of
from tailsum.paper.chains import HARD_SETTINGS, hard_chain
from tailsum.paper.rows import Estimate
from tailsum.propose import LocalGlobal
from tailsum.select import TopAndSample, TopK

PERCENT = (1, 10)


def hard(states: Iterable[int], repeats: int, seed: int) -> Iterator[Cell[Estimate]]:
    """Log Z and entropy of peaked chains. These are slow where there are many states: so fewer repeats."""
    for n in states:
        # Where transitions are peaked, each state has its own few successors, and landmarks must be among them.
        few, landmarks = max(2, repeats // (4 if n < 10_000 else 10)), max(512, n // 5)
        for transition, emission in HARD_SETTINGS:
            subject = hard_subject(n, transition, emission, seed)
            for percent in PERCENT:
                k, label = share_of(n, percent), f"{percent}%"
                yield cell(subject, Method("TopK", label, k, TopK(k), "paper", 1))
                yield cell(subject, Method("paper", label, k, TopAndSample(k - 1, 1), "paper", few))
                yield cell(subject, ours(n, percent, few, landmarks))


def hard_subject(n: int, transition: float, emission: float, seed: int) -> Subject:
    """A peaked chain, its scores of the given standard deviations."""
    return Subject(f"s={transition:g} e={emission:g}", n, seed, functools.partial(_make, n, transition, emission))


def _make(n: int, transition: float, emission: float, generator: torch.Generator) -> Made:
    return Made(hard_chain(n, transition, emission, generator=generator), {"paper": LocalGlobal()})
