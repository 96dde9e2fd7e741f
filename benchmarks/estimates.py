"""Error bars and warnings of `estimate`: coverage of its intervals, sketches that are off, and false alarms.

All of it: `python -m benchmarks.estimates`; a part of it in a few minutes: `python -m benchmarks.estimates --quick`.
"""

import argparse
import itertools
import warnings
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.families import FAMILIES, random_chain
from benchmarks.measure import Figure
from tailsum import (
    Local,
    LocalGlobal,
    Lookahead,
    Optimal,
    Propose,
    Selection,
    SketchWarning,
    Structure,
    TopAndSample,
    TopK,
    Uniform,
    estimate,
)
from tailsum.structure.replicates import combine

LENGTH = 20
SIZES = (500, 700, 1000, 1400, 500, 1000, 2000) * 2 + (700, 1000, 500, 1400, 5000)  # of states, in turn
SHARES = (0.01, 0.05, 0.02)  # of the states kept, in turn

# Sketches that may be far off: the proposal, and the selection of about so many states.
BAD: dict[str, tuple[Propose, Selection]] = {
    "local": (Local(), Optimal(50)),
    "uniform": (Uniform(), Optimal(50)),
    "paper's": (LocalGlobal(), TopAndSample(49, 1)),
    "4 landmarks": (Lookahead(landmarks=4, neighbours=0), Optimal(50)),
    "K = 5": (Lookahead(landmarks=64, neighbours=0), Optimal(5)),
    "top 100, local": (Local(), TopK(100)),
    "top 20": (Lookahead(landmarks=64, neighbours=0), TopK(20)),
}


class Measured(NamedTuple):
    """Whether the intervals of log Z and entropy hold the truth, the error of log Z in nats, and whether it was warned."""

    covers: tuple[bool, bool]
    error: float
    warned: bool


def both(small: Structure) -> Tensor:
    return torch.stack((small.log_partition(), small.entropy()), -1)


def measured(family: str, n_states: int, seed: int, proposal: Propose | None, selection: Selection) -> Measured:
    """One estimate of a random chain, by 16 sketches."""
    place = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    generator = torch.Generator(place).manual_seed(seed)
    chain = random_chain(family, n_states, LENGTH, place, seed)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore", SketchWarning)
        truth = both(chain)
        found = estimate(chain, both, selection=selection, proposal=proposal, generator=generator)
    log_z, covers = found.replicates[:, 0], list[bool]()
    for values, true in zip(found.replicates.unbind(-1), truth, strict=True):
        together = combine(log_z, values, logarithm=True, confidence=0.95)
        covers.append(bool((together.low <= true) & (true <= together.high)))
    error = combine(log_z, log_z, logarithm=True, confidence=0.95).value - truth[0]
    return Measured((covers[0], covers[1]), error.item(), bool(found.warnings))


def coverage_figures(models: int = 3) -> Iterator[Figure]:
    """How often 95% intervals hold the truth, by family, and how often a good estimate is warned of."""
    everything = list[Measured]()
    for place, family in enumerate(FAMILIES):
        found = list[Measured]()
        sizes, shares = itertools.cycle(SIZES), itertools.cycle(SHARES)
        for seed, n_states, share in zip(range(models), sizes, shares, strict=False):
            k = max(10, round(share * n_states))
            found.append(measured(family, n_states, 1000 * place + seed, None, Optimal(k)))
        log_z, entropy = (sum(one.covers[i] for one in found) / models for i in (0, 1))
        worst = max(abs(one.error) for one in found)
        yield Figure(
            f"95% intervals, {family}, {models} models: share that hold log Z, and the entropy",
            f"{log_z:.0%}, {entropy:.0%} (log Z off by {worst:.2g} at most)",
            "at least 90%",
            min(log_z, entropy) >= 0.9,
        )
        everything += found
    total = len(everything)
    hits = [sum(one.covers[i] for one in everything) / total for i in (0, 1)]
    yield Figure(
        f"95% intervals, {total} models: share that hold log Z, and the entropy",
        f"{hits[0]:.1%}, {hits[1]:.1%}",
        "90% to 99%",
        0.9 <= min(hits) <= max(hits) <= 0.99,
    )
    right = [one for one in everything if abs(one.error) < 0.1 or one.covers[0]]
    alarms = sum(one.warned for one in right) / len(right)
    yield Figure(f"false alarms, {len(right)} good estimates", f"{alarms:.1%}", "at most 10%", alarms <= 0.1)


def warning_figures(models: int = 1) -> Iterator[Figure]:
    """Sketches that are off by more than a nat: how many are warned of."""
    for place, (name, (proposal, selection)) in enumerate(BAD.items()):
        off = warned = right = alarms = 0
        families = [x for x in FAMILIES if x != "left to right" or name != "paper's"]  # which has no embeddings
        for seed, family in itertools.product(range(models), families):
            n_states = SIZES[(seed + place) % len(SIZES)]
            found = measured(family, n_states, 100_000 + 1000 * place + seed, proposal, selection)
            if abs(found.error) > 1:
                off, warned = off + 1, warned + found.warned
            elif abs(found.error) < 0.1:
                right, alarms = right + 1, alarms + found.warned
        yield Figure(
            f"sketches off by more than 1 nat, {name}: warned of",
            f"{warned} of {off} (of {right} within 0.1 nats: {alarms})",
            "at least 95%",
            warned >= 0.95 * off,
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.estimates", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few models of each family")
    quick = parser.parse_args().quick
    torch.set_flush_denormal(True)
    for figures in (warning_figures(1 if quick else 8), coverage_figures(3 if quick else 25)):
        for figure in figures:
            print(
                f"{'ok  ' if figure.reached else 'MISS'} {figure.name}: {figure.measured} [{figure.goal}]", flush=True
            )


if __name__ == "__main__":
    main()
