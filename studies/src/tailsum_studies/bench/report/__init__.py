"""The page about a machine: tables, plots, and "when to use what" as Markdown."""

from pathlib import Path

from tailsum_studies.bench.machine import PACKAGES, read_machine
from tailsum_studies.bench.plan import read_plan
from tailsum_studies.bench.report.tables import sections
from tailsum_studies.bench.rows import Results, read_rows
from tailsum_studies.bench.when import when_markdown
from tailsum_studies.files import whole
from tailsum_studies.report import page
from tailsum_studies.report.wording import capital

__all__ = ["write_page"]


def write_page(folder: Path) -> Path:
    """Write `index.html`, `when.md` and the plots from `results.csv`, `machine.json` and `plan.json`; gives the page."""
    from tailsum_studies.bench.report.plots import pictures  # noqa: PLC0415  (heavy, and only here)
    from tailsum_studies.report.picture import save  # noqa: PLC0415

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
