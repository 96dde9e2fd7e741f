"""Cells of how K is split into K1 states kept for certain and K2 drawn ones: the paper's Rao-Blackwellization.

The paper sets K2 = 1 throughout and says: "the longer the tail, the more effective Rao-Blackwellization will be". Here the
splits run from one draw to draws alone, on its chains and hypertrees; and on chains whose tails are set by an exponent,
from flat to steep, for its own three levels hardly differ.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import torch

from tailsum import Factored, LinearChain, LocalGlobal, Optimal, TopAndSample
from tailsum_studies.paper import cells, tables
from tailsum_studies.paper.cells import Cell, Made, Method, Subject, ask, made
from tailsum_studies.paper.chains import ADAM_STEPS
from tailsum_studies.paper.rows import SplitError

PERCENT = (1, 10)
SHARES = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)  # of K that is drawn, beside a single draw
EXPONENTS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)
_TAIL = "tail, exponent "
_OURS = "tailsum, paper's proposal"
_MORE = 4  # repeats of the paper's method for each of ours: it takes a tenth of the time, and scatters more


def splits(n: int, repeats: int, seed: int) -> Iterator[Cell[SplitError]]:
    """The splits on the paper's chains and hypertrees, then what top states gain on other tails."""
    for subject_of, level in product((tables.chain_subject, tables.tree_subject), ADAM_STEPS):
        subject = dataclasses.replace(subject_of(n, level, seed), quantities=("log Z", "entropy"))
        for percent in PERCENT:
            k = cells.share_of(n, percent)
            # Half as many draws with no top states beside them: what the top states add to the same draws.
            yield from _split_cells(subject, percent, [(k - k2, k2) for k2 in drawn(k)] + [(0, k // 2)], repeats)
            yield from _own_cells(subject, percent, repeats)
    for exponent in EXPONENTS:
        subject = tail_subject(n, exponent, seed)
        for percent in PERCENT:
            k = cells.share_of(n, percent)
            yield from _split_cells(subject, percent, [(k - 1, 1), (k // 2, k - k // 2), (0, k), (0, k // 2)], repeats)
            yield from _own_cells(subject, percent, repeats)


def drawn(k: int) -> list[int]:
    """The numbers of draws that are tried, from one to all.

    >>> drawn(20), drawn(2)
    ([1, 2, 5, 10, 15, 18, 20], [1, 2])
    """
    return sorted({1, *(max(1, math.floor(share * k + 0.5)) for share in SHARES)})


def is_tail(model: str) -> bool:
    """Whether it is a chain with a given tail, and not one of the paper's models."""
    return model.startswith(_TAIL)


def exponent_of(model: str) -> float:
    """The exponent in the name of such a chain."""
    return float(model.removeprefix(_TAIL))


def tail_subject(n: int, exponent: float, seed: int) -> Subject:
    """A chain whose emissions fall as a power of their rank; 0 is flat."""

    def make(generator: torch.Generator) -> Made:
        return Made(tail_chain(n, exponent, generator=generator), {"paper": LocalGlobal()})

    return Subject(f"{_TAIL}{exponent:g}", n, seed, make)


def tail_chain(
    n_states: int, exponent: float, length: int = 10, size: int = 50, generator: torch.Generator | None = None
) -> LinearChain:
    """Emissions `rank ** -exponent`, the ranks in an order of their own at each position; transitions of deviation one.

    What the states' proposal does not know, the transitions, is equally much at every exponent.
    """
    order = torch.rand(length, n_states, generator=generator).argsort(-1)
    left, right = torch.randn(2, n_states, size, generator=generator)
    return LinearChain(-exponent * (order + 1.0).log(), Factored(left / math.sqrt(size), right))


def _split_cells(
    subject: Subject, percent: int, pairs: Sequence[tuple[int, int]], repeats: int
) -> Iterator[Cell[SplitError]]:
    """The paper's method with so many states kept for certain and so many drawn; a split that is named twice counts once."""
    for top, sampled in dict.fromkeys((top, max(1, sampled)) for top, sampled in pairs):
        selection = TopAndSample(top, sampled)
        method = Method("paper", f"{percent}%", top + sampled, selection, "paper", _MORE * repeats)
        yield _cell(subject, method, sampled)


def _own_cells(subject: Subject, percent: int, repeats: int) -> Iterator[Cell[SplitError]]:
    """Ours, which finds its split itself: by the paper's proposal, and by messages."""
    ours = cells.ours(subject.states, percent, repeats)
    plain = Method(_OURS, ours.label, ours.kept, Optimal(ours.kept), "paper", _MORE * repeats)
    yield from (_cell(subject, method, 0) for method in (plain, ours))


def _cell(subject: Subject, method: Method, sampled: int) -> Cell[SplitError]:
    @torch.no_grad()
    def replicates(found: Made, how: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
        exact, estimates = made(subject)[1], {quantity: list[float]() for quantity in subject.quantities}
        for replicate in range(method.repeats):
            small = found.model.sketch(**how)
            for quantity, seen in estimates.items():
                refine = method.refined and quantity == "entropy"
                model = small.refine() if refine and isinstance(small, LinearChain) else small
                seen.append(ask(model, quantity).item())
            if replicate < method.repeats - 1:
                yield []  # only all of them together make a row
        who = {"sampled": sampled, "replicates": method.repeats}
        yield [{**who, "quantity": each, **_summary(seen, exact[each].item())} for each, seen in estimates.items()]

    return cells.measured(subject, method, SplitError, [f"k2={sampled}"], replicates)


def _summary(estimates: Sequence[float], exact: float) -> dict[str, float]:
    errors = torch.tensor(estimates, dtype=torch.float64) - exact
    root = math.sqrt(max(1, len(errors) - 1))
    return {
        "exact": exact,
        "bias": errors.mean().item(),
        "bias_error": errors.std(correction=0).item() / root,
        "variance": errors.var(correction=0).item(),
        "mse": errors.square().mean().item(),
        "mse_error": errors.square().std(correction=0).item() / root,
    }
