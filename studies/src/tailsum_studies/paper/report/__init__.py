"""The report of the experiments: tables, plots and one page that opens in any browser."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tailsum_studies.paper.report.beyond import more_sections
from tailsum_studies.paper.report.compare import headline
from tailsum_studies.paper.report.summary import summaries
from tailsum_studies.paper.report.tables import sections
from tailsum_studies.paper.rows import Row
from tailsum_studies.report import page
from tailsum_studies.report.wording import capital

__all__ = ["write_report"]


def write_report(output: Path, results: Mapping[str, Sequence[Row]], about: Mapping[str, str]) -> Path:
    """Write the page `index.html` and, beside it, each experiment's tables and plots; gives the page's path.

    It links to the rows, `table2.csv` and so on, where they lie in the same folder. The same rows give the same files:
    whatever changes from run to run, such as the date, stands in `about`.
    """
    from tailsum_studies.paper.report.beyond_plots import more_pictures  # noqa: PLC0415  (heavy, and only here)
    from tailsum_studies.paper.report.plots import pictures  # noqa: PLC0415
    from tailsum_studies.report.picture import save  # noqa: PLC0415

    found = summaries(results)
    parts = [*sections(found), *more_sections(found)]
    for part in parts:
        page.write(output / f"{part.name}.md", "section.md", section=part)
    return page.write(
        output / "index.html",
        "paper.html",
        contents={part.name: part.title for part in parts},
        about={capital(name): value for name, value in about.items()},
        headline=headline(found),
        sections=parts,
        files=[file.name for file in output.iterdir()] if output.exists() else [],
        shots=[save(picture, output / "plots", embed=False) for picture in (*pictures(found), *more_pictures(found))],
    )
