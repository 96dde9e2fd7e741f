"""The page about a machine: tables, plots, and "when to use what" as Markdown."""

from pathlib import Path

from tailsum.apps.bench.machine import PACKAGES, read_machine
from tailsum.apps.bench.plan import read_plan
from tailsum.apps.bench.report.tables import sections
from tailsum.apps.bench.rows import Results, read_rows
from tailsum.apps.bench.when import when_markdown
from tailsum.apps.files import whole
from tailsum.apps.report import page
from tailsum.apps.report.wording import capital

__all__ = ["write_page"]


def write_page(folder: Path) -> Path:
    """Write `index.html`, `when.md` and the plots from `results.csv`, `machine.json` and `plan.json`; gives the page."""
    from tailsum.apps.bench.report.plots import pictures  # noqa: PLC0415  (heavy, and only here)
    from tailsum.apps.report.picture import save  # noqa: PLC0415

    plan, machine = read_plan(folder), read_machine(folder)
    results = Results(folder / "results.csv", read_rows(folder / "results.csv"))
    with whole(folder / "when.md") as file:
        file.write(when_markdown(results, plan, machine))
    parts = sections(results, plan)
    return page.write(
        folder / "index.html",
        "bench.html",
        contents={part.name: part.title for part in parts},
        about={name if name in PACKAGES else capital(name): value for name, value in machine.items()},
        sections=parts,
        shots=[save(picture, folder / "plots") for picture in pictures(results, plan)],
    )
