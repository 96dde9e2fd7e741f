"""The command line, as people run it."""

import subprocess
import sys

import pytest

pytest.importorskip("typer")


def run(*arguments, **options):
    command = [sys.executable, "-m", "tailsum.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, **options)


def test_help():
    shown = run("--help")
    assert shown.returncode == 0
    assert "demo" in shown.stdout
    options = run("demo", "--help").stdout
    assert all(name in options for name in ("--states", "--length", "--seed", "--output", "--repeats"))


def test_demo(tmp_path):
    shown = run("demo", "--states", "200", "--length", "4", "--repeats", "3", "--output", str(tmp_path / "out"))
    assert shown.returncode == 0, shown.stderr
    assert "200 states, 4 positions" in shown.stdout
    assert all(word in shown.stdout for word in ("exact", "TopK", "paper", "tailsum", "MiB"))
    picture = tmp_path / "out" / "errors.png"
    assert str(picture) in shown.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")


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
