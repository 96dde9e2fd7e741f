"""`tailsum train`, as people run it, kill it, and go on; alone and under torchrun."""

import random
import re
import shutil
import signal
import time

import pytest

pytest.importorskip("safetensors")


from vae_cases import (
    LONG,
    SMALL,
    curve_state,
    cut,
    flip,
    go_on,
    new_run,
    options,
    output_of_train,
    replace,
    rows,
    run,
    same_run,
    started,
    step_of,
    trained,
    wait_for_step,
)

from tailsum_studies.vae.checkpoint import BEST, LAST, PREVIOUS
from tailsum_studies.vae.settings import Settings

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # tensorboard's own, which the process of a command does not show
    pytest.mark.usefixtures("quick"),
]


# Killed, or stopped.


def test_killed(tmp_path, data, long):
    rng, folder = random.Random(0), tmp_path / "run"
    begin = ["train", "--no-report", "--output", folder, *options(data, **LONG)]
    resume = ["train", "--no-report", "--output", folder, "--resume"]
    for kill in range(2):  # the process that began the run, and one that went on with it
        saved = step_of(folder) if kill else 0
        before = curve_state(folder)
        with started(*(resume if kill else begin)) as process:
            wait_for_step(process, folder, saved + rng.randint(4, 7), before)
            time.sleep(rng.uniform(0, 0.02))
            process.kill()
            assert process.wait(30) == -signal.SIGKILL
        assert saved < step_of(folder) < LONG["steps"]
    code, said = output_of_train(folder, "--resume")
    assert code == 0, said
    same_run(folder, long)


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_stopped(tmp_path, data, long, number):
    folder = tmp_path / "run"
    with started("train", "--no-report", "--output", folder, *options(data, **LONG)) as process:
        wait_for_step(process, folder, 4)
        process.send_signal(number)
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"tailsum train --output {folder} --resume" in said
    assert "Traceback" not in said
    stopped = len(rows(folder))
    assert 4 <= stopped < LONG["steps"]
    assert step_of(folder) == stopped
    _, done = go_on(folder)
    assert done
    same_run(folder, long)


def test_stopped_before_the_first_step(tmp_path, data, monkeypatch):
    """Nothing is there then, and the same command starts anew."""
    settings = Settings(**{**SMALL, "data": str(data)})

    def press(*_):  # no signal, which a process in the background may be deaf to
        raise KeyboardInterrupt

    monkeypatch.setattr("tailsum_studies.vae.session.Trainer", press)
    code, said = output_of_train(tmp_path / "run", *options(data))
    assert code == 130
    assert said.endswith("Stopped.\n")
    monkeypatch.undo()
    assert not (tmp_path / "run").exists()
    code, said = output_of_train(tmp_path / "run", *options(data))
    assert code == 0, said
    assert len(rows(tmp_path / "run")) == settings.steps


# Damage.


@pytest.mark.parametrize("damage", [cut, flip, replace])
def test_damaged(tmp_path, whole, long, damage):
    folder = shutil.copytree(whole, tmp_path / "run")
    places = folder / "checkpoints"
    damage(places / LAST, long / "checkpoints" / LAST)
    code, said = output_of_train(folder, "--resume")
    assert code == 0
    assert said.count("Warning: ") == 1
    assert re.search(rf"Warning: {re.escape(str(places / LAST))} ", said)
    same_run(folder, whole)

    for name in (LAST, PREVIOUS, BEST):
        damage(places / name, long / "checkpoints" / LAST)
    code, said = output_of_train(folder, "--resume")
    assert code == 1
    error = said[said.index("Error: ") :]
    assert all(str(places / name) in error for name in (LAST, PREVIOUS, BEST))


def test_damaged_but_for_the_best(tmp_path, data, whole):
    folder = tmp_path / "run"
    new_run(folder, data)
    go_on(folder, stop=lambda trainer: trainer.done == 10)
    places, best = folder / "checkpoints", step_of(folder, BEST)
    flip(places / LAST, None)
    (places / PREVIOUS).unlink()
    code, said = output_of_train(folder, "--resume")
    assert code == 0, said
    assert f"Warning: training goes on from {places / BEST}, which is of step {best}\n" in said
    same_run(folder, whole)


@pytest.mark.parametrize("name", ["settings.json", "words.json"])
@pytest.mark.parametrize("content", ["", "{", "[1]", '{"words": 3, "digest": "1"}'])
def test_damaged_json(tmp_path, whole, name, content):
    folder = shutil.copytree(whole, tmp_path / "run")
    (folder / name).write_text(content)
    code, said = output_of_train(folder, "--resume")
    assert code == 1
    assert name.removesuffix(".json") in said[said.index("Error: ") :]


# Several processes.


@pytest.mark.slow
def test_two_processes(tmp_path, data):
    """Two at once, and one that goes on where two have been: the same as one alone, to the bit."""
    how = {"shards": 2, "estimator": "rdp", "kept": 6}
    trained(tmp_path / "one", data, **how)
    shown = run("train", "--no-report", "--output", tmp_path / "two", *options(data, **how), torchrun=2)
    assert shown.returncode == 0, shown.stderr
    same_run(tmp_path / "two", tmp_path / "one")
    (tmp_path / "two" / "checkpoints" / LAST).unlink()
    assert step_of(tmp_path / "two", PREVIOUS) == 8
    go_on(tmp_path / "two")
    same_run(tmp_path / "two", tmp_path / "one")


@pytest.mark.slow
def test_two_processes_after_one(tmp_path, data):
    trained(tmp_path / "one", data, shards=2)
    new_run(tmp_path / "two", data, shards=2)
    go_on(tmp_path / "two", stop=lambda trainer: trainer.done == 5)
    shown = run("train", "--no-report", "--device", "cpu", "--output", tmp_path / "two", "--resume", torchrun=2)
    assert shown.returncode == 0, shown.stderr
    same_run(tmp_path / "two", tmp_path / "one")


@pytest.mark.slow
@pytest.mark.parametrize("how", [{"estimator": "full"}, {"kept": 6}, {"encoder": "transformer"}, {"hard": False}])
def test_two_processes_thoroughly(tmp_path, data, how):
    """More parts of a batch than processes, of unequal size: the same to the bit."""
    how = {**how, "shards": 4, "batch": 59, "steps": 20}
    trained(tmp_path / "one", data, **how)
    shown = run("train", "--no-report", "--output", tmp_path / "two", *options(data, **how), torchrun=2)
    assert shown.returncode == 0, shown.stderr
    same_run(tmp_path / "two", tmp_path / "one")


@pytest.mark.slow
def test_refused_by_two_processes(tmp_path, data):
    shown = run("train", "--no-report", "--output", tmp_path / "run", *options(data, shards=3), torchrun=2)
    assert shown.returncode == 1
    assert "shards must be a multiple of 2, the number of processes: got 3" in shown.stdout
