"""Table 5 and Figure 2: rows and their settings, runs that are interrupted, tables, pictures and the command."""

import dataclasses
import math
import random
from typing import get_args

import pandas as pd
import pytest
from rich.console import Console
from typer.testing import CliRunner

from tailsum_studies.cli.app import app
from tailsum_studies.paper.report.vae import differences, figure2, table5
from tailsum_studies.paper.report.vae_plots import frequencies
from tailsum_studies.paper.reproduce import TABLES, Settings, plan, reproduce
from tailsum_studies.paper.rows import StateUse, Trained, read_rows
from tailsum_studies.paper.vae.cells import TRAINED, Experiment, Options
from tailsum_studies.paper.vae.design import (
    EXPECTED,
    OURS,
    PROBED,
    PROBED_SKETCH,
    SIZES,
    SKETCHED,
    Plan,
    Scale,
    Size,
    figure2_ways,
    table5_ways,
)
from tailsum_studies.vae.run import Run
from tailsum_studies.vae.train import Trainer

TINY = Size(
    {
        "steps": 6,
        "check_every": 2,
        "batch": 8,
        "longest": 7,
        "size": 8,
        "state_size": 4,
        "hidden": 8,
        "check_sentences": 9,
    },
    samples=2,
    sentences=9,
    occurrences=30,
)
QUIET = Console(quiet=True)
ROWS = ["Full", "TopK", "RDP", OURS, SKETCHED, PROBED, PROBED_SKETCH]  # where all have the same dropout


@pytest.fixture
def tiny(monkeypatch, tmp_path, unchecked, one_thread):
    """A file of sentences, and a scale that takes seconds."""
    monkeypatch.setitem(SIZES, "small", TINY)
    rng = random.Random(0)
    path = tmp_path / "text.txt"
    words = ["the", "a", "dog", "cat", "sees", "eats", "has", "often", "never", "and"]
    path.write_text("\n".join(" ".join(rng.choices(words, k=rng.randint(2, 6))) + "." for _ in range(120)))
    return path


def wanted(tmp_path, data, table="table5", seeds=2, **options):
    return Settings(table, (20,), seeds, 0, tmp_path / "out", data, Options(device="cpu", **options))


def values(found):
    """What does not depend on the clock."""
    return [dataclasses.replace(row, seconds=0.0) for row in found]


def test_the_long_training_is_no_part_of_all():
    assert set(TRAINED) <= set(TABLES)
    assert not set(TRAINED) & set(TABLES["all"])


@pytest.mark.parametrize("scale", get_args(Scale))
@pytest.mark.parametrize("states", [100, 2000])
def test_rows_differ_in_how_they_sum_alone(scale, states):
    plan = Plan(scale, SIZES[scale])
    found = {way.name: plan.settings(way, states, 1) for way in table5_ways(states)}
    tenth = states // 10
    assert found["TopK"].sums().kept == found[SKETCHED].sums().kept == tenth
    assert (found["RDP"].kept, found["RDP"].drawn) == (2 * tenth, tenth)
    assert found["Full"].sums().kept == found[OURS].sums().kept == found[EXPECTED].sums().kept == states
    assert max(found[SKETCHED].landmarks, found[PROBED_SKETCH].landmarks) <= tenth
    assert found[PROBED].sums().probes == found[PROBED_SKETCH].sums().probes == 4
    assert dataclasses.replace(found[PROBED_SKETCH], probes=1) == found[SKETCHED]
    alike = {"estimator": "full", "kept": None, "drawn": None, "landmarks": 256, "dropout": 0.0, "probes": 1}
    assert len({dataclasses.replace(each, **alike) for each in found.values()}) == 1
    assert found[EXPECTED].dropout == found["Full"].dropout


def test_a_row_that_another_one_is_already_is_left_out():
    ways = table5_ways(100)
    assert EXPECTED in [way.name for way in Plan("full", SIZES["full"]).ways(ways, 100)]
    same = Plan("small", dataclasses.replace(SIZES["small"], dropout={})).ways(ways, 100)
    assert [way.name for way in same] == ROWS


def test_figure_2_splits_as_many_states():
    found = figure2_ways(2000)
    assert [(way.top, way.drawn or 0) for way in found] == [(200, 0), (180, 20), (100, 100), (20, 180)]


def test_table_5_from_training_to_the_page(tiny, tmp_path):
    page = reproduce(wanted(tmp_path, tiny), QUIET)
    rows = read_rows(tmp_path / "out" / "table5.csv.gz", Trained)
    assert [(row.row, row.seed) for row in rows] == [(name, seed) for seed in (0, 1) for name in ROWS]
    for row in rows:
        assert 0 < row.seconds < 60
        assert row.peak_bytes > 1000
        assert 1 <= row.used <= 20
        assert all(map(math.isfinite, (row.dev, row.test, row.kl, row.told)))
        assert row.test > 0
    said = page.read_text()
    assert "ours, sketched - ours, exact" in said
    assert "--scale small" in said
    assert "Seconds a step" in (tmp_path / "out" / "table5.md").read_text()


def test_a_run_that_is_interrupted_goes_on_to_the_same_row(tiny, tmp_path, monkeypatch):
    (first, *_) = plan(wanted(tmp_path, tiny, seeds=1))["table5"]
    whole = first.rows(tmp_path / "whole", lambda: None)
    folder, step, seen = tmp_path / "other", Trainer.step, []

    def stops(trainer):
        seen.append(trainer.done)
        if seen == [0, 1, 2, 3, 4]:
            raise KeyboardInterrupt
        return step(trainer)

    monkeypatch.setattr(Trainer, "step", stops)
    (again, *_) = plan(dataclasses.replace(wanted(tmp_path, tiny, seeds=1), output=folder))["table5"]
    with pytest.raises(KeyboardInterrupt):
        again.rows(folder / "cells", lambda: None)
    assert again.finished(folder / "cells") is None
    calls = []
    assert values(again.rows(folder / "cells", lambda: calls.append(1))) == values(whole)
    assert seen[5] == 4  # the last checkpoint
    assert len(calls) == again.steps


def test_another_version_s_run_is_refused(tiny, tmp_path, monkeypatch):
    (first, *_) = plan(wanted(tmp_path, tiny, seeds=1))["table5"]
    first.rows(tmp_path / "cells", lambda: None)
    monkeypatch.setitem(SIZES, "small", dataclasses.replace(TINY, common={**TINY.common, "rate": 0.5}))
    (other, *_) = plan(wanted(tmp_path, tiny, seeds=1))["table5"]
    with pytest.raises(ValueError, match="other settings"):
        other.rows(tmp_path / "elsewhere", lambda: None)


def test_figure_2_and_table_5_share_the_runs_of_topk(tmp_path):
    same = Experiment(Options(), (2000,), range(1), None, tmp_path)
    names = [{each.way.name: each.name for each in same.trainings(table)}["TopK"] for table in TRAINED]
    assert names[0] == names[1]


def test_figure_2_to_the_page(tiny, tmp_path):
    page = reproduce(wanted(tmp_path, tiny, "figure2"), QUIET)
    rows = read_rows(tmp_path / "out" / "figure2.csv.gz", StateUse)
    frame = pd.DataFrame(rows)
    assert list(frame.row.unique()) == ["TopK", "RDP, 9 + 1", "RDP, 5 + 5", "RDP, 1 + 9"]
    for _, each in frame.groupby(["row", "seed"]):
        assert each.share.sum() == pytest.approx(1)
        assert each.share.is_monotonic_decreasing
        assert len(each) == 20
    assert (tmp_path / "out" / "plots" / "figure2-small-20.png").stat().st_size > 1000
    assert "Seed 1" in page.read_text()


@pytest.mark.slow
def test_workers_find_what_one_process_finds(tiny, tmp_path):
    alone = wanted(tmp_path, tiny, "figure2", seeds=1)
    reproduce(alone, QUIET)
    together = dataclasses.replace(alone, output=tmp_path / "two", training=Options(device="cpu", workers=2))
    reproduce(together, QUIET)
    assert (tmp_path / "two" / "figure2.csv.gz").read_bytes() == (tmp_path / "out" / "figure2.csv.gz").read_bytes()


def a_row(row, seed, dev, test):
    fixed = {"scale": "small", "encoder": "lstm", "states": 2000, "estimator": "full", "kept": 2000, "drawn": 0}
    fixed |= {"dropout": 0.2, "steps": 10, "batch": 4, "sampling_error": 0.0, "kl": 1.0, "told": 1.0, "used": 1000}
    return Trained(**fixed, row=row, seed=seed, dev=dev, test=test, seconds=0.5, peak_bytes=2**20, device="cpu")


def test_differences_are_of_the_same_seeds():
    rows = [a_row(OURS, seed, 10.0 + seed, 20.0 + seed) for seed in (0, 1, 2)]
    rows += [a_row("TopK", seed, 11.0 + 2 * seed, 20.5 + seed) for seed in (1, 2, 3)]
    ((name, dev, test, seeds),) = differences(pd.DataFrame(rows))
    assert name == "ours, exact - TopK"
    assert dev == "-2.500 ± 0.500"  # -2 and -3
    assert test == "-0.500 ± 0.000"
    assert seeds == "2"


def test_tables_say_what_the_paper_prints():
    first, second = table5("table5", pd.DataFrame([a_row("TopK", 0, 1.0, 2.0), a_row(OURS, 0, 1.0, 1.0)]))
    assert first.frame.loc["TopK", "Paper: dev / test"] == "39.81 / 39.84"
    assert first.frame.loc[OURS, "Paper: dev / test"] == "-"
    assert second.frame.loc["ours, exact - TopK", "Test"] == "-1.000"


def test_every_seed_is_named_in_figure_2():
    shares = {0: [0.5, 0.5, 0.0], 1: [0.4, 0.3, 0.3]}
    rows = [
        StateUse("small", 3, row, 2, 0, seed, rank, share)
        for row in ("TopK", "RDP, 1 + 1")
        for seed, each in shares.items()
        for rank, share in enumerate(each, 1)
    ]
    frame = pd.DataFrame(rows)
    (table,) = figure2("figure2", frame)
    assert table.frame.loc["TopK"].tolist() == ["2 (1)", "3 (2)"]
    drawn = frequencies(frame, 3)
    assert [len(line.get_xdata()) for line in drawn.axes[0].lines if len(line.get_xdata()) > 1] == [2, 3]
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == ["seed 0", "seed 1", "last state in use"]


def test_the_command_says_what_has_no_effect(unchecked):
    run = CliRunner().invoke(app, ["reproduce", "table2", "--scale", "full"])
    assert run.exit_code == 1
    assert "--scale has no effect with reproduce table2" in run.output


def test_the_command_knows_its_own_states_and_seeds(monkeypatch, tmp_path, unchecked):
    found = []
    monkeypatch.setattr(
        "tailsum_studies.paper.reproduce.reproduce", lambda settings, _: found.append(settings) or tmp_path
    )
    for typed in ([], ["--states", "100", "--repeats", "2", "--scale", "full", "--workers", "4", "--device", "cpu"]):
        assert CliRunner().invoke(app, ["reproduce", "table5", *typed]).exit_code == 0
    assert [(each.states, each.repeats) for each in found] == [((100, 2000), 3), ((100,), 2)]
    assert found[1].training == Options("full", "lstm", "cpu", 4)


def test_a_pretrained_encoder_has_rows_of_its_own(tiny, tmp_path):
    pytest.importorskip("transformers")
    pytest.importorskip("harness.stored_models").store(tmp_path, "bert")
    settings = wanted(tmp_path, tiny, seeds=1, encoder=str(tmp_path / "bert"))
    (first, *_) = plan(settings)["table5"]
    (other, *_) = plan(wanted(tmp_path, tiny, seeds=1))["table5"]
    assert first.name != other.name
    (row,) = first.rows(tmp_path / "cells", lambda: None)
    assert row.encoder == "bert"
    (folder,) = (tmp_path / "out" / "runs").iterdir()
    assert not [name for name in Run.open(folder).best().tensors if "encoder" in name]  # frozen
