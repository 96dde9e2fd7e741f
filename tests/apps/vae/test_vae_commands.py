"""`tailsum train` and `evaluate`, as people run them, kill them, and go on; alone and under torchrun."""

import json
import random
import re
import shutil
import signal
import time
from dataclasses import fields
from pathlib import Path

import pytest

pytest.importorskip("safetensors")
pytest.importorskip("typer")

import typer.main
import vae_cases
from typer.testing import CliRunner
from vae_cases import (
    STEPS,
    checkpoint,
    go_on,
    new_run,
    options,
    rows,
    run,
    same_run,
    started,
    step_of,
    text,
    told,
    trained,
    wait_for_step,
)

from tailsum.apps.vae import session
from tailsum.apps.vae.checkpoint import BEST, LAST, PREVIOUS
from tailsum.apps.vae.settings import Settings
from tailsum.cli import app

COMMANDS = typer.main.get_command(app).commands
LONG = {"steps": 30, "check_every": 3, "batch": 24}

pytestmark = pytest.mark.filterwarnings("ignore")  # tensorboard's own, which the process of a command does not show


@pytest.fixture(autouse=True)
def _quick(unchecked, one_thread):
    """Checks of all types take most of the time: processes of their own do not have them either."""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return text(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory, data):
    """A short run that nothing has happened to."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    trained(folder, data)
    return folder


@pytest.fixture(scope="module")
def long(tmp_path_factory, data):
    """A run that is long enough to be caught in the middle."""
    folder = tmp_path_factory.mktemp("long") / "run"
    trained(folder, data, **LONG)
    return folder


def train(folder, *more):
    return told("train", "--no-report", "--device", "cpu", "--output", folder, *more)


# Killed, or stopped.


def test_killed(tmp_path, data, long):
    rng, folder = random.Random(0), tmp_path / "run"
    begin = ["train", "--no-report", "--output", folder, *options(data, **LONG)]
    resume = ["train", "--no-report", "--output", folder, "--resume"]
    for kill in range(3):
        saved = step_of(folder) if kill else 0
        before = vae_cases.curve_state(folder)
        with started(*(resume if kill else begin)) as process:
            wait_for_step(process, folder, saved + rng.randint(4, 7), before)
            time.sleep(rng.uniform(0, 0.02))
            process.kill()
            assert process.wait(30) == -signal.SIGKILL
        assert saved < step_of(folder) < LONG["steps"]
    code, said = train(folder, "--resume")
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
    settings = vae_cases.Settings(**{**vae_cases.SMALL, "data": str(data)})

    def press(*_):  # no signal, which a process in the background may be deaf to
        raise KeyboardInterrupt

    monkeypatch.setattr("tailsum.apps.vae.session.Trainer", press)
    code, _ = train(tmp_path / "run", *options(data))
    assert code == 130
    monkeypatch.undo()
    assert not (tmp_path / "run").exists()
    code, said = train(tmp_path / "run", *options(data))
    assert code == 0, said
    assert len(rows(tmp_path / "run")) == settings.steps


# Damage.


def cut(path, _):
    path.write_bytes(path.read_bytes()[:-20])


def flip(path, _):
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)


def replace(path, other):
    shutil.copy(other, path)


@pytest.mark.parametrize("damage", [cut, flip, replace])
def test_damaged(tmp_path, whole, long, damage):
    folder = shutil.copytree(whole, tmp_path / "run")
    places = folder / "checkpoints"
    damage(places / LAST, long / "checkpoints" / LAST)
    code, said = train(folder, "--resume")
    assert code == 0
    assert said.count("Warning: ") == 1
    assert re.search(rf"Warning: {re.escape(str(places / LAST))} ", said)
    same_run(folder, whole)

    for name in (LAST, PREVIOUS):
        damage(places / name, long / "checkpoints" / LAST)
    code, said = train(folder, "--resume")
    assert code == 1
    error = said[said.index("Error: ") :]
    assert all(str(places / name) in error for name in (LAST, PREVIOUS))


@pytest.mark.parametrize("name", ["settings.json", "words.json"])
@pytest.mark.parametrize("content", ["", "{", "[1]", '{"words": 3, "digest": "1"}'])
def test_damaged_json(tmp_path, whole, name, content):
    folder = shutil.copytree(whole, tmp_path / "run")
    (folder / name).write_text(content)
    code, said = train(folder, "--resume")
    assert code == 1
    assert name.removesuffix(".json") in said[said.index("Error: ") :]


# Several processes.


def test_two_processes(tmp_path, data):
    """Two at once, and one that goes on where two have been: the same as one alone, to the bit."""
    how = {"shards": 2, "estimator": "rdp", "kept": 6}
    trained(tmp_path / "one", data, **how)
    shown = run("train", "--no-report", "--output", tmp_path / "two", *options(data, **how), torchrun=2)
    assert shown.returncode == 0, shown.stderr
    close(tmp_path / "two", tmp_path / "one")
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


def close(found, wanted):
    """Losses agree, if not to the bit."""
    for one, other in zip(rows(found), rows(wanted), strict=True):
        assert {name: float(one[name]) for name in ("words", "states", "entropy", "nll")} == pytest.approx(
            {name: float(other[name]) for name in ("words", "states", "entropy", "nll")}, rel=1e-5
        )


@pytest.mark.slow
@pytest.mark.parametrize("how", [{"estimator": "full"}, {"kept": 6}, {"encoder": "transformer"}, {"hard": False}])
def test_two_processes_thoroughly(tmp_path, data, how):
    how = {**how, "shards": 4, "batch": 59, "steps": 20}
    trained(tmp_path / "one", data, **how)
    shown = run("train", "--no-report", "--output", tmp_path / "two", *options(data, **how), torchrun=2)
    assert shown.returncode == 0, shown.stderr
    close(tmp_path / "two", tmp_path / "one")


@pytest.mark.slow
def test_refused_by_two_processes(tmp_path, data):
    shown = run("train", "--no-report", "--output", tmp_path / "run", *options(data, shards=3), torchrun=2)
    assert shown.returncode == 1
    assert "shards must be a multiple of 2, the number of processes: got 3" in shown.stdout


# Options.


def test_defaults():
    """Those of the options are those of the settings, and all settings but two are options."""
    given = {option.name: option.default for option in COMMANDS["train"].params}
    settings = {field.name: field.default for field in fields(Settings)}
    assert settings.keys() - given.keys() == {"check_sentences", "check_samples"}
    for name in settings.keys() & given.keys():
        assert getattr(given[name], "value", given[name]) == settings[name], name


@pytest.mark.parametrize("name", ["train", "evaluate", "explore"])
@pytest.mark.parametrize("width", ["80", "160"])
def test_help(name, width):
    said = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": width, "TERMINAL_WIDTH": width}).output
    for option in COMMANDS[name].params:
        texts = [text for text in (*option.opts, *option.secondary_opts) if text.startswith("--")]
        assert all(re.search(rf"{text}\b", said) for text in texts), (option.name, said)
    assert name in CliRunner().invoke(app, ["--help"]).output


def test_options_become_settings(tmp_path, data):
    how = {
        "estimator": "rdp",
        "kept": 7,
        "drawn": 2,
        "landmarks": 9,
        "hard": False,
        "temperature": 0.8,
        "final_temperature": 0.5,
        "entropy_weight": 0.9,
        "warm_up": 0.25,
        "probes": 3,
        "last_word_dropout": 0.1,
        "spread": 0.2,
        "seed": 3,
        "clip": 2.0,
        "steps": 2,
        "encoder": "lstm",
    }
    code, said = train(tmp_path / "run", *options(data, **how))
    assert code == 0, said
    found = json.loads((tmp_path / "run" / "settings.json").read_text())
    assert Settings.from_json(found) == Settings(**{**vae_cases.SMALL, **how, "data": str(data)})


def test_a_second_run(tmp_path, whole, data):
    folder = shutil.copytree(whole, tmp_path / "run")
    code, said = train(folder, *options(data))
    assert code == 1
    assert "holds a run already" in said
    assert "--resume" in said
    same_run(folder, whole)


@pytest.mark.parametrize(
    ("option", "name", "begun"),
    [
        (["--states", "30"], "states", "20"),
        (["--soft"], "hard", "True"),
        (["--estimator", "rdp"], "estimator", "tailsum"),
        (["--steps", "1000"], "steps", str(STEPS)),  # the default, typed
    ],
)
def test_resume_with_other_options(whole, option, name, begun):
    code, said = train(whole, "--resume", *option)
    assert code == 1
    assert re.search(rf"was begun with {name} = .*{re.escape(begun)}, and goes on so: got ", said)


def test_resume_with_the_same_options(tmp_path, whole, data):
    folder = shutil.copytree(whole, tmp_path / "run")
    code, said = train(folder, "--resume", *options(data))
    assert code == 0, said
    same_run(folder, whole)


def test_resume_where_the_text_has_moved(tmp_path, data, whole):
    moved = shutil.copy(data, tmp_path / "moved.txt")
    new_run(tmp_path / "run", moved)
    go_on(tmp_path / "run", stop=lambda trainer: trainer.done == 5)
    again = moved.rename(tmp_path / "again.txt")
    code, said = train(tmp_path / "run", "--resume")
    assert code == 1
    assert "does not exist" in said
    code, said = train(tmp_path / "run", "--resume", "--data", again, "--device", "cpu")
    assert code == 0, said
    assert (tmp_path / "run" / "losses.csv").read_bytes() == (whole / "losses.csv").read_bytes()
    code, said = train(tmp_path / "run", "--resume", "--data", __file__)
    assert code == 1
    assert f"{__file__} must be the text" in said


def test_nothing_to_resume(tmp_path):
    code, said = train(tmp_path, "--resume")
    assert code == 1
    assert f"Error: {tmp_path} must be the folder of a run" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("option", "code", "says"),
    [
        (["--data", "no-such-file"], 2, "no-such-file"),
        (["--estimator", "other"], 2, "tailsum"),
        (["--states", "1"], 2, "--states"),
        (["--kept", "1"], 2, "--kept"),
        (["--rate", "0"], 1, "rate must be positive and finite: got 0"),
        (["--rate", "nan"], 1, "rate must be positive and finite: got nan"),
        (["--dropout", "1"], 1, "dropout must be at least 0 and less than 1: got 1"),
        (["--warm-up", "2"], 1, "warm_up must be a share"),
        (["--shards", "100"], 1, "shards must be at most 8"),
        (["--size", "7"], 1, "size must be even"),
        (["--encoder", "transformer", "--size", "6"], 1, "size"),
        (["--device", "nonsense"], 1, "nonsense"),
        (["--seed", str(1 << 63)], 1, "seed must lie between"),
    ],
)
def test_bad_options(tmp_path, data, option, code, says):
    """They are named, and leave no folder behind that would stand in the way of the next attempt."""
    found, said = train(tmp_path / "run", *options(data), *option)
    assert found == code, said
    assert says in said
    assert not (tmp_path / "run").exists()


def test_a_folder_that_cannot_be_made(tmp_path, data):
    (tmp_path / "file").write_text("")
    code, said = train(tmp_path / "file" / "run", *options(data))
    assert code == 1
    assert said.strip() == f"Error: Not a directory: {tmp_path / 'file' / 'run'}"


def test_settings_of_something_else(tmp_path):
    path = tmp_path / "settings.json"
    path.write_text('{"editor": 1}')
    code, said = train(tmp_path, "--resume")
    assert code == 1
    assert f"Error: {path} must hold a run's settings" in said


def test_a_path_is_shown_as_it_is(tmp_path, data):
    folder = tmp_path / "a [red]b"
    code, said = told("train", "--output", folder, *options(data, steps=1), "--samples", "1")
    assert code == 0, said
    assert str(folder / "index.html") in said


def test_too_few_sentences(tmp_path):
    for count, says in ((0, "0 in all"), (2, "2 in all")):
        path = tmp_path / "few.txt"
        path.write_text("one sentence\n" * count)
        code, said = train(tmp_path / "run", *options(path))
        assert code == 1
        assert str(path) in said
        assert says in said
    path.write_text("a sentence that is too long for this\n" * 100)
    code, said = train(tmp_path / "run", *options(path, longest=3))
    assert code == 1
    assert "must have sentences of up to 3 words" in said
    assert not (tmp_path / "run").exists()


def test_very_few_sentences(tmp_path):
    path = tmp_path / "few.txt"
    path.write_text("one sentence\n" * 3)
    code, said = train(tmp_path / "run", *options(path))
    assert code == 0, said
    assert len(rows(tmp_path / "run")) == STEPS
    code, said = told("evaluate", tmp_path / "run", "--samples", "1", "--no-baselines", "--device", "cpu")
    assert code == 0, said
    assert not re.search(r"nan|±", said)  # one sentence has no standard error
    assert json.loads((tmp_path / "run" / "evaluation.json").read_text(), parse_constant=pytest.fail)


def test_a_missing_package(tmp_path, monkeypatch):
    def missing(*_):
        raise ImportError("Pretrained encoders need more packages")

    monkeypatch.setattr(session, "train_run", missing)
    assert train(tmp_path / "run") == (1, "Error: Pretrained encoders need more packages\n")


# Evaluation.


def test_evaluate(tmp_path, whole):
    folder = shutil.copytree(whole, tmp_path / "run")
    code, said = told("evaluate", folder, "--samples", "7", "--device", "cpu")
    assert code == 0, said
    found = json.loads((folder / "evaluation.json").read_text())
    assert set(found) == {"step", "estimator", "states", "dev", "test", "active", "baselines"}
    assert found["step"] == checkpoint(folder, BEST).facts["step"]
    assert (found["estimator"], found["states"]) == ("full", 20)
    assert 1 <= found["active"] <= 20
    scores = {"per_word", "per_sentence", "standard_error"}
    parts = {"words", "states", "entropy", "sentences", "samples", "sampling_error"}
    for part in ("dev", "test"):
        assert set(found[part]) == scores | parts
        assert (found[part]["sentences"], found[part]["samples"]) == (30, 7)
        bound = sum(found[part][name] for name in ("words", "states", "entropy"))
        assert found[part]["per_sentence"] < -bound  # the mean of a logarithm is less than that of a mean
    assert set(found["baselines"]) == {"unigram", "bigram", "lstm"}
    for name, each in found["baselines"].items():
        assert set(each) == {"dev", "test"}
        assert set(each["test"]) == scores
        assert re.search(rf"{name} .* {each['test']['per_word']:.3f} ", said)
    assert re.search(rf"structured VAE .* {found['test']['per_word']:.3f} ", said)
    assert f"{found['active']} of 20 states" in said


def test_evaluate_some(tmp_path, whole):
    """Fewer sentences, no baselines; and the text may have moved."""
    folder = shutil.copytree(whole, tmp_path / "run")
    moved = shutil.copy(json.loads((folder / "settings.json").read_text())["data"], tmp_path / "moved.txt")
    some = ("--sentences", "10", "--samples", "3", "--no-baselines", "--device", "cpu", "--data", moved)
    assert told("evaluate", folder, *some)[0] == 0
    found = json.loads((folder / "evaluation.json").read_text())
    assert "baselines" not in found
    assert (found["dev"]["sentences"], found["test"]["samples"]) == (10, 3)
    assert told("evaluate", folder, *some)[0] == 0
    assert json.loads((folder / "evaluation.json").read_text()) == found
    moved.write_text(moved.read_text() + "\nmore")
    code, said = told("evaluate", folder, *some)
    assert code == 1
    assert f"{moved} must be the text" in said


def test_nothing_to_evaluate(tmp_path, data):
    for name in ("evaluate", "explore"):
        code, said = told(name, tmp_path)
        assert code == 1
        assert f"Error: {tmp_path} must be the folder of a run" in said
        code, said = told(name, tmp_path / "none")
        assert code == 1
        assert "none must be the folder of a run" in said
    new_run(tmp_path / "run", data)
    code, said = told("evaluate", tmp_path / "run", "--device", "cpu")
    assert code == 1
    assert f"{BEST} must be a checkpoint: it does not exist. Train first" in said
    assert not (tmp_path / "run" / "evaluation.json").exists()


def test_a_damaged_best_checkpoint(tmp_path, whole, long):
    folder = shutil.copytree(whole, tmp_path / "run")
    place = folder / "checkpoints" / BEST
    for damage in (cut, flip, replace):
        damage(place, long / "checkpoints" / BEST)
        code, said = told("evaluate", folder, "--device", "cpu", "--samples", "1", "--no-baselines")
        assert code == 0
        assert f"Warning: {place} " in said
        assert "checkpoint must be one of this run" in said or damage is not replace
        assert json.loads((folder / "evaluation.json").read_text())["step"] == STEPS
        shutil.copy(whole / "checkpoints" / BEST, place)


@pytest.mark.slow
def test_everything(tmp_path, data):
    """Train, evaluate and explore, at one command."""
    shown = run("train", "--output", tmp_path / "run", "--samples", "5", *options(data))
    assert shown.returncode == 0, shown.stderr
    assert all(name in shown.stdout for name in ("structured VAE", "unigram", "bigram", "lstm", "one page"))
    page = Path(re.search(r"one page: (.*)", shown.stdout)[1])
    assert page.is_file()
    assert (tmp_path / "run" / "evaluation.json").is_file()
    again = run("train", "--output", tmp_path / "run", "--resume", "--samples", "5")
    assert again.returncode == 0
