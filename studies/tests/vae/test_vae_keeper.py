"""Of the last checkpoint, the one before it and the best, a crash at any moment leaves a whole one."""

import errno
import io
import itertools
import os
import sys
from pathlib import Path

import pytest
from checkpoint_cases import at_step, damage, names, never, refuse, safetensors_of, step_of

from tailsum_studies.vae.checkpoint import BEST, LAST, PREVIOUS, Keeper, read

STATES = ("nothing", "one", "two", "only previous", "damaged last", "refused last")


@pytest.fixture
def keeper(tmp_path):
    return Keeper(tmp_path / "run")


def test_none_at_first(keeper):
    assert keeper.latest(never) is None
    with pytest.raises(ValueError, match=r"best.safetensors must be a checkpoint: it does not exist. Train first"):
        keeper.best(never)
    assert not keeper.folder.exists()


def test_last_and_previous(keeper):
    for step in (1, 2, 3):
        keeper.save(at_step(step))
        assert step_of(keeper.latest(never)) == step
    assert names(keeper.folder) == [LAST, PREVIOUS]
    assert step_of(read(keeper.folder / PREVIOUS)) == 2


def test_best(keeper):
    for step in (5, 4):
        keeper.save_best(at_step(step))
        assert step_of(keeper.best(never)) == step
    assert keeper.latest(never) is None
    damage(keeper.folder / BEST)
    with pytest.raises(ValueError, match=r"best.safetensors must be a checkpoint: it is damaged"):
        keeper.best(never)


@pytest.mark.parametrize("how", ["missing", "damaged", "refused"])
def test_the_last_in_place_of_the_best(keeper, how):
    keeper.save_best(at_step(1))
    keeper.save(at_step(2))

    def accept(checkpoint):
        if how == "refused" and step_of(checkpoint) == 1:
            raise ValueError("not this one")

    if how == "missing":
        (keeper.folder / BEST).unlink()
    elif how == "damaged":
        damage(keeper.folder / BEST)
    said = []
    assert step_of(keeper.best(said.append, accept)) == 2
    assert len(said) == 1
    assert str(keeper.folder / BEST) in said[0]
    assert said[0].endswith("The last one takes its place")


def test_the_previous_one_without_a_last(keeper):
    keeper.save(at_step(1))
    (keeper.folder / LAST).rename(keeper.folder / PREVIOUS)
    assert step_of(keeper.latest(never)) == 1
    keeper.save(at_step(2))
    assert [step_of(read(keeper.folder / name)) for name in (LAST, PREVIOUS)] == [2, 1]


def test_a_leftover_draft_is_ignored(keeper):
    keeper.folder.mkdir()
    draft = keeper.folder / f"{LAST}.part"
    draft.write_bytes(b"x" * 10_000)
    assert keeper.latest(never) is None
    keeper.save(at_step(1))
    assert step_of(keeper.latest(never)) == 1
    assert not draft.exists()


@pytest.mark.parametrize("ask", [True, False])
@pytest.mark.parametrize("spoil", [damage, lambda path: path.write_bytes(safetensors_of({"format": "pt"}))])
def test_a_damaged_last_one(keeper, spoil, ask):
    keeper.save(at_step(1))
    keeper.save(at_step(2))
    spoil(keeper.folder / LAST)
    if ask:
        complaints = []
        assert step_of(keeper.latest(complaints.append)) == 1
        (complaint,) = complaints
        assert "last.safetensors must be a checkpoint: it is " in complaint
    keeper.save(at_step(3))
    assert [step_of(read(keeper.folder / name)) for name in (LAST, PREVIOUS)] == [3, 1]
    keeper.save(at_step(4))
    assert [step_of(read(keeper.folder / name)) for name in (LAST, PREVIOUS)] == [4, 3]


def test_a_refused_last_one(keeper):
    keeper.save(at_step(1))
    keeper.save(at_step(2))
    complaints = []
    assert step_of(keeper.latest(complaints.append, refuse(2))) == 1
    assert [complaint.split("run/")[1] for complaint in complaints] == [
        "last.safetensors cannot be used here: step 2 is not wanted"
    ]
    keeper.save(at_step(3))
    assert [step_of(read(keeper.folder / name)) for name in (LAST, PREVIOUS)] == [3, 1]
    keeper.save(at_step(4))
    assert [step_of(read(keeper.folder / name)) for name in (LAST, PREVIOUS)] == [4, 3]


def test_a_last_one_accepted_later(keeper):
    keeper.save(at_step(1))
    keeper.save(at_step(2))
    keeper.latest(lambda _: None, refuse(2))
    assert step_of(keeper.latest(never)) == 2
    keeper.save(at_step(3))
    assert [step_of(read(keeper.folder / name)) for name in (LAST, PREVIOUS)] == [3, 2]


def test_none_that_can_be_used(keeper):
    keeper.save(at_step(1))
    with pytest.raises(ValueError, match=r"step 1 is not wanted$"):
        keeper.latest(lambda _: None, refuse(1))
    keeper.save(at_step(2))
    keeper.save(at_step(3))
    damage(keeper.folder / LAST)
    complaints = []
    with pytest.raises(ValueError, match="run must hold a checkpoint that can be used, or none") as error:
        keeper.latest(complaints.append, refuse(2))
    assert len(complaints) == 2
    assert str(error.value).endswith("; ".join(complaints))
    assert "last.safetensors must be a checkpoint: it is damaged" in complaints[0]
    assert "previous.safetensors cannot be used here: step 2" in complaints[1]


def test_the_best_in_place_of_a_damaged_last_one(keeper):
    keeper.save_best(at_step(1))
    keeper.save(at_step(2))
    damage(keeper.folder / LAST)
    complaints = []
    assert step_of(keeper.latest(complaints.append)) == 1
    assert [complaint.count(name) for complaint, name in zip(complaints, (LAST, BEST), strict=True)] == [1, 1]
    keeper.save(at_step(3))
    assert names(keeper.folder) == [BEST, LAST]  # what was damaged is not kept
    damage(keeper.folder / LAST)
    with pytest.raises(ValueError, match=r"step 1 is not wanted$"):
        keeper.latest(complaints.append, refuse(1))


def test_other_errors_of_accept_pass(keeper):
    keeper.save(at_step(1))
    with pytest.raises(KeyError, match="absent"):
        keeper.latest(never, lambda checkpoint: checkpoint.facts["absent"])


# Crashes and full disks.


class Crash(BaseException):
    """The end of the process: nothing it would have done afterwards happens."""


class Failure:
    """Raises an error at some call that does something to a file, counted from 0; a crash at every later one, too."""

    def __init__(self, monkeypatch, moment, error):
        self.count, self.moment, self.error = 0, moment, error
        for name in ("fsync", "open", "replace", "unlink"):
            monkeypatch.setattr(os, name, self.counted(getattr(os, name)))
        monkeypatch.setattr(Path, "open", self.opened(Path.open))

    def __call__(self):
        number, self.count = self.count, self.count + 1
        if number == self.moment or (number > self.moment and isinstance(self.error, Crash)):
            raise self.error

    def counted(self, function):
        def counted(*args, **kwargs):
            self()
            return function(*args, **kwargs)

        return counted

    def opened(self, function):
        def opened(path, mode, *args, **kwargs):
            if mode != "wb":
                return function(path, mode, *args, **kwargs)
            self()
            return io.BufferedWriter(Pieces(path, self), buffer_size=10_000)  # as many calls each time

        return opened


class Pieces(io.FileIO):
    """A file that is written in many calls."""

    def __init__(self, path, call):
        super().__init__(path, "w")
        self.call = call

    def write(self, data):
        self.call()
        return super().write(bytes(data)[:50])


def failures(monkeypatch, error, prepare, save):
    """What `prepare` gives, after `save` of it has failed: at its first call, at its second, until it does not fail."""
    for moment in itertools.count():
        prepared = prepare(str(moment))
        with monkeypatch.context() as patch:
            failure = Failure(patch, moment, error)
            try:
                save(prepared)
            except (Crash, OSError) as found:
                assert found is error  # noqa: PT017  (at the end, there is none)
            else:
                assert failure.count == moment > 10
                return
        yield prepared


def prepared(folder, state):
    """A keeper of a folder in some state, the step that `latest` gives there, and what is accepted."""
    keeper = Keeper(folder)
    accept = refuse(2) if state == "refused last" else refuse()
    for step in range(1, {"nothing": 0, "one": 1, "only previous": 1}.get(state, 2) + 1):
        keeper.save(at_step(step))
    if state == "only previous":
        (folder / LAST).rename(folder / PREVIOUS)
    if state == "damaged last":
        damage(folder / LAST)
    found = keeper.latest(lambda _: None, accept)
    return keeper, found and step_of(found), accept


def steps_after(monkeypatch, error, tmp_path, state):
    """For each moment at which saving step 9 may fail: a keeper, what is accepted, and the latest step before and now."""
    for keeper, before, accept in failures(
        monkeypatch, error, lambda name: prepared(tmp_path / name, state), lambda p: p[0].save(at_step(9))
    ):
        again = Keeper(keeper.folder)
        found = again.latest(lambda _: None, accept)
        yield again, accept, before, found and step_of(found)


@pytest.mark.parametrize("state", STATES)
def test_a_crash_at_any_moment(tmp_path, monkeypatch, state):
    outcomes = []
    for keeper, accept, before, now in steps_after(monkeypatch, Crash(), tmp_path, state):
        outcomes.append("old" if now == before else now)
        keeper.save(at_step(10))
        assert step_of(keeper.latest(never, accept)) == 10
        assert set(names(keeper.folder)) <= {LAST, PREVIOUS}
    assert outcomes == ["old"] * outcomes.index(9) + [9] * 2  # the name is there, and the folder is not synced yet
    assert len(outcomes) > 10


def test_a_crash_while_the_best_is_saved(tmp_path, monkeypatch):
    def prepare(name):
        keeper = Keeper(tmp_path / name)
        keeper.save_best(at_step(1))
        return keeper

    after = failures(monkeypatch, Crash(), prepare, lambda keeper: keeper.save_best(at_step(9)))
    outcomes = [step_of(keeper.best(never)) for keeper in after]
    assert outcomes == [1] * outcomes.index(9) + [9] * 2


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
@pytest.mark.parametrize("state", STATES)
def test_an_error_at_any_moment(tmp_path, monkeypatch, state, code):
    outcomes = []
    for keeper, _, before, now in steps_after(monkeypatch, OSError(code, os.strerror(code)), tmp_path, state):
        assert not list(keeper.folder.glob("*.part"))
        outcomes.append("old" if now == before else now)
    assert outcomes == ["old"] * outcomes.index(9) + [9] * 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a disk that is always full")
def test_a_full_disk(keeper):
    keeper.save(at_step(1))
    keeper.save(at_step(2))
    files = {name: (keeper.folder / name).read_bytes() for name in names(keeper.folder)}
    (keeper.folder / f"{LAST}.part").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device"):
        keeper.save(at_step(3))
    assert {name: (keeper.folder / name).read_bytes() for name in names(keeper.folder)} == files


def test_the_first_error_is_reported(keeper, monkeypatch):
    def fail(code):
        def fail(*_args, **_kwargs):
            raise OSError(code, os.strerror(code))

        return fail

    monkeypatch.setattr(os, "fsync", fail(errno.ENOSPC))
    monkeypatch.setattr(os, "unlink", fail(errno.EROFS))
    with pytest.raises(OSError, match="No space left on device"):
        keeper.save(at_step(1))
    assert keeper.latest(never) is None


def test_what_is_written_is_on_the_disk_before_it_has_its_name(keeper, monkeypatch):
    events = []
    real = {name: getattr(os, name) for name in ("fsync", "replace")}

    def fsync(descriptor):
        events.append(f"sync {Path(f'/proc/self/fd/{descriptor}').readlink().name}")
        real["fsync"](descriptor)

    def replace(old, new):
        events.append(f"{Path(old).name} to {Path(new).name}")
        real["replace"](old, new)

    keeper.save(at_step(1))
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    keeper.save(at_step(2))
    assert events == [f"sync {LAST}.part", f"{LAST} to {PREVIOUS}", f"{LAST}.part to {LAST}", "sync run"]


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "run").write_text("a file")
    with pytest.raises(OSError, match="/run'"):
        Keeper(tmp_path / "run").save(at_step(1))


def test_without_safetensors(keeper, monkeypatch):
    keeper.save(at_step(1))
    monkeypatch.setitem(sys.modules, "safetensors", None)
    for use in (lambda: keeper.latest(never), lambda: keeper.save(at_step(2))):
        with pytest.raises(ImportError, match=r"pip install 'tailsum-studies\[vae\]'"):
            use()
