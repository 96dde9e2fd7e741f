"""The options of `tailsum train`, and what it says of bad ones."""

import json
import re
import shutil
from dataclasses import fields
from typing import get_args

import pytest

pytest.importorskip("safetensors")

import typer.main
from typer.testing import CliRunner
from vae_cases import SMALL, STEPS, go_on, new_run, options, output_of, output_of_train, rows, same_run, trained

from tailsum_studies.cli.app import app
from tailsum_studies.vae import session
from tailsum_studies.vae.settings import Method, Settings

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # tensorboard's own, which the process of a command does not show
    pytest.mark.usefixtures("quick"),
]


COMMANDS = typer.main.get_command(app).commands


def test_defaults():
    """Those of the options are those of the settings, and all settings but three are options."""
    given = {option.name: option.default for option in COMMANDS["train"].params}
    settings = {field.name: field.default for field in fields(Settings)}
    assert settings.keys() - given.keys() == {"check_sentences", "check_samples", "earlier"}
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


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_shown_whole_at_80_columns(name):
    """No word of it is cut or broken, nor taken for a tag, as <unk> would be."""
    said = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"}).output
    words = set(re.sub("[│╭╮╰╯─]", " ", said).split())
    for option in COMMANDS[name].params:
        assert set((option.help or "").replace("`", "").split()) <= words, option.name
        assert not option.metavar or option.metavar in words
    assert all(line.isascii() or line[-1] in "│╮╯" for line in said.splitlines() if line.strip())
    assert name != "train" or "<unk>." in words


@pytest.mark.parametrize("sums", [{"estimator": "rdp", "drawn": 2}, {"landmarks": 9, "probes": 3}])
def test_options_become_settings(tmp_path, data, sums):
    how = {
        **sums,
        "kept": 7,
        "hard": False,
        "temperature": 0.8,
        "final_temperature": 0.5,
        "entropy_weight": 0.9,
        "warm_up": 0.25,
        "last_word_dropout": 0.1,
        "spread": 0.2,
        "certainty": 4.0,
        "seed": 3,
        "clip": 2.0,
        "steps": 2,
        "encoder": "lstm",
    }
    code, said = output_of_train(tmp_path / "run", *options(data, **how))
    assert code == 0, said
    found = json.loads((tmp_path / "run" / "settings.json").read_text())
    assert Settings.from_json(found) == Settings(**{**SMALL, **how, "data": str(data)})


def test_a_second_run(tmp_path, whole, data):
    folder = shutil.copytree(whole, tmp_path / "run")
    code, said = output_of_train(folder, *options(data))
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
        (["--rate", "0.003"], "rate", "0.02"),  # the default, typed
    ],
)
def test_resume_with_other_options(whole, option, name, begun):
    code, said = output_of_train(whole, "--resume", *option)
    assert code == 1
    assert re.search(rf"was begun with {name} = .*{re.escape(begun)}, and goes on so: got ", said)


def test_resume_with_the_same_options(tmp_path, whole, data):
    folder = shutil.copytree(whole, tmp_path / "run")
    code, said = output_of_train(folder, "--resume", *options(data))
    assert code == 0, said
    same_run(folder, whole)


def test_resume_where_the_text_has_moved(tmp_path, data, whole):
    moved = shutil.copy(data, tmp_path / "moved.txt")
    new_run(tmp_path / "run", moved)
    go_on(tmp_path / "run", stop=lambda trainer: trainer.done == 5)
    again = moved.rename(tmp_path / "again.txt")
    code, said = output_of_train(tmp_path / "run", "--resume")
    assert code == 1
    assert "does not exist" in said
    code, said = output_of_train(tmp_path / "run", "--resume", "--data", again, "--device", "cpu")
    assert code == 0, said
    assert (tmp_path / "run" / "losses.csv").read_bytes() == (whole / "losses.csv").read_bytes()
    code, said = output_of_train(tmp_path / "run", "--resume", "--data", __file__)
    assert code == 1
    assert f"{__file__} must be the text" in said


def test_nothing_to_resume(tmp_path):
    code, said = output_of_train(tmp_path, "--resume")
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
    found, said = output_of_train(tmp_path / "run", *options(data), *option)
    assert found == code, said
    assert says in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("--estimator full --kept 10", "--kept has no effect with --estimator full"),
        ("--estimator full --landmarks 9", "--landmarks has no effect with --estimator full"),
        ("--estimator full --probes 2", "--probes has no effect with --estimator full"),
        ("--estimator full --drawn 2", "--drawn has no effect with --estimator full"),
        ("--estimator topk --drawn 2", "--drawn has no effect with --estimator topk"),
        ("--estimator topk --landmarks 9", "--landmarks has no effect with --estimator topk"),
        ("--estimator topk --probes 2", "--probes has no effect with --estimator topk"),
        ("--estimator rdp --landmarks 9", "--landmarks has no effect with --estimator rdp"),
        ("--estimator rdp --probes 2", "--probes has no effect with --estimator rdp"),
        ("--drawn 2", "--drawn has no effect with --estimator tailsum"),
        ("--landmarks 9", "--landmarks has no effect with --states 20, which are all summed over"),
        ("--kept 21", "--kept has no effect with --states 20, which are fewer"),
        ("--kept 10 --landmarks 21", "--landmarks has no effect with --states 20, which are fewer"),
        ("--kept 10 --probes 11", "--probes has no effect with --kept 10, which are fewer"),
        ("--no-frozen", "--no-frozen has no effect with --encoder lstm"),
        ("--encoder transformer --frozen", "--frozen has no effect with --encoder transformer"),
        ("--kl-weight 0 --warm-up 0.1", "--warm-up has no effect with --kl-weight 0"),
        ("--kl-weight 0 --entropy-weight 2", "--entropy-weight has no effect with --kl-weight 0"),
        ("--samples 3", "--samples has no effect with --no-report"),
    ],
)
def test_options_without_effect_are_refused(tmp_path, data, given, says):
    code, said = output_of_train(tmp_path / "run", *options(data), *given.split())
    assert code == 1, said
    assert f"Error: {says}" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("estimator", get_args(Method))
@pytest.mark.parametrize("name", ["kept", "drawn", "landmarks", "probes"])
def test_only_options_without_effect_are_said_to_have_none(tmp_path, data, estimator, name):
    """What is refused changes not a bit, and what is taken changes the loss."""
    how = {"steps": 2, "estimator": estimator, "kept": 6, "landmarks": 5}
    other = {**how, name: {"kept": 8, "drawn": 1, "landmarks": 2, "probes": 3}[name]}
    losses = [trained(tmp_path / str(i), data, **each).run.losses() for i, each in enumerate((how, other))]
    assert (losses[0] == losses[1]) == (name in Settings(**{**SMALL, **other}).without_effect())


def test_a_folder_that_cannot_be_made(tmp_path, data):
    (tmp_path / "file").write_text("")
    code, said = output_of_train(tmp_path / "file" / "run", *options(data))
    assert code == 1
    assert said.splitlines()[-1] == f"Error: Not a directory: {tmp_path / 'file' / 'run'}"


def test_settings_of_something_else(tmp_path):
    path = tmp_path / "settings.json"
    path.write_text('{"editor": 1}')
    code, said = output_of_train(tmp_path, "--resume")
    assert code == 1
    assert f"Error: {path} must hold a run's settings" in said


def test_a_path_is_shown_as_it_is(tmp_path, data):
    folder = tmp_path / "a [red]b"
    code, said = output_of("train", "--output", folder, *options(data, steps=1), "--samples", "1")
    assert code == 0, said
    assert str(folder / "index.html") in said


def test_too_few_sentences(tmp_path):
    for count, says in ((0, "0 in all"), (2, "2 in all")):
        path = tmp_path / "few.txt"
        path.write_text("one sentence\n" * count)
        code, said = output_of_train(tmp_path / "run", *options(path))
        assert code == 1
        assert str(path) in said
        assert says in said
    path.write_text("a sentence that is too long for this\n" * 100)
    code, said = output_of_train(tmp_path / "run", *options(path, longest=3))
    assert code == 1
    assert "must have sentences of up to 3 words" in said
    assert not (tmp_path / "run").exists()


def test_very_few_sentences(tmp_path):
    path = tmp_path / "few.txt"
    path.write_text("one sentence\n" * 3)
    code, said = output_of_train(tmp_path / "run", *options(path))
    assert code == 0, said
    assert len(rows(tmp_path / "run")) == STEPS
    code, said = output_of("evaluate", tmp_path / "run", "--samples", "1", "--no-baselines", "--device", "cpu")
    assert code == 0, said
    assert not re.search(r"nan|±", said)  # one sentence has no standard error
    assert json.loads((tmp_path / "run" / "evaluation.json").read_text(), parse_constant=pytest.fail)


def test_a_missing_package(tmp_path, monkeypatch):
    def missing(*_):
        raise ImportError("Pretrained encoders need more packages")

    monkeypatch.setattr(session, "train_run", missing)
    assert output_of_train(tmp_path / "run") == (1, "Error: Pretrained encoders need more packages\n")
