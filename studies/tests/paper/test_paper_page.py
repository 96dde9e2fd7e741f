"""The report's page says what the rows say, and nothing else is needed to read it."""

import math
import re
from dataclasses import replace

import pytest
from paper_cases import estimates, everything, pair

from pages.outline import Outline
from tailsum_studies.paper.report import write_report
from tailsum_studies.paper.report.plots import pictures
from tailsum_studies.paper.report.summary import summaries
from tailsum_studies.paper.report.tables import sections
from tailsum_studies.paper.reproduce import TABLES
from tailsum_studies.paper.results import rewrite_report, write_results
from tailsum_studies.paper.rows import EXACT, Check, Estimate, read_rows, write_rows
from tailsum_studies.report.picture import PHONE, WIDTH, drawn_for

ABOUT = {"seed": "0", "repeats": "2", "machine": 'two <cores> & "more"', "date": "2026-01-01"}


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    write_rows(folder / "table2.csv.gz", everything()["table2"], Estimate)
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
        else:
            assert re.fullmatch(r"[a-z0-9]+\.(md|csv\.gz)|plots/[a-z0-9-]+\.png", link)
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
    names = [f"table2-{block}-{kind}" for block in table2 for kind in kinds]
    names += [f"{block}-log-z-2000-{kind}" for block in ("hard", "text") for kind in kinds]
    names += ["table4-chain-log-z-2000-1-errors", "gradients-chain-dense-2000"]
    names += ["theory-agreement", "theory-law-in-k2"]
    assert plots == sorted(f"{name}{size}.png" for name in names for size in ("", "-narrow"))
    shown = [attributes["src"] for tag, attributes in page.tags if tag == "img"]
    assert sorted(shown) == sorted(f"plots/{name}.png" for name in names)
    narrow = [attributes["srcset"] for tag, attributes in page.tags if tag == "source"]
    assert narrow == [name.replace(".png", "-narrow.png") for name in shown]


def test_axes_are_named():
    """Where panels share an axis, its name stands at the edge; everywhere else at each panel."""
    for width in (WIDTH, PHONE):
        for picture in pictures(summaries(timed())):
            with drawn_for(width):
                axes = [ax for ax in picture.draw().axes if ax.axison]
            for which in ("x", "y"):
                named = [ax for ax in axes if getattr(ax, f"get_{which}label")()]
                texts = [ax for ax in axes if any(t.get_text() for t in getattr(ax, f"get_{which}ticklabels")())]
                shared = {
                    id(each) for ax in named for each in getattr(ax, f"get_shared_{which}_axes")().get_siblings(ax)
                }
                assert named, picture.name
                assert all(ax in named or id(ax) in shared for ax in texts), picture.name


def timed():
    """The same rows, and beside them what the exact sum takes."""
    results = everything()
    for name in ("table2", "hard", "text"):
        once = [row for row in results[name] if row.method == "paper"]
        results[name] += [replace(row, method=EXACT, label="all", kept=row.states, seconds=0.25) for row in once]
    return results


def test_the_exact_sum_is_in_every_plot_of_time():
    found = summaries(timed())
    assert EXACT not in {method for name in ("table2", "hard", "text") for method in found[name].method}
    costs = [picture for picture in pictures(found) if picture.name.endswith("-cost")]
    assert len(costs) == 5
    for picture in costs:
        figure = picture.draw()
        dotted = [line.get_xdata()[0] for line in figure.axes[0].lines if line.get_linestyle() == ":"]
        assert dotted == [0.25] * len(dotted) != []
        assert any("exact" in text.get_text() for text in figure.legends[0].get_texts())
        assert "exact sum" in picture.caption
    (seconds,) = {table.frame["Seconds: exact"].iloc[0] for table in sections(found)[3].tables}
    assert seconds == "0.25"


def test_the_report_is_written_again_from_its_rows(tmp_path):
    results = {name: rows for name, rows in timed().items() if name in {"table4", "gradients", "theory", "text"}}
    first = write_results(tmp_path / "a", results, ABOUT).parent
    names = TABLES["all"]
    before = {file.relative_to(first): file.read_bytes() for file in first.rglob("*") if file.is_file()}
    for file in first.rglob("*"):
        if file.suffix in {".png", ".md", ".html"}:
            file.unlink()
    assert rewrite_report(first, names) == first / "index.html"
    assert {file.relative_to(first): file.read_bytes() for file in first.rglob("*") if file.is_file()} == before
    (first / "about.json").unlink()
    with pytest.raises(ValueError, match=r"no results of `tailsum reproduce`: about\.json is missing"):
        rewrite_report(first, names)


def test_reports_are_small(report, tmp_path):
    """Few colours, rows compressed, and no picture twice: a full run stays below 5 MB."""
    path, _ = report
    sizes = [file.stat().st_size for file in (path.parent / "plots").iterdir()]
    assert max(sizes) < 60_000
    assert sum(sizes) / len(sizes) < 20_000
    assert path.stat().st_size < 60_000
    rows = [replace(row, replicate=i, estimate=i / 7) for i in range(500) for row in everything()["table3"]]
    for name in ("rows.csv", "rows.csv.gz"):
        write_rows(tmp_path / name, rows, Estimate)
        assert read_rows(tmp_path / name, Estimate) == rows
    plain, packed = ((tmp_path / name).stat().st_size for name in ("rows.csv", "rows.csv.gz"))
    assert packed < plain / 5


def test_plots_carry_no_versions(report):
    path, _ = report
    for file in (path.parent / "plots").iterdir():
        assert not {b"tEXt", b"tIME", b"iTXt"} & set(re.findall(rb"tEXt|tIME|iTXt", file.read_bytes()))


def test_the_page_links_to_rows_and_tables_beside_it(report):
    path, page = report
    names = ["table2", "table3", "table4", "hard", "text", "gradients", "theory"]
    links = [link for link in page.links if link.endswith((".md", ".gz"))]
    assert links == ["table2.md", "table2.csv.gz", *(f"{name}.md" for name in names[1:])]
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
    assert len(files) == 13  # the page, two tables, and five pictures, each wide and narrow
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
