"""The report's page says what the rows say, and nothing else is needed to read it."""

import math
import re
from dataclasses import replace

import pytest
from paper_cases import estimates, everything, pair

from harness.outline import Outline
from tailsum.apps.paper.report import write_report
from tailsum.apps.paper.rows import Check, Estimate, write_rows

ABOUT = {"seed": "0", "repeats": "2", "machine": 'two <cores> & "more"', "date": "2026-01-01"}


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    write_rows(folder / "table2.csv", everything()["table2"], Estimate)
    path = write_report(folder, everything(), ABOUT)
    return path, Outline(path.read_text(encoding="utf-8"))


def test_the_page_needs_nothing_else(report):
    path, page = report
    assert not [tag for tag, _ in page.tags if tag in {"script", "link", "iframe", "object"}]
    assert "url(" not in path.read_text(encoding="utf-8")
    assert "@import" not in path.read_text(encoding="utf-8")
    for link in page.links:
        if link.startswith("#"):
            assert any(attributes.get("id") == link[1:] for _, attributes in page.tags)
        elif not link.startswith("data:image/png;base64,"):
            assert re.fullmatch(r"[a-z0-9]+\.(md|csv)", link)
            assert (path.parent / link).exists()


def test_the_page_is_accessible(report):
    _, page = report
    assert ("html", {"lang": "en-GB"}) in page.tags
    tags = [tag for tag, _ in page.tags]
    assert tags.count("h1") == tags.count("main") == tags.count("title") == 1
    assert tags.count("table") == tags.count("caption") > 10
    assert all(attributes.get("alt") for tag, attributes in page.tags if tag == "img")
    assert all(attributes.get("scope") for tag, attributes in page.tags if tag == "th")


def test_the_page_says_what_was_run(report):
    path, page = report
    assert 'two <cores> & "more"' in page.words
    assert "two <cores>" not in path.read_text(encoding="utf-8")
    assert "4,000 x lower" in page.words


def test_every_plot_is_on_the_page(report):
    path, page = report
    plots = sorted(file.name for file in (path.parent / "plots").iterdir())
    kinds = ("errors", "mse", "cost")
    table2 = ["chain-entropy-2000", "chain-log-z-2000", "hypertree-log-z-10000"]
    assert plots == sorted(
        [f"table2-{block}-{kind}.png" for block in table2 for kind in kinds]
        + [f"{block}-log-z-2000-{kind}.png" for block in ("hard", "text") for kind in kinds]
        + ["table4-chain-log-z-2000-1-errors.png", "gradients-chain-dense-2000.png"]
        + ["theory-agreement.png", "theory-law-in-k2.png"]
    )
    assert len([tag for tag, _ in page.tags if tag == "img"]) == len(plots)


def test_plots_carry_no_versions(report):
    path, _ = report
    for file in (path.parent / "plots").iterdir():
        assert not {b"tEXt", b"tIME", b"iTXt"} & set(re.findall(rb"tEXt|tIME|iTXt", file.read_bytes()))


def test_the_page_links_to_rows_and_tables_beside_it(report):
    path, page = report
    names = ["table2", "table3", "table4", "hard", "text", "gradients", "theory"]
    links = [link for link in page.links if link.endswith((".md", ".csv"))]
    assert links == ["table2.md", "table2.csv", *(f"{name}.md" for name in names[1:])]
    text = (path.parent / "theory.md").read_text(encoding="utf-8")
    assert "| unbiased | chain | 2 | 1.0000 | 1.0200 | 0.010 | +2.00 |" in text


@pytest.mark.parametrize("name", [None, "table3", "gradients", "theory"])
def test_any_subset(name, tmp_path):
    results = {name: everything()[name]} if name else {}
    page = Outline(write_report(tmp_path / "new" / "folder", results, {}).read_text(encoding="utf-8"))
    found = [attributes["id"] for tag, attributes in page.tags if tag == "section"]
    assert [each for each in found if each != "summary"] == ([name] if name else [])
    assert (tmp_path / "new" / "folder" / "table2.md").exists() is False


def test_the_same_rows_give_the_same_bytes(tmp_path):
    results = {"table2": pair(), "theory": everything()["theory"]}
    first, second = (write_report(tmp_path / name, results, ABOUT).parent for name in ("a", "b"))
    files = [file.relative_to(first) for file in first.rglob("*") if file.is_file()]
    assert len(files) == 8
    assert all((first / file).read_bytes() == (second / file).read_bytes() for file in files)


@pytest.mark.parametrize("errors", [[0.0], [0.0, 0.0], [math.nan], [math.inf, 1.0], [-math.inf, math.nan]])
def test_exact_and_broken_estimates(errors, tmp_path):
    rows = [replace(row, seconds=0.0, peak_bytes=0) for row in estimates("tailsum", errors) + estimates("paper", [0.5])]
    checks = [Check("1/K2", "x", 1.0, error, error, error) for error in errors]
    path = write_report(tmp_path, {"table2": rows, "theory": checks}, {})
    words = {0.0: "exact", math.inf: "infinitely higher"}.get(errors[0], "undefined")
    assert words in Outline(path.read_text(encoding="utf-8")).words


def test_text_that_looks_like_formulas_is_drawn_as_it_is(tmp_path):
    path = write_report(tmp_path, {"hard": pair(model="named $^$")}, {})
    assert "named $^$" in Outline(path.read_text(encoding="utf-8")).words
