"""What is reported of the training as it goes, to the screen and to TensorBoard, and how it is interrupted."""

import signal
import time

import pytest

pytest.importorskip("safetensors")

from rich.console import Console
from vae_cases import STEPS, flip, new_run, rows, same_run, step_of

from tailsum_studies.vae import session
from tailsum_studies.vae.checkpoint import LAST
from tailsum_studies.vae.train import Trainer

pytestmark = pytest.mark.usefixtures("quick")


class Crash(Exception):  # noqa: N818
    """What ends a process between two lines."""


def crash(*_):
    raise Crash


# What is watched on the way.


def events(folder):
    """All scalars that TensorBoard shows, by name: pairs of step and value."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = accumulator.EventAccumulator(str(folder / "events"), size_guidance={accumulator.SCALARS: 0})
    found.Reload()
    return {name: [(x.step, x.value) for x in found.Scalars(name)] for name in found.Tags()["scalars"]}


def later():
    """As a new process would come: TensorBoard reads files by their names, a second and a number, of which 10 precedes 9."""
    time.sleep(1.01 - time.time() % 1)


def check_events(folder):
    """Every step once, and what the curve says."""
    found = events(folder)
    parts = {f"train/{name}" for name in ("elbo", "words", "states", "entropy", "nll a word", "gradient norm")}
    schedules = {f"schedule/{name}" for name in ("rate", "weight", "temperature", "word_dropout")}
    assert set(found) == {*parts, "dev/nll a word", *schedules}
    for name, part in (("train/nll a word", "train"), ("dev/nll a word", "dev")):
        wanted = [(int(row["step"]), float(row["nll"])) for row in rows(folder, part)]
        assert [step for step, _ in found[name]] == [step for step, _ in wanted]
        assert [value for _, value in found[name]] == pytest.approx([value for _, value in wanted])
    elbo = [sum(float(row[name]) for name in ("words", "states", "entropy")) for row in rows(folder)]
    assert [value for _, value in found["train/elbo"]] == pytest.approx(elbo)


@pytest.fixture
def console(tmp_path):
    with (tmp_path / "screen").open("w") as file:
        yield Console(file=file, width=160)


@pytest.mark.filterwarnings("ignore")  # tensorboard's own
def test_curves_for_tensorboard(tmp_path, data, console):
    run = new_run(tmp_path / "run", data, final_temperature=0.5, last_word_dropout=0.0)
    assert session.train_run(tmp_path / "run", None, console, "cpu")
    check_events(tmp_path / "run")
    found = events(tmp_path / "run")
    for name in ("rate", "weight", "temperature", "word_dropout"):
        wanted = [getattr(run.settings, f"{name}_at")(step) for step in range(STEPS)]
        assert [value for _, value in found[f"schedule/{name}"]] == pytest.approx(wanted)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("damaged", [False, True])
def test_curves_for_tensorboard_after_a_crash(tmp_path, data, console, monkeypatch, damaged):
    new_run(tmp_path / "run", data)
    plain = Trainer.step
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", lambda trainer: plain(trainer) if trainer.done < 10 else crash())
        with pytest.raises(Crash):
            session.train_run(tmp_path / "run", None, console, "cpu")
    if damaged:
        flip(tmp_path / "run" / "checkpoints" / LAST, None)
    later()
    assert session.train_run(tmp_path / "run", None, console, "cpu")
    check_events(tmp_path / "run")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(tmp_path, data, console, monkeypatch, whole, number):
    """The step at hand is finished and saved; the handlers of before are back afterwards."""
    new_run(tmp_path / "run", data)
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    plain = Trainer._elbo

    def press(trainer, batch):
        if trainer.done == 4:
            signal.raise_signal(number)
        return plain(trainer, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_elbo", press)
        assert not session.train_run(tmp_path / "run", None, console, "cpu")
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before
    assert step_of(tmp_path / "run") == 5
    later()
    assert session.train_run(tmp_path / "run", None, console, "cpu")
    same_run(tmp_path / "run", whole)
    check_events(tmp_path / "run")


@pytest.mark.filterwarnings("ignore")
def test_interrupted_twice(tmp_path, data, console, monkeypatch, whole):
    """Who does not want to wait does not, and loses no more than what came after the last check."""
    new_run(tmp_path / "run", data)
    plain = Trainer._elbo

    def press(trainer, batch):
        for _ in range(2 if trainer.done == 6 else 0):
            signal.raise_signal(signal.SIGINT)
        return plain(trainer, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_elbo", press)
        with pytest.raises(KeyboardInterrupt):
            session.train_run(tmp_path / "run", None, console, "cpu")
    assert step_of(tmp_path / "run") == 4
    assert session.train_run(tmp_path / "run", None, console, "cpu")
    same_run(tmp_path / "run", whole)
