"""Cells of the experiments: one estimator on one model, measured many times.

The estimators are the paper's Algorithms 1 (Randomized Forward), 2 (Randomized Inside) and 3 (Randomized Entropy DP),
TopK, and the library's own. Every cell has its own random numbers, from the seed and its name alone. So it does not
matter which cells ran before it, in this run or an earlier one: an experiment that was interrupted goes on as if it had
not been.
"""

import dataclasses
import functools
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple

import torch
from torch import Tensor

from tailsum import (
    LinearChain,
    Lookahead,
    Optimal,
    PeakMemory,
    Propose,
    Refined,
    Selection,
    Structure,
    TopAndSample,
    TopK,
)
from tailsum_studies.paper.rows import Estimate, Row, read_rows, write_rows

Step = Callable[[], None]


@dataclass(frozen=True)
class Cell(Generic[Row]):
    """Something to measure: `run` gives its rows, and calls its argument `steps` times on the way."""

    name: str
    kind: type[Row]
    steps: int
    run: Callable[[Step], list[Row]]

    def path(self, folder: Path) -> Path:
        """The file of its rows."""
        return folder / f"{self.name}.csv"

    def rows(self, folder: Path, step: Step) -> list[Row]:
        """Its rows: read, if they were measured before, or else measured and written."""
        found = self.finished(folder)
        if found is None:
            found = self.run(step)
            write_rows(self.path(folder), found, self.kind)
        return found

    def finished(self, folder: Path) -> list[Row] | None:
        """Its rows if they were measured before; a damaged file counts for nothing."""
        try:
            return read_rows(self.path(folder), self.kind)
        except (FileNotFoundError, ValueError):
            return None


class Made(NamedTuple):
    """A model, and the proposals that are made for it, such as the paper's.

    Where the scores come from a network, `rebuild` makes the model anew from its `parameters`; where it was trained to
    find certain states, these are `truth`.
    """

    model: Structure[Any, Any]
    proposals: dict[str, Propose]
    parameters: dict[str, Tensor] | None = None
    rebuild: Callable[[], LinearChain] | None = None
    truth: Tensor | None = None


@dataclass(frozen=True)
class Subject:
    """A model to measure estimators on, made from the seed when it is needed."""

    name: str  # such as "chain, dense"
    states: int
    seed: int
    make: Callable[[torch.Generator], Made]
    quantities: tuple[str, ...] = ("log Z", "entropy")


@dataclass(frozen=True)
class Method:
    """A way to sketch a model. `refined` takes the entropy of a chain from `refine`."""

    name: str
    label: str  # as the paper labels its number of states
    kept: int
    selection: Selection
    proposal: Propose | str  # or the name of one that was made for the model
    repeats: int
    refined: bool = False
    quantities: tuple[str, ...] = ("log Z", "entropy")


def seeded(seed: int, name: str) -> torch.Generator:
    """A generator for one purpose."""
    return torch.Generator().manual_seed(zlib.crc32(f"{seed}: {name}".encode()))


@functools.lru_cache(maxsize=1)
@torch.no_grad()
def made(subject: Subject) -> tuple[Made, dict[str, Tensor]]:
    """The model, and the exact values of its quantities. The last one is kept: cells of one model follow each other."""
    found = subject.make(seeded(subject.seed, f"{subject.name} {subject.states}"))
    return found, {quantity: ask(found.model, quantity) for quantity in subject.quantities}


def measured(
    subject: Subject,
    method: Method,
    kind: type[Row],
    what: Sequence[str],
    replicates: Callable[[Made, dict[str, Any]], Iterator[list[dict[str, Any]]]],
) -> Cell[Row]:
    """The cell of a method on a model, under a name that tells it from all others.

    Given the model and how to sketch it, `replicates` yields what the rows of each replicate do not have in common.
    """
    settings = (f"N{subject.states}", method.name, method.label, f"K{method.kept}", *what, f"r{method.repeats}")
    text = "-".join((subject.name, *settings, f"s{subject.seed}")).lower().replace("%", "pct")
    name = "".join(c if c.isalnum() or c in "-.=" else "_" for c in text)
    who = {"model": subject.name, "states": subject.states}
    who |= {"method": method.name, "label": method.label, "kept": method.kept}

    def run(step: Step) -> list[Row]:
        found, _ = made(subject)
        proposal = found.proposals[method.proposal] if isinstance(method.proposal, str) else method.proposal
        how = {"selection": method.selection, "proposal": proposal, "generator": seeded(subject.seed, name)}
        rows: list[Row] = []
        for replicate in replicates(found, how):
            rows += [kind(**who, **row) for row in replicate]
            step()
        return rows

    return Cell(name, kind, method.repeats, run)


def cell(subject: Subject, method: Method) -> Cell[Estimate]:
    """The errors of a method on a model. Of a batch of sequences, every one is a replicate."""
    quantities = [q for q in subject.quantities if q in method.quantities]

    def replicates(found: Made, how: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
        _, exact = made(subject)
        with PeakMemory() as memory:
            list(_answers(found.model, method, how, quantities))
        for replicate in range(method.repeats):
            rows: list[dict[str, Any]] = []
            for quantity, answers, seconds in _answers(found.model, method, how, quantities):
                same = {"quantity": quantity, "seconds": round(seconds, 6), "peak_bytes": memory.peak}
                pairs = zip(answers.flatten().tolist(), exact[quantity].flatten().tolist(), strict=True)
                places = enumerate(pairs, replicate * answers.numel())
                rows += [{**same, "replicate": place, "estimate": x, "exact": truth} for place, (x, truth) in places]
            yield rows

    return measured(subject, method, Estimate, quantities, replicates)


@torch.no_grad()
def _answers(
    model: Structure[Any, Any], method: Method, how: dict[str, Any], quantities: Sequence[str]
) -> Iterator[tuple[str, Tensor, float]]:
    """For each quantity, what a new sketch says and how long that takes, the making of the sketch included."""
    start = time.perf_counter()
    small = model.sketch(**how)
    drawn = time.perf_counter() - start
    for quantity in quantities:
        start = time.perf_counter()
        refine = method.refined and quantity == "entropy"
        answer = ask(small.refine() if refine and isinstance(small, LinearChain) else small, quantity)
        yield quantity, answer, drawn + time.perf_counter() - start


def ask(model: Structure[Any, Any] | Refined, quantity: str) -> Tensor:
    """What a model says of a quantity."""
    return model.log_partition() if quantity == "log Z" else model.entropy()


def share_of(states: int, percent: int) -> int:
    """So many percent of the states, two at least: one to keep and one to draw."""
    return max(2, round(states * percent / 100))


def baselines(states: int, percent: int, repeats: int) -> tuple[Method, Method]:
    """TopK and the paper's method, with one state drawn."""
    k, label = share_of(states, percent), f"{percent}%"
    return (
        Method("TopK", label, k, TopK(k), "paper", 1),
        Method("paper", label, k, TopAndSample(k - 1, 1), "paper", repeats),
    )


def ours(states: int, percent: int, repeats: int, landmarks: int = 512, kept: int | None = None) -> Method:
    """The library's own estimator: the optimal selection, guided by landmarks alone, its entropy refined."""
    k = kept or share_of(states, percent)
    return Method(
        "tailsum", f"{percent}%", k, Optimal(k), Lookahead(landmarks, rounds=1, neighbours=0), repeats, refined=True
    )


def frugal(states: int, percent: int, repeats: int) -> Method:
    """The same with no more landmarks than states kept: what it can do where nothing larger than K is looked at."""
    k = share_of(states, percent)
    return dataclasses.replace(ours(states, percent, repeats, landmarks=k), name="tailsum, K landmarks")
