"""The command line, as people run it."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

pytest.importorskip("typer")

from typer.testing import CliRunner

from tailsum.cli import console
from tailsum.cli.app import app


def run(*arguments, **options):
    command = [sys.executable, "-m", "tailsum.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, **options)


def test_help():
    shown = run("--help")
    assert shown.returncode == 0
    assert "demo" in shown.stdout
    options = run("demo", "--help").stdout
    assert all(name in options for name in ("--states", "--length", "--seed", "--output", "--repeats"))


@pytest.mark.parametrize("command", [[], ["demo"], ["bench"], ["reproduce"], ["train"], ["evaluate"], ["explore"]])
def test_help_does_without_torch(command):
    code = f"""
import sys
from typer.testing import CliRunner
from tailsum.cli.app import app
shown = CliRunner().invoke(app, {[*command, "--help"]})
print(shown.exit_code, "--help" in shown.output, "torch" in sys.modules)
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert shown.stdout == "0 True False\n"


@pytest.mark.parametrize(
    ("command", "package", "extras"),
    [
        (["demo"], "matplotlib", "cli,plot"),
        (["reproduce", "table2"], "pandas", "cli,plot,report"),
        (["train"], "safetensors", "cli,plot,report,vae"),
        (["explore", "run"], "jinja2", "cli,plot,report,vae"),
    ],
)
def test_missing_packages_are_named_at_once(command, package, extras, monkeypatch, unchecked):
    monkeypatch.setattr(console, "find_spec", lambda name: None if name == package else find_spec(name))
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 1
    assert shown.output == f"This needs more packages ({package}): pip install 'tailsum[{extras}]'\n"


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


def test_bad_options():
    shown = run("demo", "--states", "1")
    assert shown.returncode == 2
    assert "--states" in shown.stderr
