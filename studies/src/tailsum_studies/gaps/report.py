"""The results as a table, a picture and CSV: nats per word of each way, and how far it is behind ours."""

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev

import pandas as pd
from matplotlib.figure import Figure

from tailsum_studies.files import whole
from tailsum_studies.gaps.compare import Run
from tailsum_studies.report import page
from tailsum_studies.report.picture import Picture, page_width, save
from tailsum_studies.report.table import Section, Table

OURS = "tailsum"
FAR = 2.0  # nats per word behind the best beyond which a run is drawn at the edge


def by_way(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """The runs of each way, in the order of their seeds."""
    return {way: sorted((run for run in runs if run.way == way), key=lambda run: run.seed) for way in _ways(runs)}


def _ways(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(run.way for run in runs))


def behind(runs: Sequence[Run], ours: Sequence[Run]) -> tuple[float, float]:
    """How many nats per word a way is behind ours, mean over the seeds that both have, and the standard error of that.

    With one seed the error is that over sentences.
    """
    pairs = [(run, other) for run in runs for other in ours if run.seed == other.seed]
    if not pairs:
        return math.nan, math.nan
    if len(pairs) > 1:
        found = [run.test - other.test for run, other in pairs]
        return mean(found), stdev(found) / math.sqrt(len(found))
    (run, other), words = pairs[0], pairs[0][0].words
    each = [b - a for a, b in zip(run.log_likelihood, other.log_likelihood, strict=True)]
    per_word = mean(words)
    error = stdev(each) / math.sqrt(len(each)) / per_word if len(each) > 1 else math.nan
    return run.test - other.test, error


def table(runs: Sequence[Run]) -> pd.DataFrame:
    """A row for each way, as text."""
    found, rows = by_way(runs), {}
    for way, members in found.items():
        late, error = behind(members, found.get(OURS, ()))
        rows[members[0].label] = {
            "steps": f"{mean(run.steps for run in members):,.0f}",
            "dev, nats a word": _spread([run.dev for run in members]),
            "test, nats a word": _spread([run.test for run in members]),
            "words found": f"{mean(run.accuracy for run in members):.1%}",
            "behind ours": "" if way == OURS or math.isnan(late) else f"{late:.3f} ± {error:.3f}",
        }
    frame = pd.DataFrame.from_dict(rows, orient="index")
    frame.index.name = "trained by"
    return frame


def _spread(values: Sequence[float]) -> str:
    return f"{mean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "")


def write(folder: Path, runs: Sequence[Run], words: str) -> Path:
    """Write `gaps.md`, `gaps.csv` and the picture; gives the path of the first."""
    kept = [
        name for name in Run.__dataclass_fields__ if name not in ("log_likelihood", "words", "examples", "settings")
    ]
    with whole(folder / "gaps.csv") as file:
        pd.DataFrame([{name: getattr(run, name) for name in kept} for run in runs]).to_csv(file, index=False)
    save(Picture("gaps", "gaps", "", lambda: picture(runs)), folder, embed=False)
    notes = [example for run in runs if run.way == OURS and run.seed == runs[0].seed for example in run.examples]
    found = Table("gaps", "Test likelihood after as much time for each", table(runs), notes=notes)
    return page.write(
        folder / "gaps.md", "section.md", section=Section("gaps", "Missing words, restored", words, [found])
    )


def picture(runs: Sequence[Run]) -> Figure:
    """Each run a dot; those that are far behind, at the edge, say how far."""
    found = by_way(runs)
    figure = Figure(figsize=(page_width(), 0.36 * len(found) + 1.0), layout="constrained")
    ax = figure.subplots()
    edge = min(run.test for run in runs) + FAR
    for place, members in enumerate(found.values()):
        colour = "C0" if members[0].way == OURS else "C7"
        ax.plot([min(run.test, edge) for run in members], [place] * len(members), "o", color=colour, alpha=0.7)
        if min(run.test for run in members) > edge:
            ax.annotate(
                f"{mean(run.test for run in members):.1f} →", (edge, place), (-26, 6), textcoords="offset points"
            )
    ax.set_yticks(range(len(found)), [members[0].label for members in found.values()])
    ax.invert_yaxis()
    ax.set_xlabel("test, nats per missing word (a dot for each seed)")
    return figure
