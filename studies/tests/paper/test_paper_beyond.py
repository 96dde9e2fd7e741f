"""Splits, memory and gradients by samples on the page: a section each, and every plot in it."""

import math
from dataclasses import replace

import pytest
from paper_cases import cost_rows, gradient_rows, split_rows

from pages.outline import Outline
from tailsum_studies.paper.report import write_report

ROWS = {"splits": split_rows, "memory": cost_rows, "relaxed": gradient_rows}
PLOTS = {
    "splits": ["splits-chain-entropy-2000", "splits-chain-log-z-2000", "splits-tails-2000"],
    "memory": ["memory-peak-bytes", "memory-seconds"],
    "relaxed": ["relaxed-vae-50"],
}


@pytest.mark.parametrize("name", ROWS)
def test_a_section_with_its_plots(name, tmp_path):
    path = write_report(tmp_path, {name: ROWS[name]()}, {})
    page = Outline(path.read_text(encoding="utf-8"))
    assert [attributes["id"] for tag, attributes in page.tags if tag == "section"] == [name]
    drawn = (file.stem for file in (tmp_path / "plots").iterdir())
    assert sorted({stem.removesuffix("-narrow") for stem in drawn}) == PLOTS[name]
    assert len([tag for tag, _ in page.tags if tag == "img"]) == len(PLOTS[name])
    assert (tmp_path / f"{name}.md").read_text(encoding="utf-8").startswith("# ")


@pytest.mark.parametrize("size", [0.0, math.inf, math.nan])
def test_errors_without_a_place_on_the_scale(size, tmp_path):
    splits = [replace(row, bias=size, mse=size) if row.sampled != 10 else row for row in split_rows()]
    samples = [replace(row, bias=0.0, bias_error=0.0) if row.method == "relaxed, 1" else row for row in gradient_rows()]
    assert write_report(tmp_path, {"splits": splits, "relaxed": samples}, {}).exists()
