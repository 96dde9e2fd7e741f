"""Checkpoints of training: safetensors files that are written whole or not at all, and whose damage is found.

Beside the tensors, a file's metadata has the name and version of its format, the facts of training as JSON, and a
SHA-256 digest of the file itself, with zeros in the digest's own place: safetensors does not notice changed bytes.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from tailsum_studies.files import whole

FORMAT = "tailsum-vae"
VERSION = 1
LAST, PREVIOUS, BEST = "last.safetensors", "previous.safetensors", "best.safetensors"

_BLANK = "0" * 64
_DAMAGED = "it is damaged: bytes are missing or have changed"

Accept = Callable[["Checkpoint"], None]  # refuses a checkpoint by a ValueError


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """What training needs to go on: named tensors, and facts, which come back as JSON has them (tuples as lists)."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]


def write(path: Path, checkpoint: Checkpoint, former: Path | None = None) -> None:
    """Write a checkpoint to a file, whole or not at all; until it is whole, a file of before keeps the name.

    `former` is a new name for that one. Tensors may be on any device, share memory and have any strides. An OSError, of
    a full disk for example, passes.
    """
    library = _safetensors()
    try:
        facts = json.dumps(checkpoint.facts)
    except (TypeError, ValueError) as error:
        raise ValueError(f"facts must be what JSON can hold: {error}") from None
    metadata = {"format": FORMAT, "version": str(VERSION), "facts": facts, "digest": _BLANK}
    tensors = {name: _plain(name, tensor) for name, tensor in checkpoint.tensors.items()}
    try:
        content: bytes = library.torch.save(tensors, metadata)
    except (KeyError, library.SafetensorError) as error:
        raise ValueError(f"checkpoint must be what a safetensors file can hold: got {error}") from None
    sealed = _with_digest(content, _BLANK, _digest(content))
    with whole(path, "wb", former) as file:
        file.write(sealed)


def read(path: Path) -> Checkpoint:
    """The checkpoint of a file, on the CPU; a ValueError if a single byte of it is not as it was written."""
    content, facts = _verified(path)
    library = _safetensors()
    try:
        with torch.device("cpu"):  # whatever the caller's default is
            tensors = library.torch.load(content)
    except (KeyError, library.SafetensorError) as error:
        raise ValueError(f"{path} must hold tensors that this version of safetensors can read: {error}") from None
    return Checkpoint(tensors, facts)


class Keeper:
    """The checkpoints of one training, in a folder: the last, the one before it, and the best.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     Keeper(Path(folder)).save(Checkpoint({"weight": torch.ones(2)}, {"step": 7}))
    ...     Keeper(Path(folder)).latest(print).facts
    {'step': 7}
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._last_is_unusable = False  # as `latest` found

    def save(self, checkpoint: Checkpoint) -> None:
        """Make this checkpoint the last, and the last the one before it, unless the last is damaged or was refused.

        Whenever this is cut off, a whole checkpoint is there. The new one is complete, under a name that is never read,
        before the last becomes the previous one; between that and the new one's getting its name, only the previous
        one exists. To know whether the last is whole, it is read.
        """
        last = self.folder / LAST
        keep = not self._last_is_unusable and _is_whole(last)
        write(last, checkpoint, self.folder / PREVIOUS if keep else None)
        self._last_is_unusable = False

    def save_best(self, checkpoint: Checkpoint) -> None:
        """Make this checkpoint the best."""
        write(self.folder / BEST, checkpoint)

    def latest(self, report_errors: Callable[[str], None], accept: Accept = lambda _: None) -> Checkpoint | None:
        """The last checkpoint, or the one before it, or, if neither can be used, the best; None if neither is there.

        `report_errors` is called with each file that cannot be used, and why, and if training goes on from the best.
        """
        try:
            return self._last_or_previous(report_errors, accept)
        except ValueError as error:
            if not (self.folder / BEST).exists():
                raise
            reason = str(error)
        try:
            best = _accepted(self.folder / BEST, accept)
        except ValueError as error:
            raise ValueError(f"{reason}; {error}") from None
        report_errors(f"training goes on from {self.folder / BEST}, which is of step {best.facts.get('step')}")
        return best

    def _last_or_previous(self, report_errors: Callable[[str], None], accept: Accept) -> Checkpoint | None:
        reasons: list[str] = []
        self._last_is_unusable = False
        for path in (self.folder / LAST, self.folder / PREVIOUS):
            if not path.exists():
                continue
            try:
                return _accepted(path, accept)
            except ValueError as error:
                reasons.append(str(error))
                report_errors(reasons[-1])
                self._last_is_unusable |= path.name == LAST
        if reasons:
            raise ValueError(
                f"{self.folder} must hold a checkpoint that can be used, or none (remove them, or choose another folder, "
                f"to start anew): {'; '.join(reasons)}"
            )
        return None

    def best(self, report_errors: Callable[[str], None], accept: Accept = lambda _: None) -> Checkpoint:
        """The best checkpoint, or the last one if that is missing or cannot be used, which `report_errors` is called with."""
        try:
            return _accepted(self.folder / BEST, accept)
        except ValueError as error:
            reason = str(error)
        last = self._last_or_previous(report_errors, accept)
        if last is None:
            raise ValueError(f"{reason}. Train first, until one is saved")
        report_errors(f"{reason}. The last one takes its place")
        return last


def _accepted(path: Path, accept: Accept) -> Checkpoint:
    checkpoint = read(path)
    try:
        accept(checkpoint)
    except ValueError as error:
        raise ValueError(f"{path} cannot be used here: {error}") from None
    return checkpoint


def _safetensors() -> ModuleType:
    try:
        import safetensors.torch  # noqa: PLC0415  (optional, and only here)
    except ImportError:
        raise ImportError("Checkpoints need one more package: pip install 'tailsum-studies[vae]'") from None
    return safetensors


def _plain(name: str, tensor: Tensor) -> Tensor:
    """A copy that shares no memory, with its elements in order: safetensors takes no others."""
    if name == "__metadata__":
        raise ValueError(f"tensors must not have the name {name!r}: safetensors keeps it for itself")
    if tensor.layout is not torch.strided or tensor.is_meta:
        raise ValueError(f"tensors[{name!r}] must be dense and hold values: got {tensor.layout} on {tensor.device}")
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu").copy_(tensor.detach())


def _is_whole(path: Path) -> bool:
    try:
        _verified(path)
    except ValueError:
        return False
    return True


def _verified(path: Path) -> tuple[bytes, dict[str, Any]]:
    """The content and the facts of a file; what is returned is what was checked, even if the file changes meanwhile."""
    try:
        content = path.read_bytes()
        return content, _facts(content)
    except FileNotFoundError:
        reason = "it does not exist"
    except OSError as error:
        reason = f"it cannot be read ({error.strerror})"
    except ValueError as error:
        reason = str(error)
    raise ValueError(f"{path} must be a checkpoint: {reason}")


def _facts(content: bytes) -> dict[str, Any]:
    metadata = _metadata(content)
    found, number = metadata.get("format"), metadata.get("version")
    if found != FORMAT:
        raise ValueError(
            f"it is a safetensors file of something else (its format must be {FORMAT!r}, and is {found!r})"
        )
    if number != str(VERSION):
        reads = f"this tailsum reads version {VERSION}: a newer tailsum may read it"
        raise ValueError(f"it has version {number} of the format, and {reads}")
    digest = str(metadata.get("digest"))
    if _digest(_with_digest(content, digest, _BLANK)) != digest:
        raise ValueError(_DAMAGED)
    return json.loads(metadata["facts"])


def _metadata(content: bytes) -> dict[str, Any]:
    """A safetensors file starts with the length of its header, in eight bytes, and the header, a JSON object."""
    if len(content) < 9:
        raise ValueError(f"it is cut short, or something else: it has {len(content)} bytes")
    if content[8:9] != b"{":
        raise ValueError("it is not a safetensors file")
    length = int.from_bytes(content[:8], "little")
    try:
        metadata = json.loads(content[8 : 8 + length]).get("__metadata__")
    except (ValueError, RecursionError):
        raise ValueError(_DAMAGED) from None
    return metadata if isinstance(metadata, dict) else {}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _with_digest(content: bytes, old: str, new: str) -> bytes:
    """A file with another digest; its place is found by the quotes: those in names and facts follow a backslash."""
    return content.replace(f'"digest":"{old}"'.encode(), f'"digest":"{new}"'.encode(), 1)
