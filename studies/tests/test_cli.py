"""The command line, as people run it."""

import os
import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import tailsum
from tailsum_studies.cli import console
from tailsum_studies.cli.app import app

COMMANDS = [[], ["demo"], ["bench"], ["reproduce"], ["train"], ["evaluate"], ["explore"]]


def run(*arguments, **options):
    command = [sys.executable, "-m", "tailsum_studies.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, **options)


def plain_lines(said, line):
    """There is no terminal: no control characters, no bars, and a line that says what is being done."""
    assert re.search(rf"^{line}$", said, re.MULTILINE), said
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", said)
    assert "━━━━━━━━━━━━━━━━━━━━ " not in said


def test_help():
    shown = run("--help")
    assert shown.returncode == 0
    assert "demo" in shown.stdout
    options = run("demo", "--help").stdout
    assert all(name in options for name in ("--states", "--length", "--seed", "--output", "--repeats"))


def test_it_runs_as_a_module():
    shown = run("--version")
    assert (shown.returncode, shown.stdout, shown.stderr) == (0, f"{tailsum.__version__}\n", "")
    assert "Usage: tailsum demo [OPTIONS]" in run("demo", "--help").stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_80_columns(command, unchecked):
    said = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"}).output
    assert said.count("\n") > 10
    assert max(map(len, said.splitlines())) <= 80
    assert "…" not in said
    assert "..." not in said.replace("[ARGS]...", "")


@pytest.mark.parametrize("command", [command for command in COMMANDS if command and command != ["explore"]])
def test_options_stand_in_groups(command, unchecked):
    """None is left in the group without a name of its own but `--help`."""
    said = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"}).output
    groups = dict(re.findall(r"╭─ (.+?) ─+╮\n(.*?)╰", said, re.DOTALL))
    assert len(groups) >= 3
    assert re.findall(r"--[a-z-]+", groups["Options"]) == ["--help"]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_does_without_torch(command):
    code = f"""
import sys
from typer.testing import CliRunner
from tailsum_studies.cli.app import app
shown = CliRunner().invoke(app, {[*command, "--help"]})
print(shown.exit_code, "--help" in shown.output, "torch" in sys.modules)
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert shown.stdout == "0 True False\n"


@pytest.mark.parametrize("command", ["reproduce table5", "train", "evaluate run", "explore run"])
def test_missing_packages_are_named_at_once(command, monkeypatch, unchecked):
    monkeypatch.setattr(console, "find_spec", lambda name: None)
    shown = CliRunner().invoke(app, command.split())
    assert shown.exit_code == 1
    assert shown.output == "This needs one more package (safetensors): pip install 'tailsum-studies[vae]'\n"


@pytest.mark.parametrize(
    "given", ["table2 --data .", "table3 --data .", "table4 --data .", "theory --states 200", "theory --repeats 3"]
)
def test_options_of_other_tables_are_refused(given, tmp_path, unchecked):
    table, option, _ = given.split()
    shown = CliRunner().invoke(app, ["reproduce", *given.split(), "--output", str(tmp_path / "out")])
    assert shown.exit_code == 1
    assert shown.output == f"Error: {option} has no effect with reproduce {table}: leave one of them out\n"
    assert not (tmp_path / "out").exists()


def test_demo(tmp_path):
    shown = run("demo", "--states", "200", "--length", "4", "--repeats", "3", "--output", str(tmp_path / "out"))
    assert shown.returncode == 0, shown.stderr
    assert "200 states, 4 positions" in shown.stdout
    plain_lines(shown.stdout, r"peaked: tailsum 10%: \d+ of 32")
    assert all(word in shown.stdout for word in ("exact", "TopK", "paper", "tailsum", "MiB"))
    picture = tmp_path / "out" / "errors.png"
    assert str(picture) in shown.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_seed_decides(tmp_path):
    def errors(seed):
        arguments = ("--states", "100", "--length", "3", "--repeats", "2", "--output", str(tmp_path))
        lines = run("demo", *arguments, "--seed", str(seed)).stdout.splitlines()
        return [line.split("│")[4:6] for line in lines if "tailsum" in line and "%" in line]

    assert errors(1) == errors(1)
    assert errors(1) != errors(2)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell):
    shown = run(env={**os.environ, "_TAILSUM_COMPLETE": f"source_{shell}"})
    assert shown.returncode == 0
    assert f"_TAILSUM_COMPLETE=complete_{shell}" in shown.stdout
    assert re.search(r"\btailsum\b", shown.stdout)


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("tr", {"train"}),
        ("train --est", {"--estimator"}),
        ("train --estimator t", {"topk", "tailsum"}),
        ("reproduce table", {"table2", "table3", "table4", "table5"}),
    ],
)
def test_completion(typed, offered):
    """As the scripts ask for it; torch is not loaded for it."""
    asked = {
        "_TAILSUM_COMPLETE": "complete_bash",
        "COMP_WORDS": f"tailsum {typed}",
        "COMP_CWORD": str(typed.count(" ") + 1),
    }
    code = "import atexit, sys; from tailsum_studies.cli import main; atexit.register(lambda: print('torch' in sys.modules)); main()"
    shown = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, **asked},
    )
    *found, torch_loaded = shown.stdout.split()
    assert set(found) == offered
    assert torch_loaded == "False"


def test_bad_options():
    shown = run("demo", "--states", "1")
    assert shown.returncode == 2
    assert "--states" in shown.stderr
