"""What training shows of its progress, on a terminal and elsewhere."""

import io
import re

import pytest
import torch

pytest.importorskip("safetensors")

from rich.console import Console
from vae_cases import SMALL, STEPS, options, output_of_train

from tailsum.nn import Elbo
from tailsum_studies.vae import session
from tailsum_studies.vae.settings import Settings
from tailsum_studies.vae.train import Step

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # tensorboard's own, which the process of a command does not show
    pytest.mark.usefixtures("quick"),
]


class Many:
    """A run of many steps, none of which is made."""

    settings = Settings(steps=600_000)


def watched(monkeypatch, tmp_path, terminal):
    """What is shown at 80 columns in the middle of many steps, with as large numbers as there may be."""
    many, file = Many(), io.StringIO()
    many.folder = tmp_path
    clock = iter(range(0, 10**9, 30))
    console = Console(file=file, width=80, force_terminal=terminal, get_time=lambda: float(next(clock)))
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    elbo = Elbo(*(torch.tensor(x, dtype=torch.double) for x in (-5000.0, -600.0, 10.0)))
    with session._watching(many, console, lambda: False) as watcher:
        for number in (100_000, 100_001, 100_002):
            watcher.stepped(Step(number, elbo, 100, 20_000_000, 1.0))
        watcher.checked(100_002, 10.123)
    return file.getvalue()


def test_the_bar_fits_in_80_columns(monkeypatch, tmp_path):
    shown = re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", watched(monkeypatch, tmp_path, terminal=True))
    line = re.split(r"[\r\n]+", shown.strip())[-1]
    assert "…" not in shown
    assert re.search(r"100002/600000 .*dev 10\.12\).* words/s \d+:\d\d:\d\d \S+$", line), line


def test_plain_lines_where_there_is_no_terminal(tmp_path, data):
    code, said = output_of_train(tmp_path / "run", *options(data))
    assert code == 0, said
    shown = re.findall(r"^step (\d+) of 12: a word \d+\.\d\d \(dev \d+\.\d\d\), [\d,]+ words/s$", said, re.MULTILINE)
    assert [int(step) for step in shown] == list(range(SMALL["check_every"], STEPS + 1, SMALL["check_every"]))


@pytest.mark.parametrize(("seconds", "lines"), [(0.0, 0), (10.0, 2), (30.0, 6), (90.0, 12)])
def test_a_plain_line_at_least_every_minute(tmp_path, data, monkeypatch, seconds, lines):
    now = 0.0

    def tick(_, plain=session.Trainer.step):
        nonlocal now
        now += seconds
        return plain(_)

    monkeypatch.setattr("tailsum_studies.vae.progress.monotonic", lambda: now)
    monkeypatch.setattr(session.Trainer, "step", tick)
    code, said = output_of_train(tmp_path / "run", *options(data, check_every=100))
    assert code == 0, said
    assert said.count("step ") - said.count("a step ") == lines + 1  # and a look at the dev part at the end
    assert "\x1b" not in said
