"""The results of `tailsum reproduce` as files: the rows of each experiment, compressed, and what was run, in `about.json`.

The report is written from these alone, so it can be written again without running anything.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pandas as pd

from tailsum_studies.files import whole
from tailsum_studies.paper.report import write_report
from tailsum_studies.paper.rows import Row, read_rows, write_rows

ABOUT = "about.json"
ROWS = ".csv.gz"
KINDS: Sequence[type[Any]] = Row.__constraints__


def write_results(output: Path, results: Mapping[str, Sequence[Row]], about: Mapping[str, str]) -> Path:
    """Write the rows of each experiment, what was run, and the report; gives the report's page."""
    for name, rows in results.items():
        write_rows(output / f"{name}{ROWS}", rows, type(rows[0]))
    with whole(output / ABOUT) as file:
        json.dump(dict(about), file, indent=2, ensure_ascii=False)
        file.write("\n")
    return write_report(output, results, about)


def rewrite_report(output: Path, names: Collection[str]) -> Path:
    """Write the report of some experiments again from the rows in a folder; gives its page.

    Those that have no rows there are left out. A ValueError says what is missing or wrong.
    """
    try:
        about = json.loads((output / ABOUT).read_text("utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{output} has no results of `tailsum reproduce`: {ABOUT} is missing") from None
    except ValueError as error:
        raise ValueError(f"{output / ABOUT} is damaged: {error}") from None
    found = {name: _read(path) for name in names if (path := output / f"{name}{ROWS}").exists()}
    return write_report(output, found, about)


def _read(path: Path) -> list[Any]:
    """The rows of a file, of the kind whose columns it has."""
    columns = list(pd.read_csv(path, nrows=0))
    kind = next((kind for kind in KINDS if columns == [field.name for field in fields(kind)]), KINDS[0])
    return read_rows(path, kind)
