"""The experiments: their cells are what the paper's settings say, and an interrupted run goes on where it was."""

import csv
import gzip
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import get_args

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import tailsum as ts
from tailsum_studies.cli.app import app
from tailsum_studies.cli.reproduce import Table, _numbers
from tailsum_studies.paper import tables as text_cells
from tailsum_studies.paper.cells import Cell, Made, Method, Subject, cell, made, seeded
from tailsum_studies.paper.exact import exact_cell
from tailsum_studies.paper.gradients import gradients
from tailsum_studies.paper.reproduce import TABLES, Settings, plan, reproduce
from tailsum_studies.paper.results import write_results
from tailsum_studies.paper.rows import Check, Estimate, read_rows, write_rows
from tailsum_studies.paper.tables import chain_subject, hard, table2, table3, table4
from tailsum_studies.paper.trained import Settings as Training
from tailsum_studies.text import Split


def a_row(**changes):
    fields = {
        "model": "chain, dense",
        "states": 100,
        "quantity": "log Z",
        "method": "paper",
        "label": "1%",
        "kept": 2,
        "replicate": 0,
        "estimate": 1.25,
        "exact": 1.0,
        "seconds": 0.5,
        "peak_bytes": 10,
    }
    return Estimate(**{**fields, **changes})


def values(rows):
    """What does not depend on the clock."""
    return [(r.model, r.method, r.label, r.quantity, r.replicate, r.estimate, r.exact) for r in rows]


def test_rows_survive_a_file(tmp_path):
    rows = [a_row(), a_row(model='with "quotes", commas', estimate=1 / 3, replicate=1)]
    path = tmp_path / "deep" / "rows.csv"
    write_rows(path, rows, Estimate)
    assert read_rows(path, Estimate) == rows
    assert rows[0].error == 0.25
    assert [p.name for p in path.parent.iterdir()] == ["rows.csv"]


def test_exact_cells_measure_the_exact_sum():
    subject = chain_subject(100, "dense", 0)
    steps = []
    rows = exact_cell(subject, 2).run(lambda: steps.append(1))
    assert len(steps) == 2
    assert [(r.quantity, r.replicate) for r in rows] == [("log Z", 0), ("entropy", 0), ("log Z", 1), ("entropy", 1)]
    assert all(r.estimate == r.exact and r.seconds > 0 and r.peak_bytes > 0 and r.kept == 100 for r in rows)
    with torch.no_grad():
        assert rows[1].exact == pytest.approx(made(subject)[0].model.entropy().item())


@pytest.mark.parametrize("damage", ["", "model,states\n", "cut", "word"])
def test_a_damaged_file_is_said_to_be_one(tmp_path, damage):
    path = tmp_path / "rows.csv"
    write_rows(path, [a_row()], Estimate)
    whole = path.read_text()
    changed = {"cut": whole[:-8], "word": whole.replace("1.25", "much")}.get(damage, damage)
    path.write_text(changed)
    with pytest.raises(ValueError, match=r"rows\.csv"):
        read_rows(path, Estimate)
    wanted = Cell("rows", Estimate, 1, lambda step: [a_row(estimate=2.0)])
    assert wanted.finished(tmp_path) is None
    assert wanted.rows(tmp_path, lambda: None)[0].estimate == 2.0
    assert read_rows(path, Estimate)[0].estimate == 2.0


def test_a_cell_measures_what_it_says(generator):
    chain = ts.LinearChain(torch.randn(2, 5, 40, generator=generator), torch.randn(40, 40, generator=generator))
    subject = Subject("made up", 40, 3, lambda g: Made(chain, {"paper": ts.Local()}))
    method = Method("paper", "10%", 4, ts.TopAndSample(3, 1), "paper", 3)
    steps = []
    rows = cell(subject, method).run(lambda: steps.append(1))
    assert len(steps) == 3
    assert len(rows) == 3 * 2 * 2  # repeats, quantities, sequences
    draws = seeded(3, cell(subject, method).name)
    with torch.no_grad():
        for replicate in range(-1, 3):  # one more, for the memory, comes first
            small = chain.sketch(proposal=ts.Local(), selection=ts.TopAndSample(3, 1), generator=draws)
            for quantity, asked in (("log Z", ts.LinearChain.log_partition), ("entropy", ts.LinearChain.entropy)):
                found = [r for r in rows if r.quantity == quantity and r.replicate // 2 == replicate]
                if replicate >= 0:
                    assert [r.estimate for r in found] == asked(small).tolist()
                    assert [r.exact for r in found] == asked(chain).tolist()
    assert all(r.peak_bytes > 0 and r.seconds > 0 for r in rows)


def test_our_entropy_is_refined():
    subject = chain_subject(200, "dense", 0)
    (ours,) = [c for c in table2([200], 8, 0) if c.name.startswith("chain__dense") and "tailsum-10pct" in c.name]
    found, _ = made(subject)
    errors = [r.error**2 for r in ours.run(lambda: None) if r.quantity == "entropy"]
    with torch.no_grad():
        exact = found.model.entropy()
        plain = [(found.model.sketch(20).entropy() - exact).square().item() for _ in range(8)]
    assert len(errors) == 8
    assert sum(errors) < sum(plain) / 10


def test_the_settings_are_the_papers():
    def settings(cells, *words):
        return [c.name for c in cells if all(w in c.name for w in words)]

    cells = list(table2([2000, 10_000], 100, 0))
    assert len({c.name for c in cells}) == len(cells)
    for level in ("dense", "intermediate", "long-tail"):
        for n in (2000, 10_000):
            of = f"chain__{level}-n{n}-"
            for k in (500, 1000):
                assert settings(cells, of, f"topk-k={k}-k{k}-")
            for percent in (1, 10, 20):
                k = n * percent // 100
                repeats = "r50" if k == 2000 else "r100"
                assert settings(cells, of, f"paper-{percent}pct-k{k}-", "log_z", repeats)
                assert settings(cells, of, f"paper-{percent}pct-k{k}-", "entropy", repeats)
                assert settings(cells, of, f"tailsum-{percent}pct-k{k}-", "log_z-entropy", repeats)
            for percent, k in ((1, 20), (10, 200), (20, 400)):
                for method in ("paper", "tailsum"):
                    assert settings(cells, f"hypertree__{level}-n{n}-{method}-{percent}pct-k{k}-")
            for percent in (20, 50):
                assert settings(cells, f"hypertree__{level}-n{n}-topk-{percent}pct-k{n * percent // 100}-")
    names = {c.name for c in cells}
    assert {c.name for c in table3([2000, 10_000], 100, 0)} < names
    assert all("n2000" in c.name for c in table3([2000, 10_000], 100, 0))
    proposals = list(table4([2000, 10_000], 100, 0))
    assert len(proposals) == 3 * 3 * 9
    assert sum(c.name in names for c in proposals) == 9  # ours are those of the second table


def test_hard_cells():
    cells = list(hard([2000, 10_000], 100, 0))
    assert len(cells) == 2 * 5 * (2 * 3 + 1)
    cells = [c for c in cells if "-exact-" not in c.name]
    assert all(c.steps == (25 if "n2000" in c.name else 10) for c in cells if "topk" not in c.name)


def test_gradients_against_the_exact_one():
    rows = [r for c in gradients([chain_subject(200, "dense", 0)], 2) for r in c.run(lambda: None)]
    assert {r.parameter for r in rows} == {"words", "states", "from", "to", "all"}
    assert {r.quantity for r in rows} == {"log Z", "entropy"}
    assert all(-1 <= r.cosine <= 1 + 1e-9 and r.relative_error >= 0 for r in rows)

    def mean(method, label, quantity="log Z"):
        found = [1 - r.cosine for r in rows if (r.method, r.label, r.quantity) == (method, label, quantity)]
        return sum(found) / len(found)

    for quantity in ("log Z", "entropy"):
        assert mean("tailsum, refined", "10%", quantity) < mean("tailsum", "10%", quantity) / 10
        assert mean("tailsum, K landmarks, refined", "10%", quantity) < mean("tailsum, K landmarks", "10%", quantity)
        assert mean("tailsum", "10%", quantity) < mean("paper", "10%", quantity)


def test_gradients_need_parameters():
    chain = ts.LinearChain(torch.zeros(3, 200), torch.zeros(200, 200))
    subject = Subject("a table", 200, 0, lambda g: Made(chain, {"paper": ts.Local()}))
    with pytest.raises(ValueError, match="gradients need"):
        next(iter(gradients([subject], 2))).run(lambda: None)


def test_models_of_text(tmp_path, monkeypatch):
    """Trained when first needed, then read from their files; the CRF's loss is differentiated too."""
    words = [f"{chr(97 + i % 26)}{i}" for i in range(120)]
    lines = [[words[(7 * i + j) % 120] for j in range(4 + i % 3)] for i in range(80)]
    monkeypatch.setattr(text_cells, "_sentences", lambda data: Split(lines[:40], [], lines[40:]))
    monkeypatch.setattr(
        text_cells, "Settings", lambda kind, seed=0: Training(kind, n_states=100, size=8, steps=3, batch=8, seed=seed)
    )
    taken = []
    for kind in ("crf", "hmm"):
        text_cells.prepare(kind, None, tmp_path, 0, lambda: taken.append(1))
        text_cells.prepare(kind, None, tmp_path, 0, lambda: taken.append(1))
    assert len(taken) == 2 * 3
    crf, hmm = text_cells.text_subjects(None, tmp_path, 0)
    cells = list(text_cells.text(None, tmp_path, 2, 0))
    assert len(cells) == 2 * (2 * 4 + 1)
    rows = next(c for c in cells if "crf" in c.name and "tailsum-10pct" in c.name).run(lambda: None)
    assert len(rows) == 2 * 2 * 32
    assert max(abs(r.error) for r in rows) < 0.01  # more landmarks than states
    found = {
        subject.name: {r.quantity for r in next(iter(gradients([subject], 2))).run(lambda: None)}
        for subject in (crf, hmm)
    }
    assert found == {crf.name: {"log Z", "entropy", "loss"}, hmm.name: {"log Z", "entropy"}}


def settings(folder, **changes):
    fields = {"table": "table3", "states": (100,), "repeats": 2, "seed": 0, "output": folder}
    return Settings(**{**fields, **changes})


@pytest.mark.slow
def test_interrupted_and_resumed(tmp_path):
    console = Console(quiet=True)
    whole = settings(tmp_path / "whole")
    reproduce(whole, console)
    cells = plan(whole)["table3"]
    part = settings(tmp_path / "part")
    taken = 0

    def stop():
        nonlocal taken
        taken += 1
        if taken == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        [each.rows(part.cells, stop) for each in cells]
    finished = sorted(part.cells.iterdir())
    assert len(finished) == 4  # of one, one, two and two steps; the fifth was interrupted, and left nothing
    before = [p.read_bytes() for p in finished]
    reproduce(part, console)
    assert [p.read_bytes() for p in finished] == before
    rows = [read_rows(s.output / "table3.csv.gz", Estimate) for s in (whole, part)]
    assert values(rows[0]) == values(rows[1])
    assert len(rows[0]) == sum(len(read_rows(c.path(whole.cells), Estimate)) for c in cells)


def test_other_settings_have_other_cells(tmp_path):
    names = [
        {c.name for c in plan(settings(tmp_path, **changes))["table3"] if c.steps > 1}
        for changes in ({}, {"seed": 1}, {"repeats": 3}, {"states": (200,)})
    ]
    assert all(a.isdisjoint(b) for i, a in enumerate(names) for b in names[:i])


def command(*arguments):
    return [sys.executable, "-m", "tailsum_studies.cli", "reproduce", *arguments]


@pytest.mark.slow
def test_killed_and_resumed(tmp_path):
    """The command itself, ended without warning at some cell, then run again."""
    arguments = ("table3", "--states", "200", "--repeats", "3", "--output", str(tmp_path / "out"))
    process = subprocess.Popen(command(*arguments), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    cells = tmp_path / "out" / "cells"
    limit = time.monotonic() + 120
    while len(list(cells.glob("*.csv")) if cells.exists() else []) < 2 and time.monotonic() < limit:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    shown = subprocess.run(command(*arguments), capture_output=True, text=True, check=False, timeout=300)
    assert shown.returncode == 0, shown.stderr
    assert "cells were finished before" in shown.stdout
    page = tmp_path / "out" / "index.html"
    assert "index.html" in shown.stdout
    assert page.read_text().startswith("<!")
    with gzip.open(tmp_path / "out" / "table3.csv.gz", "rt") as file:
        found = list(csv.DictReader(file))
    wanted = plan(settings(tmp_path, table="table3", states=(200,), repeats=3))["table3"]
    assert {(r["method"], r["label"]) for r in found} >= {("paper", "1%"), ("tailsum", "20%"), ("TopK", "50%")}
    assert len(list(cells.glob("*.csv"))) == len(wanted)
    assert (tmp_path / "out" / "table3.md").exists()


def test_states_named_twice_count_once():
    assert _numbers("200,100,200") == (200, 100)


def test_the_command_knows_every_table():
    assert list(get_args(Table)) == list(TABLES)


def test_the_command_writes_the_report_again(tmp_path, unchecked):
    write_results(tmp_path, {"theory": [Check("unbiased", "chain", 2.0, 1.0, 1.02, 0.01)]}, {"seed": "7"})
    for name in ("index.html", "theory.md"):
        (tmp_path / name).unlink()
    shown = CliRunner().invoke(app, ["reproduce", "all", "--page", str(tmp_path)])
    assert shown.exit_code == 0, shown.output
    assert "The results on one page" in shown.output
    assert "<dt>Seed</dt><dd>7</dd>" in (tmp_path / "index.html").read_text()
    assert (tmp_path / "theory.md").exists()
    shown = CliRunner().invoke(app, ["reproduce", "all", "--page", str(tmp_path), "--seed", "1"])
    assert shown.exit_code == 1
    assert "--seed has no effect with --page" in shown.output


def test_the_results_in_the_documentation_are_small():
    folder = Path(__file__).parents[2] / "docs" / "paper"
    if not folder.exists():
        pytest.skip("a source distribution has no results")
    sizes = {file: file.stat().st_size for file in folder.rglob("*") if file.is_file() and "cells" not in file.parts}
    assert sum(sizes.values()) < 5e6
    assert max(size for file, size in sizes.items() if file.suffix == ".png") < 100_000


@pytest.mark.parametrize("states", ["many", "2000,", "50"])
def test_bad_states(states, tmp_path, unchecked):
    shown = CliRunner().invoke(app, ["reproduce", "table2", "--states", states, "--output", str(tmp_path / "out")])
    assert shown.exit_code == 2
    assert "--states" in shown.output or "Invalid value" in shown.output
    assert not (tmp_path / "out").exists()
