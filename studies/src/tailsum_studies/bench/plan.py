"""What is measured: sweeps over N, T, B and K, as series of sizes that a plot shows as lines."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tailsum_studies.bench.rows import Sizes
from tailsum_studies.files import whole

SWEEPS = ("N", "T", "B", "K")
GROUPS = (*SWEEPS, "peers")
SHARES = {"N": 6.0, "T": 1.0, "B": 1.0, "K": 1.0, "peers": 2.0}  # of the time
LEAST_KEPT = 10
EXACT = "exact"


@dataclass(frozen=True)
class Plan:
    """The sizes of a run. T, B and K are swept at `base`."""

    states: tuple[int, ...]
    batches: tuple[int, ...]  # of the sweep over N
    kept: tuple[str, ...]  # of the sweep over N: a number, or a share such as "1%"
    base: Sizes
    lengths: tuple[int, ...]
    many: tuple[int, ...]  # batches of the sweep over B
    keep: tuple[int, ...]  # of the sweep over K
    target: float  # seconds to repeat an operation for
    quick: bool = False


DECADES = (100, 300, 1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
KEPT = ("100", "1,000", "1%", "10%")


def plan_of(kind: str, *, quick: bool) -> Plan:
    """The sizes for a kind of device, "cpu" or "cuda": a GPU sweeps T, B and K at more states."""
    states = 3_000 if kind == "cpu" else 30_000
    if quick:
        few = DECADES[::2] if kind == "cuda" else DECADES[:5:2]
        return Plan(few, (1, 8), KEPT[:3], Sizes(1_000, 20, 8, 100), (10, 100), (1, 16), (10, 100), 0.1, quick=True)
    base = Sizes(states, 20, 8, 100)
    return Plan(
        DECADES, (8, 1, 64), KEPT, base, (10, 30, 100, 300, 1_000), (1, 4, 16, 64, 256), (10, 30, 100, 300, 1_000), 0.3
    )


@dataclass(frozen=True)
class Series:
    """Sizes that differ along one axis: the exact sum, or a sketch with K as the label says."""

    axis: str  # one of SWEEPS
    label: str  # EXACT, or how K is given: "100", "1%"; "sketch" where K is the axis
    batch: int | None  # where one plot has several batches
    sizes: tuple[Sizes, ...]

    def at(self, sizes: Sizes) -> int:
        """Where on the axis."""
        return sizes[SWEEPS.index(self.axis)]


def kept_of(label: str, states: int) -> int | None:
    """K by its label, or None where such a sketch makes no sense: fewer than ten states, or more than half of them.

    >>> kept_of("100", 1000), kept_of("1%", 3000), kept_of("1%", 300), kept_of("1,000", 1000)
    (100, 30, None, None)
    """
    kept = states * int(label[:-1]) // 100 if label.endswith("%") else int(label.replace(",", ""))
    return kept if LEAST_KEPT <= kept <= states // 2 else None


def series(plan: Plan, axis: str) -> list[Series]:
    """The series of one sweep, the exact sum first."""
    if axis == "N":
        return [one for batch in plan.batches for one in _over_states(plan, batch)]
    base = plan.base._replace(kept=0)
    if axis == "K":
        kept = tuple(base._replace(kept=k) for k in plan.keep if k <= base.states // 2)
        exact = tuple(base._replace(kept=0) for _ in kept[:1])
        return [Series(axis, EXACT, None, exact), Series(axis, "sketch", None, kept)]
    values, name = (plan.lengths, "length") if axis == "T" else (plan.many, "batch")
    exact = tuple(base._replace(**{name: value}) for value in values)
    found = [Series(axis, EXACT, None, exact)]
    for label in plan.kept:
        kept = None if label.endswith("%") else kept_of(label, base.states)
        if kept is not None:
            found.append(Series(axis, label, None, tuple(sizes._replace(kept=kept) for sizes in exact)))
    return found


def _over_states(plan: Plan, batch: int) -> Iterator[Series]:
    sizes = [Sizes(states, plan.base.length, batch) for states in plan.states]
    yield Series("N", EXACT, batch, tuple(sizes))
    for label in plan.kept:
        pairs = ((one, kept_of(label, one.states)) for one in sizes)
        yield Series("N", label, batch, tuple(one._replace(kept=kept) for one, kept in pairs if kept is not None))


def cells_of(plan: Plan, axis: str) -> list[Sizes]:
    """The sizes of a sweep in the order in which they run, each once: small before large, exact before sketches."""
    return sorted({sizes for one in series(plan, axis) for sizes in one.sizes})


def groups_from(text: str) -> list[str]:
    """The groups that a text names, with commas between, in the order in which they run.

    >>> groups_from("peers,N")
    ['N', 'peers']
    """
    given = [part.strip() for part in text.split(",")]
    if unknown := [part for part in given if part not in GROUPS]:
        raise ValueError(f"--only must be some of {', '.join(GROUPS)}, with commas between: got {unknown[0]!r}")
    return [group for group in GROUPS if group in given]


def write_plan(folder: Path, plan: Plan) -> None:
    """Keep the sizes beside the results, for the page."""
    with whole(folder / "plan.json") as file:
        file.write(json.dumps(asdict(plan), indent=2) + "\n")


def read_plan(folder: Path) -> Plan:
    """The sizes that a folder's results were measured by; a ValueError if they are missing or damaged."""
    try:
        found: dict[str, Any] = json.loads((folder / "plan.json").read_text())
        given = {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}
        return Plan(**{**given, "base": Sizes(*found["base"])})
    except FileNotFoundError:
        raise ValueError(f"{folder} has no results: plan.json is missing") from None
    except (TypeError, ValueError, KeyError) as error:
        raise ValueError(f"{folder / 'plan.json'} cannot be read ({error}): run again with --fresh") from None
