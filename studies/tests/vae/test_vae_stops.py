"""Training that is stopped or fails before it has anything to keep: one line, and no folder that is half made."""

import re
import signal
import subprocess
import sys
import time

import pytest
import torch

pytest.importorskip("safetensors")

from vae_cases import SMALL, alone, options, output_of_train, rows, same_run, step_of

from tailsum_studies.vae import session
from tailsum_studies.vae.train import Trainer

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # tensorboard's own, which the process of a command does not show
    pytest.mark.usefixtures("quick"),
]


def before_step(monkeypatch, number, act):
    """Do something at the start of a step, counted from 1."""
    plain = Trainer.step

    def step(trainer):
        if trainer.done + 1 == number:
            act()
        return plain(trainer)

    monkeypatch.setattr(Trainer, "step", step)


def fail(error):
    def act():
        raise error

    return act


IN_SET_UP = """
import sys, time
sys.argv = ["tailsum", *sys.argv[1:]]  # as the command that pip installs
from tailsum_studies import cli
from tailsum_studies.vae import session

def read_corpus(_):
    print("Reading", flush=True)
    time.sleep(60)

session.read_corpus = read_corpus
cli.main()
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_while_it_reads_the_text(tmp_path, data, number, code):
    command = [sys.executable, "-c", IN_SET_UP, "train", "--output", str(tmp_path / "run"), *options(data)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, **pipes, env=alone()) as process:
        assert process.stdout.readline() == "Reading\n"
        process.send_signal(number)
        said, _ = process.communicate(timeout=50)
    assert (process.returncode, said) == (code, "Stopped.\n")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_stops_after_the_step(tmp_path, data, monkeypatch, capfd, number):
    before_step(monkeypatch, 2, lambda: signal.raise_signal(number))
    code, said = output_of_train(tmp_path / "run", *options(data))
    assert code == 130
    assert "Stopped and saved" in said
    assert step_of(tmp_path / "run") == 2
    assert "Stopping after this step" in capfd.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("step", [1, 3])
def test_two_signals_stop_at_once(tmp_path, data, monkeypatch, number, step):
    before_step(monkeypatch, step, lambda: [signal.raise_signal(number) for _ in range(2)])
    code, said = output_of_train(tmp_path / "run", *options(data))
    assert code == 130
    assert said.endswith("Stopped.\n")
    assert (tmp_path / "run").exists() == (step > 1)


@pytest.mark.parametrize("step", [1, 3])
def test_sigterm_does_not_wait_for_a_long_step(tmp_path, data, monkeypatch, step):
    def long() -> None:
        signal.raise_signal(signal.SIGTERM)
        for _ in range(500):
            time.sleep(0.01)
        raise AssertionError("not stopped")

    monkeypatch.setattr(session, "PATIENCE", 0.1)
    before_step(monkeypatch, step, long)
    code, said = output_of_train(tmp_path / "run", *options(data))
    assert code == 130
    assert said.endswith("Stopped.\n")
    assert (tmp_path / "run").exists() == (step > 1)


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory. Tried\nto allocate"), RuntimeError("a\nb"), MemoryError()]
)
def test_out_of_memory(tmp_path, data, monkeypatch, error):
    before_step(monkeypatch, 1, fail(error))
    code, said = output_of_train(tmp_path / "run", *options(data))
    assert code == 1
    assert re.search(r"Error: .+\. If memory is short: lower --batch, --states, .*\n$", said)
    assert "Traceback" not in said
    assert not (tmp_path / "run").exists()


def test_what_else_is_in_the_folder_stays(tmp_path, data, monkeypatch):
    (tmp_path / "notes.txt").write_text("mine")
    before_step(monkeypatch, 1, fail(RuntimeError("no")))
    assert output_of_train(tmp_path, *options(data))[0] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_out_of_memory_later(tmp_path, data, monkeypatch, whole):
    """What was saved stays, and the run can go on."""
    with monkeypatch.context() as patch:
        before_step(patch, 6, fail(MemoryError()))
        code, said = output_of_train(tmp_path / "run", *options(data))
    assert code == 1
    assert "Error: out of memory. If" in said
    assert step_of(tmp_path / "run") == SMALL["check_every"]
    assert output_of_train(tmp_path / "run", "--resume")[0] == 0
    assert len(rows(tmp_path / "run")) == SMALL["steps"]
    same_run(tmp_path / "run", whole)
