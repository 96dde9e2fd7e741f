"""The report of the experiments: tables, plots and one page that opens in any browser."""

from collections.abc import Mapping
from pathlib import Path

from tailsum.apps.paper.report.headline import headline
from tailsum.apps.paper.report.page import Shot, page
from tailsum.apps.paper.report.results import Results
from tailsum.apps.paper.report.sections import Section, sections
from tailsum.apps.paper.report.table import to_markdown

__all__ = ["Results", "write_report"]


def write_report(output: Path, results: Results, about: Mapping[str, str]) -> Path:
    """Write the page `index.html` and, beside it, each experiment's tables and plots; gives the page's path.

    It links to the rows, `table2.csv` and so on, where they lie in the same folder. The same rows give the same files:
    whatever changes from run to run, such as the date, stands in `about`.
    """
    from tailsum.apps.paper.report.plots import pictures  # noqa: PLC0415  (heavy, and only here)
    from tailsum.apps.report.picture import save  # noqa: PLC0415

    output.mkdir(parents=True, exist_ok=True)
    parts = sections(results)
    for part in parts:
        (output / f"{part.name}.md").write_text(_markdown(part), encoding="utf-8")
    shots = [
        Shot(picture.section, picture.caption, save(picture, output / "plots").read_bytes())
        for picture in pictures(results)
    ]
    files = [file.name for file in sorted(output.iterdir())]
    path = output / "index.html"
    path.write_text(page(about, headline(results), parts, shots, files), encoding="utf-8")
    return path


def _markdown(section: Section) -> str:
    tables = "\n".join(to_markdown(table) for table in section.tables)
    return f"# {section.title}\n\n{section.words}\n\n{tables}"
