"""Files that are written whole or not at all, and by one process at a time."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Literal


@contextlib.contextmanager
def whole(path: Path, mode: Literal["w", "wb"] = "w", former: Path | None = None) -> Iterator[IO[Any]]:
    """A file to write to, which appears under its name only when it is complete and on the disk.

    Until then, and after an error, whatever had that name before has it still; `former` is a new name for it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.part")
    newline, encoding = ("", "utf-8") if mode == "w" else (None, None)
    try:
        with draft.open(mode, newline=newline, encoding=encoding) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if former is not None:
            os.replace(path, former)  # noqa: PTH105  (os, throughout: what happens to the files is easy to see and to test)
        os.replace(draft, path)  # noqa: PTH105
    except BaseException:
        with contextlib.suppress(OSError):  # the first error is the one to tell
            draft.unlink(missing_ok=True)
        raise
    _sync(path.parent)


@contextlib.contextmanager
def alone(path: Path, message: str) -> Iterator[None]:
    """Hold a lock on a file, which is made where it is missing; a ValueError with the message if another process has it.

    The lock goes when the process goes, however it ends. Where the system or the disk has no locks, nothing is locked.
    """
    try:
        import fcntl  # noqa: PLC0415  (not everywhere)
    except ImportError:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(message) from None
        except OSError:  # no locks here
            pass
        yield


def _sync(folder: Path) -> None:
    """Without this, the new names of files may not outlive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
