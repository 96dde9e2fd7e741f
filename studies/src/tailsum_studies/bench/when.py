"""The table "when to use what": by N and B, whether the exact sum or a sketch is faster, and with how many states."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tailsum_studies.bench.plan import Plan, kept_of
from tailsum_studies.bench.rows import BOTH, TOGETHER, Results, Sizes
from tailsum_studies.report.wording import number

CLEARLY = 1.1  # a sketch that is not faster by this factor is not worth its error
UNKNOWN = "not measured"


@dataclass(frozen=True)
class Advice:
    """What to use at one N and B: ratios of the exact sum's time to that of the sketches which are faster, by K."""

    ratios: Mapping[int, float]
    predicted: bool = False  # one of the two was not measured
    known: bool = True

    def __str__(self) -> str:
        if not self.known:
            return UNKNOWN
        about = "about " if self.predicted else ""
        if not self.ratios:
            return "exact (predicted)" if self.predicted else "exact"
        least, most = min(self.ratios), max(self.ratios)
        low, high = (number(f(self.ratios.values()), 2, trim=True) for f in (min, max))
        kept = f"K = {least:,}" if least == most else f"K = {least:,} to {most:,}"
        times = low if low == high else f"{low} to {high}"
        return f"sketch, {kept}: {about}{times} x faster"


def advice(results: Results, plan: Plan, states: int, batch: int) -> Advice:
    """From the times of the forward and backward pass, choosing included; every sketch passed the check of its error."""
    whole = Sizes(states, plan.base.length, batch)
    exact = results.get(whole, BOTH, measured=False)
    kept = {k for label in plan.kept if (k := kept_of(label, states)) is not None}
    rows = {k: results.get(whole._replace(kept=k), TOGETHER, measured=False) for k in sorted(kept)}
    measured = {k: row.seconds for k, row in rows.items() if row is not None and row.is_measured}
    guessed = {k: row.seconds for k, row in rows.items() if row is not None and row.seconds > 0}
    if exact is None or not math.isfinite(exact.seconds):
        return Advice({}, known=False)
    if kept and not measured:  # a prediction of both, or of one that is faster, is no advice
        slower = bool(guessed) and min(guessed.values()) * CLEARLY > exact.seconds
        return Advice({}, predicted=True, known=exact.is_measured and slower)
    ratios = {k: exact.seconds / seconds for k, seconds in measured.items()}
    return Advice({k: ratio for k, ratio in ratios.items() if ratio >= CLEARLY}, not exact.is_measured)


def when_cells(results: Results, plan: Plan) -> dict[int, list[str]]:
    """The table's lines by N, a text for each B in ascending order; without lines of which nothing is known."""
    batches = sorted(plan.batches)
    lines = {n: [str(advice(results, plan, n, batch)) for batch in batches] for n in plan.states}
    return {n: texts for n, texts in lines.items() if any(text != UNKNOWN for text in texts)}


def when_markdown(results: Results, plan: Plan, machine: Mapping[str, str]) -> str:
    """The table, and how it was made, as Markdown for a README."""
    batches = sorted(plan.batches)
    kept = ", ".join(plan.kept)
    made = (
        f"Measured by `tailsum bench` on {machine.get('device', 'a machine')} (threads: {machine.get('threads', '?')}, "
        f"torch {machine.get('torch', '?')}): log-partition and gradient of a chain with a transition that all steps "
        f"share (`Factored`, d = 64), T = {plan.base.length}, float32, the time to choose the states included. "
        f"K was {kept}. About, predicted: one of the two times was predicted from smaller sizes."
    )
    lines = [
        f"| states | {' | '.join(f'B = {batch:,}' for batch in batches)} |",
        f"|--:|{'---|' * len(batches)}",
        *(f"| N = {n:,} | {' | '.join(texts)} |" for n, texts in when_cells(results, plan).items()),
    ]
    return "\n".join([*lines, "", made]) + "\n"
