"""Files that are written whole or not at all. (What happens at every moment of a crash: the tests of checkpoints.)"""

import pytest

from tailsum.files import whole


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
