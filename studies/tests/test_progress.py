"""Bars on a terminal, plain lines elsewhere."""

import io
from pathlib import Path

import pytest
from rich.console import Console

import tailsum_studies
from tailsum_studies import progress
from tailsum_studies.progress import shown


def output_of(monkeypatch, terminal, seconds):
    """What is shown of four steps that take so many seconds each."""
    now, file = [0.0], io.StringIO()
    monkeypatch.setattr(progress, "monotonic", lambda: now[0])
    with shown(Console(file=file, force_terminal=terminal, width=80)) as tasks:
        tasks.add_task("", total=7)  # nothing to say yet
        task = tasks.add_task("[red]one", total=4)
        for _ in range(4):
            now[0] += seconds
            tasks.advance(task)
        tasks.update(task, description="two  ")
        tasks.remove_task(task)
    return file.getvalue()


@pytest.mark.parametrize(("seconds", "at"), [(0.0, ()), (30.0, (2, 4)), (60.0, (1, 2, 3, 4))])
def test_a_line_when_work_begins_and_every_minute(monkeypatch, seconds, at):
    lines = ["[red]one: 0 of 4", *(f"[red]one: {i} of 4" for i in at), "two: 4 of 4"]
    assert output_of(monkeypatch, terminal=False, seconds=seconds).splitlines() == lines


def test_a_bar_on_a_terminal(monkeypatch):
    said = output_of(monkeypatch, terminal=True, seconds=0.0)
    assert "\x1b[" in said
    assert " of " not in said


def test_no_command_draws_bars_of_its_own():
    source = Path(tailsum_studies.__file__).parent
    drawing = {
        file.relative_to(source).as_posix() for file in source.rglob("*.py") if "rich.progress" in file.read_text()
    }
    assert drawing == {"progress.py", "vae/progress.py"}  # both look at `is_terminal` first
