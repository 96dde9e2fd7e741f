"""Training that is stopped, crashes, or finds its files damaged comes to the same bits as training in one go."""

import itertools
import math
import re
import shutil
import signal
import time

import pytest
import torch

pytest.importorskip("safetensors")
pytest.importorskip("typer")

from rich.console import Console
from vae_cases import (
    CPU,
    SMALL,
    STEPS,
    checkpoint,
    fresh,
    go_on,
    new_run,
    rows,
    same_run,
    same_tensors,
    step_of,
    text,
    trained,
)

from tailsum.apps.vae import session
from tailsum.apps.vae.checkpoint import BEST, LAST, PREVIOUS, read
from tailsum.apps.vae.data import Corpus
from tailsum.apps.vae.processes import Processes
from tailsum.apps.vae.run import OWN, Run
from tailsum.apps.vae.settings import Settings
from tailsum.apps.vae.train import NotFiniteError, Trainer, Watcher, train
from tailsum.nn.structured_vae import Elbo, StructuredVAE

HOW = {
    "full": {"estimator": "full"},
    "full, soft": {"estimator": "full", "hard": False, "final_temperature": 0.3},
    "topk": {"estimator": "topk", "kept": 5},
    "rdp": {"estimator": "rdp", "kept": 6},
    "rdp, soft": {"estimator": "rdp", "kept": 6, "hard": False},
    "tailsum, whole": {"estimator": "tailsum"},
    "tailsum": {"estimator": "tailsum", "kept": 6, "landmarks": 5},
    "tailsum, soft": {"estimator": "tailsum", "kept": 6, "hard": False, "temperature": 0.7},
    "transformer": {"estimator": "tailsum", "kept": 6, "encoder": "transformer"},
    "shards": {"estimator": "full", "shards": 3, "batch": 119},  # every third batch has two sentences
}


@pytest.fixture(autouse=True)
def _quick(unchecked, one_thread):
    """Checks of all types take most of the time: the runs that all others are compared with have them, these not."""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return text(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory, data):
    """A run that nothing has happened to."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    trained(folder, data)
    return folder


class Crash(Exception):  # noqa: N818
    """What ends a process between two lines."""


def crash(*_):
    raise Crash


# Stops.


@pytest.mark.parametrize("how", HOW)
def test_stopped_after_every_step(tmp_path, data, how):
    settings = {**HOW[how], "steps": 7, "check_every": 3}
    once = trained(tmp_path / "once", data, **settings)
    new_run(tmp_path / "often", data, **settings)
    for step in range(1, 8):
        often, done = go_on(tmp_path / "often", stop=lambda _: True)
        assert often.done == step == step_of(tmp_path / "often")
        assert not done  # also when it was the last step: who asks for a stop gets one
    assert go_on(tmp_path / "often")[1]
    same_run(tmp_path / "often", tmp_path / "once")
    same_tensors(often.checkpoint().tensors, once.checkpoint().tensors)
    assert len(rows(tmp_path / "once")) == 7
    assert [int(row["step"]) for row in rows(tmp_path / "once", "dev")] == [3, 6, 7]


def test_random_numbers_matter_and_the_seed_decides(tmp_path, data, whole):
    """Otherwise a resumed run that forgot its random state would agree all the same."""
    other = trained(tmp_path / "other", data, seed=1)
    calm = trained(tmp_path / "calm", data, dropout=0.0, word_dropout=0.0)
    wanted = checkpoint(whole).tensors
    for trainer in (other, calm):
        assert not torch.equal(
            trainer.checkpoint().tensors["model.decoder.words.weight"], wanted["model.decoder.words.weight"]
        )
    trained(tmp_path / "again", data)
    same_run(tmp_path / "again", whole)


def test_stopped_at_checks(tmp_path, data, whole):
    new_run(tmp_path / "run", data)
    for step in (4, 8, 12):
        trainer, done = go_on(tmp_path / "run", stop=lambda trainer: trainer.done % 4 == 0)
        assert (trainer.done, done) == (step, False)
    same_run(tmp_path / "run", whole)


def test_finished(tmp_path, data, whole):
    shutil.copytree(whole, tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*.safetensors")}
    trainer, done = go_on(tmp_path / "run")
    assert done
    assert trainer.done == STEPS
    assert before == {path: path.read_bytes() for path in (tmp_path / "run").rglob("*.safetensors")}
    same_run(tmp_path / "run", whole)


def test_the_callers_random_state_is_left_alone(tmp_path, data):
    new_run(tmp_path / "run", data, estimator="rdp", kept=6)
    trainer = fresh(tmp_path / "run")
    before = torch.get_rng_state()
    train(trainer, Watcher())
    assert torch.equal(torch.get_rng_state(), before)


def test_schedules_reach_the_model(tmp_path, data, monkeypatch):
    given, plain = list[tuple[float, bool, float]](), StructuredVAE.elbo

    def heard(self, words, lengths, estimator, *how):
        given.append(how)
        return plain(self, words, lengths, estimator, *how)

    monkeypatch.setattr(StructuredVAE, "elbo", heard)
    how = {"temperature": 0.9, "final_temperature": 0.5, "word_dropout": 1.0, "last_word_dropout": 0.1}
    settings = trained(tmp_path / "run", data, **how).settings
    wanted = [(settings.temperature_at(i), settings.hard, settings.word_dropout_at(i)) for i in range(STEPS)]
    assert given == wanted
    assert len(set(wanted)) == STEPS


def test_two_processes_do_not_train_one_run(tmp_path, data, whole):
    run = new_run(tmp_path / "run", data)
    refused = []

    def begin_too(_):
        with pytest.raises(ValueError, match="in training by another process"):
            train(fresh(tmp_path / "run"), Watcher())
        refused.append(True)

    go_on(tmp_path / "run", stepped=begin_too)
    assert len(refused) == STEPS
    same_run(tmp_path / "run", whole)
    with run.alone(), pytest.raises(ValueError, match="another --output"):
        go_on(tmp_path / "run")


def test_two_processes_do_not_begin_one_run(tmp_path, data):
    """Both have found an empty folder; the one that comes second leaves everything as it is."""
    corpus = Corpus.read(data, 60, longest=7)
    runs = [
        Run.new(tmp_path / "run", Settings(**{**SMALL, "data": str(data), "seed": seed}), corpus) for seed in (1, 2, 3)
    ]
    with runs[0].alone(), pytest.raises(ValueError, match="in training by another process"):
        runs[1].write()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["lock"]
    runs[2].write()
    with pytest.raises(ValueError, match="holds a run already"):
        runs[1].write()
    assert Run.open(tmp_path / "run").settings.seed == 3


@pytest.mark.parametrize("name", OWN)
def test_files_that_are_no_runs(tmp_path, data, name):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "notes.txt").write_text("in nobody's way")
    (folder / name).write_text("someone's")
    with pytest.raises(ValueError, match=f"holds {name} already, which is no run's: choose another --output"):
        new_run(folder, data)
    assert sorted(path.name for path in folder.iterdir()) == sorted([name, "notes.txt"])
    (folder / name).unlink()
    new_run(folder, data)


# Crashes: nothing is saved on the way out.


@pytest.mark.parametrize("every", [1, 4])
def test_crashes_after_steps(tmp_path, data, whole, every):
    """A process that crashes after each `every` steps it makes: those that the checks are too far apart for go round."""
    new_run(tmp_path / "run", data)
    for number in itertools.count():
        fatal = number + every  # later each time, so that it ends
        try:
            go_on(tmp_path / "run", stepped=lambda step, fatal=fatal: step.number == fatal and crash())
        except Crash:
            assert len(rows(tmp_path / "run")) == fatal
        else:
            break
    same_run(tmp_path / "run", whole)


@pytest.mark.parametrize("place", ["checked", "save_best", "after save_best", "save", "after save"])
def test_crashes_at_a_check(tmp_path, data, whole, monkeypatch, place):
    new_run(tmp_path / "run", data)
    trainer = fresh(tmp_path / "run")
    keeper, name = trainer.run.keeper, place.removeprefix("after ")

    saved = getattr(keeper, name, None)

    def strike(given):
        if given.facts["step"] == 8:
            if place.startswith("after"):
                saved(given)
            crash()
        saved(given)

    if name != "checked":
        monkeypatch.setattr(keeper, name, strike)
    with pytest.raises(Crash):
        train(trainer, Watcher(checked=lambda step, _: place == "checked" and step == 8 and crash()))
    assert step_of(tmp_path / "run") == (8 if place == "after save" else 4)
    go_on(tmp_path / "run")
    same_run(tmp_path / "run", whole)


@pytest.mark.parametrize(
    ("damaged", "lost"),
    [
        (lambda rows: rows[1:], 0),
        (lambda rows: [*rows, b"\0\0\0\0\n"], 0),
        (lambda rows: [*rows[:3], b"61\r\n", *rows[4:]], 1),
        (lambda rows: [*rows[:3], rows[3].replace(b",", b",1,2,"), *rows[4:]], 1),
        (lambda rows: [*rows, b"\xff\xfe,\x80\n"], 0),
    ],
)
def test_a_damaged_curve(tmp_path, data, whole, damaged, lost):
    """It is only a record: training goes on, and what can still be read stays."""
    new_run(tmp_path / "run", data)
    go_on(tmp_path / "run", stop=lambda trainer: trainer.done == 6)
    file = tmp_path / "run" / "losses.csv"
    before = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(damaged(before)))
    assert len(Run.open(tmp_path / "run").losses()) == len(before) - 1 - lost
    go_on(tmp_path / "run")
    wanted = (whole / "losses.csv").read_bytes().splitlines()
    kept = file.read_bytes().splitlines()
    assert len(kept) == len(wanted) - lost
    assert set(kept) <= set(wanted)


def test_a_row_that_was_cut_off(tmp_path, data, whole):
    new_run(tmp_path / "run", data)
    with pytest.raises(Crash):
        go_on(tmp_path / "run", stepped=lambda step: step.number == 6 and crash())
    curve = tmp_path / "run" / "losses.csv"
    curve.write_bytes(curve.read_bytes()[:-50])
    go_on(tmp_path / "run")
    same_run(tmp_path / "run", whole)


# Damage.


def flip(path, _):
    content = bytearray(path.read_bytes())
    for place in range(len(content) // 2, len(content), 97):
        content[place] ^= 1
    path.write_bytes(content)


def flip_one_bit(path, _):
    content = bytearray(path.read_bytes())
    content[-5] ^= 16
    path.write_bytes(content)


def truncate(path, _):
    path.write_bytes(path.read_bytes()[:-100])


def empty(path, _):
    path.write_bytes(b"")


def replace(path, other):
    shutil.copy(other / "checkpoints" / LAST, path)


@pytest.fixture(scope="module")
def other(tmp_path_factory, data):
    """Another run, of the same sizes."""
    folder = tmp_path_factory.mktemp("other") / "run"
    trained(folder, data, seed=5)
    return folder


@pytest.mark.parametrize("damage", [flip, flip_one_bit, truncate, empty, replace])
def test_a_damaged_last_checkpoint(tmp_path, data, whole, other, damage):
    new_run(tmp_path / "run", data)
    go_on(tmp_path / "run", stop=lambda trainer: trainer.done == 10)
    damage(tmp_path / "run" / "checkpoints" / LAST, other)
    complaints, steps = [], []
    _, done = go_on(tmp_path / "run", complain=complaints.append, stepped=lambda step: steps.append(step.number))
    assert done
    assert len(complaints) == 1
    assert str(tmp_path / "run" / "checkpoints" / LAST) in complaints[0]
    assert steps[0] == 9  # from the check at 8, not anew
    same_run(tmp_path / "run", whole)
    assert step_of(tmp_path / "run", PREVIOUS) == 8  # what was damaged is not kept


@pytest.mark.parametrize("damage", [flip, truncate, replace])
def test_both_checkpoints_damaged(tmp_path, data, other, damage):
    new_run(tmp_path / "run", data)
    go_on(tmp_path / "run", stop=lambda trainer: trainer.done == 10)
    before = (tmp_path / "run" / "losses.csv").read_bytes()
    for name in (LAST, PREVIOUS):
        damage(tmp_path / "run" / "checkpoints" / name, other)
    with pytest.raises(ValueError, match=LAST) as caught:
        go_on(tmp_path / "run", complain=lambda _: None)
    assert PREVIOUS in str(caught.value)
    assert (tmp_path / "run" / "losses.csv").read_bytes() == before


def test_other_text(tmp_path, data):
    moved = shutil.copy(data, tmp_path / "text.txt")
    new_run(tmp_path / "run", tmp_path / "text.txt")
    go_on(tmp_path / "run", stop=lambda trainer: trainer.done == 2)
    moved.write_text(moved.read_text() + "\none more sentence")
    with pytest.raises(ValueError, match=r"text\.txt must be the text that .* was trained on"):
        fresh(tmp_path / "run")


# Losses that are not numbers.


def spoil(monkeypatch, done, how):
    """Make the loss, or only its gradient, not a number at the step after `done` steps."""
    plain = Trainer._elbo

    def spoiled(trainer, batch):
        elbo = plain(trainer, batch)
        if trainer.done != done:
            return elbo
        if how == "gradient":
            elbo.words.register_hook(lambda gradient: gradient * math.inf)
            return elbo
        return Elbo(elbo.words * (math.nan if how == "nan" else math.inf), elbo.states, elbo.entropy)

    monkeypatch.setattr(Trainer, "_elbo", spoiled)


@pytest.mark.parametrize("how", ["nan", "infinite", "gradient"])
def test_not_finite(tmp_path, data, whole, monkeypatch, how):
    new_run(tmp_path / "run", data)
    with monkeypatch.context() as patch:
        spoil(patch, 5, how)
        with pytest.raises(NotFiniteError) as caught:
            go_on(tmp_path / "run")
    failure = read(tmp_path / "run" / "failure.safetensors")
    named = int(re.search(r"step (\d+)", str(caught.value))[1])
    assert named == failure.facts["step"]
    assert str(tmp_path / "run" / "failure.safetensors") in str(caught.value)

    trainer = fresh(tmp_path / "run")
    sentences = [trainer.corpus.train[i] for i in trainer.order.at(5)]
    assert failure.facts["sentences"] == [" ".join(trainer.corpus.sentence(each)) for each in sentences]
    assert failure.tensors["lengths"].tolist() == [len(each) for each in sentences]
    for row, each in zip(failure.tensors["words"].tolist(), sentences, strict=True):
        assert row == each + [0] * (len(row) - len(each))
    trainer, _ = go_on(tmp_path / "run", stop=lambda trainer: trainer.done == 5)
    weights = {name: value for name, value in failure.tensors.items() if name not in {"words", "lengths"}}
    same_tensors(weights, trainer.checkpoint().tensors)  # as they were before the step

    assert step_of(tmp_path / "run", PREVIOUS) == 4
    go_on(tmp_path / "run")
    same_run(tmp_path / "run", whole)


def test_not_finite_is_named_as_in_the_curve(tmp_path, data, monkeypatch):
    new_run(tmp_path / "run", data)
    spoil(monkeypatch, 5, "nan")
    with pytest.raises(NotFiniteError) as caught:
        go_on(tmp_path / "run")
    assert len(rows(tmp_path / "run")) == 5
    assert "step 6 " in str(caught.value)


def test_weights_that_are_not_finite(tmp_path, data):
    """An absurd rate: the next step would find out, in the middle of its work."""
    new_run(tmp_path / "run", data, rate=1e30)
    with pytest.raises(NotFiniteError, match=r"the size of all weights at step 1 is not finite.*another --output"):
        go_on(tmp_path / "run")
    assert read(tmp_path / "run" / "failure.safetensors").facts["sentences"]


# Several processes.


@pytest.mark.parametrize(("shards", "count"), [(1, 2), (3, 2), (2, 4)])
def test_shards_and_processes(tmp_path, data, shards, count):
    run = new_run(tmp_path / "run", data, shards=shards)
    with pytest.raises(ValueError, match=f"shards must be a multiple of {count}.* got {shards}"):
        Trainer(run, run.corpus(), CPU, Processes(0, count))


@pytest.mark.parametrize("shards", [3, 5])
def test_processes_share_the_work(tmp_path, data, shards, monkeypatch):
    """What each of several processes adds up to what one does alone: no sentence is left out or done twice."""
    run = new_run(tmp_path / "run", data, shards=shards, batch=7)
    once = Trainer(run, run.corpus(), CPU, Processes())
    monkeypatch.setattr(Processes, "add_up", lambda *_: None)
    several = [Trainer(run, run.corpus(), CPU, Processes(rank, shards)) for rank in range(shards)]
    short = next(step for step in range(100) if len(once.order.at(step)) < shards)
    for trainer in (once, *several):
        trainer.done = short  # a batch so small that some have nothing to do
        trainer.optimiser.step = lambda: None
    step, parts = once.step(), [trainer.step() for trainer in several]
    assert step.words == sum(part.words for part in parts)
    torch.testing.assert_close(step.elbo.total, sum(part.elbo.total for part in parts))


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


# The best model.


def test_the_best_is_kept(tmp_path, data):
    trained(tmp_path / "run", data, rate=2.0, clip=1e6, kl_weight=1.0, steps=10, check_every=2)  # it gets worse
    losses = {int(row["step"]): float(row["nll"]) for row in rows(tmp_path / "run", "dev")}
    best = min(losses, key=losses.get)
    assert best != 10
    assert step_of(tmp_path / "run", BEST) == best
    assert (
        checkpoint(tmp_path / "run").facts["best"] == losses[best] == checkpoint(tmp_path / "run", BEST).facts["best"]
    )
    model = Run.open(tmp_path / "run").model()
    wanted = checkpoint(tmp_path / "run", BEST).tensors
    same_tensors(
        {f"model.{name}": value for name, value in model.state_dict().items()},
        {name: value for name, value in wanted.items() if name.startswith("model.")},
    )


def test_training_learns(tmp_path, data):
    trained(tmp_path / "run", data, steps=30, check_every=10, rate=0.05, dropout=0.0, word_dropout=0.0)
    losses = [float(row["nll"]) for row in rows(tmp_path / "run", "dev")]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < float(rows(tmp_path / "run")[0]["nll"]) - 0.5
