"""Files that are written whole or not at all, by one process at a time. (What happens at every moment of a crash: the tests of checkpoints.)"""

import subprocess
import sys
import types

import pytest

from tailsum_studies.files import alone, whole


@pytest.mark.parametrize(("mode", "content"), [("w", "é\r\nb\n"), ("wb", b"\x00\n")])
def test_a_file_has_its_name_only_when_it_is_complete(tmp_path, mode, content):
    path = tmp_path / "new" / "file.txt"
    with whole(path, mode) as file:
        file.write(content)
        assert not path.exists()
    assert path.read_bytes() == (content.encode() if mode == "w" else content)
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
def test_after_an_error_the_old_file_stays(tmp_path, error):
    path, former = tmp_path / "file", tmp_path / "former"
    path.write_text("old")

    def fail():
        with whole(path, former=former) as file:
            file.write("new, and then")
            raise error

    with pytest.raises(type(error)):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_old_file_may_have_a_new_name(tmp_path):
    path, former = tmp_path / "file", tmp_path / "former"
    for content in ("first", "second", "third"):
        with whole(path, former=former if path.exists() else None) as file:
            file.write(content)
    assert (path.read_text(), former.read_text()) == ("third", "second")


HOLD = """
import sys, time
from pathlib import Path
from tailsum_studies.files import alone
with alone(Path(sys.argv[1]), "no"):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_lock_is_held_by_one_until_it_ends_or_is_killed(tmp_path):
    path = tmp_path / "new" / "lock"
    for _ in range(2):  # an error lets go of it too
        with pytest.raises(KeyError), alone(path, "in use"):
            raise KeyError
    other = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    with pytest.raises(ValueError, match="in use"), alone(path, "in use"):
        pass
    other.kill()
    other.communicate()
    with alone(path, "in use"), pytest.raises(ValueError, match="in use"), alone(path, "in use"):
        pass


@pytest.mark.parametrize("how", ["no module", "no locks on the disk"])
def test_without_locks_nothing_is_locked(tmp_path, monkeypatch, how):
    def refuse(*_):
        raise OSError(95, "not supported")

    module = types.SimpleNamespace(flock=refuse, LOCK_EX=1, LOCK_NB=2) if how != "no module" else None
    monkeypatch.setitem(sys.modules, "fcntl", module)
    with alone(tmp_path / "lock", "in use"), alone(tmp_path / "lock", "in use"):
        pass
    assert (tmp_path / "lock").exists() == (how != "no module")
