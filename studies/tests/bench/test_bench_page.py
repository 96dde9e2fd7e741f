"""The page says what the rows say, and the command writes it."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from bench_cases import MACHINE, PLAN, TINY, made_up
from typer.testing import CliRunner

from pages.outline import Outline
from tailsum_studies.bench import plan as plans
from tailsum_studies.bench.machine import claim, read_machine
from tailsum_studies.bench.plan import read_plan, write_plan
from tailsum_studies.bench.report import write_page
from tailsum_studies.bench.report.plots import pictures
from tailsum_studies.bench.report.tables import sections
from tailsum_studies.bench.rows import BOTH, FAILED, SKIPPED, WRONG, Results, Sizes, read_rows
from tailsum_studies.bench.when import when_markdown
from tailsum_studies.cli.app import app

ROOT = Path(__file__).parents[3]


def written(folder):
    results = made_up(folder / "results.csv")
    results.add([])
    claim(folder, MACHINE)
    write_plan(folder, PLAN)
    path = write_page(folder)
    return results, path, Outline(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return written(tmp_path_factory.mktemp("page"))


def test_every_plot_is_on_the_page(page):
    results, path, outline = page
    names = [picture.name for picture in pictures(results, PLAN)]
    assert {"time-n-b1", "time-n-b8", "memory-n-b8", "time-t", "time-b", "time-k", "error-k"} <= set(names)
    assert {"parts-100", "parts-10pct", "peers-time", "peers-memory"} <= set(names)
    shown = [dict(attributes) for tag, attributes in outline.tags if tag == "img"]
    assert len(shown) == len(names) == len(set(names))
    assert {file.stem for file in (path.parent / "plots").iterdir()} == set(names)
    assert all(each["src"].startswith("data:image/png;base64,") and each["alt"] for each in shown)


def test_axes_are_named(page):
    results, *_ = page
    for picture in pictures(results, PLAN):
        for ax in picture.draw().axes:
            assert ax.get_xlabel(), picture.name
            assert ax.get_ylabel(), picture.name


def test_the_page_needs_nothing_else(page):
    _, path, outline = page
    ids = outline.ids()
    for link in outline.links:
        if link.startswith("#"):
            assert link[1:] in ids
        elif not link.startswith("data:"):
            assert "/" not in link
            assert (path.parent / link).exists()
    assert not [tag for tag, _ in outline.tags if tag in {"script", "link", "iframe", "object"}]
    assert str(path.parent) not in path.read_text(encoding="utf-8")


def test_tables(page):
    _, path, outline = page
    text = " ".join(outline.words)
    assert 'two <cores> & "more"' in text
    assert "sketch, K = 100 to 1,000: 130 x faster" in text
    assert "3.0" in text  # torch-struct's time over ours
    assert "7.0" in text  # and its memory
    assert (path.parent / "when.md").read_text() == when_markdown(page[0], PLAN, MACHINE)


def test_what_was_left_out_is_reported(tmp_path):
    def change(row):
        if row.sizes == Sizes(100_000, 20, 8) and row.operation == BOTH:
            return replace(row, status=SKIPPED, note="predicted to take 30,000 s")
        if row.sizes == Sizes(1_000, 20, 16):
            return replace(row, status=WRONG, seconds=float("nan"), error=7.0, tolerance=0.5)
        return replace(row, status=FAILED, note="refused") if row.library == "torch-struct" else row

    made = made_up(tmp_path / "results.csv")
    parts = sections(Results(made.path, [change(row) for row in made.rows.values()]), PLAN)
    text = " ".join(table.frame.to_string(max_colwidth=None) for part in parts for table in part.tables)
    assert "predicted to take 30,000 s" in text
    assert "off by 7.0, more than 0.50" in text
    assert "refused" in text
    assert "(10,000 s)" in text  # the predicted time, in brackets


def test_a_part_of_the_sweeps(tmp_path):
    results = made_up(tmp_path / "results.csv")
    rows = [row for row in results.rows.values() if row.batch == 1 and row.subject == "chain"]
    names = {part.name for part in sections(Results(results.path, rows), PLAN)}
    assert names == {"when", "N", "B"}  # a batch of one is in the sweep over B


# The command.


@pytest.fixture
def command(monkeypatch, unchecked, one_thread):
    monkeypatch.setattr(plans, "plan_of", lambda kind, quick: TINY)
    return lambda *arguments: CliRunner().invoke(app, ["bench", *map(str, arguments)])


def test_the_command(command, tmp_path):
    folder = tmp_path / "out"
    shown = command("--output", folder, "--device", "cpu", "--only", "N,K")
    assert shown.exit_code == 0, shown.output
    assert f"The results on one page: {folder / 'index.html'}" in shown.output
    (folder / "index.html").unlink()
    shown = command("--page", folder)
    assert shown.exit_code == 0, shown.output
    assert shown.output == f"The results on one page: {folder / 'index.html'}\n"
    assert "Against the number of states" in (folder / "index.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--only", "N,states"), "--only must be some of N, T, B, K, peers, with commas between: got 'states'"),
        (("--device", "abacus"), "--device must be cpu, cuda or cuda:1: got 'abacus'"),
        (("--page", ".", "--quick"), "--quick has no effect with --page: leave one of them out"),
        (("--page", "."), "has no results: plan.json is missing"),
    ],
)
def test_errors_are_one_line(command, arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = command(*arguments)
    assert shown.exit_code == 1
    assert said in shown.output
    assert shown.output.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_help_fits(command):
    shown = command("--help").output
    assert max(map(len, shown.splitlines())) <= 80
    assert all(
        name in shown for name in ("--output", "--quick", "--device", "--only", "--seconds", "--fresh", "--page")
    )


# The documentation.


def test_the_documentation_has_the_table_of_the_last_run():
    folder = ROOT / "studies" / "docs" / "bench"
    results = Results(folder / "results.csv", read_rows(folder / "results.csv"))
    expected = (folder / "when.md").read_text(encoding="utf-8")
    assert when_markdown(results, read_plan(folder), read_machine(folder)) == expected
    page = (ROOT / "docs" / "exact_or_sketch.md").read_text(encoding="utf-8")
    (found,) = re.findall(r"<!-- studies/docs/bench/when.md -->\n(.*?)<!-- end -->", page, re.DOTALL)
    assert found == expected
