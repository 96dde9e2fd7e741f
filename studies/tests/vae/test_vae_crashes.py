"""Training that crashes, or finds its files damaged, comes to the same bits as training in one go."""

import itertools
import shutil

import pytest

pytest.importorskip("safetensors")


from vae_cases import fresh, go_on, new_run, rows, same_run, step_of, trained

from tailsum_studies.vae.checkpoint import BEST, LAST, PREVIOUS
from tailsum_studies.vae.run import Run
from tailsum_studies.vae.train import Watcher, train

pytestmark = pytest.mark.usefixtures("quick")


class Crash(Exception):  # noqa: N818
    """What ends a process between two lines."""


def crash(*_):
    raise Crash


# Nothing is saved on the way out.


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
    _, done = go_on(tmp_path / "run", report_errors=complaints.append, stepped=lambda step: steps.append(step.number))
    assert done
    assert len(complaints) == 1
    assert str(tmp_path / "run" / "checkpoints" / LAST) in complaints[0]
    assert steps[0] == 9  # from the check at 8, not anew
    same_run(tmp_path / "run", whole)
    assert step_of(tmp_path / "run", PREVIOUS) == 8  # what was damaged is not kept


@pytest.mark.parametrize("damage", [flip, truncate, replace])
def test_all_checkpoints_damaged(tmp_path, data, other, damage):
    new_run(tmp_path / "run", data)
    go_on(tmp_path / "run", stop=lambda trainer: trainer.done == 10)
    before = (tmp_path / "run" / "losses.csv").read_bytes()
    for name in (LAST, PREVIOUS, BEST):
        damage(tmp_path / "run" / "checkpoints" / name, other)
    with pytest.raises(ValueError, match=LAST) as caught:
        go_on(tmp_path / "run", report_errors=lambda _: None)
    assert PREVIOUS in str(caught.value)
    assert BEST in str(caught.value)
    assert (tmp_path / "run" / "losses.csv").read_bytes() == before


def test_other_text(tmp_path, data):
    moved = shutil.copy(data, tmp_path / "text.txt")
    new_run(tmp_path / "run", tmp_path / "text.txt")
    go_on(tmp_path / "run", stop=lambda trainer: trainer.done == 2)
    moved.write_text(moved.read_text() + "\none more sentence")
    with pytest.raises(ValueError, match=r"text\.txt must be the text that .* was trained on"):
        fresh(tmp_path / "run")
