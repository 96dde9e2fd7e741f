"""A run's folder: its settings and words, checkpoints, the curve of its losses, and what was made of it later."""

import csv
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import torch

from tailsum.nn import StructuredVAE
from tailsum_studies.files import alone, whole
from tailsum_studies.text import Vocabulary
from tailsum_studies.vae.build import build, frozen_digest, load
from tailsum_studies.vae.checkpoint import Checkpoint, Keeper
from tailsum_studies.vae.data import Corpus
from tailsum_studies.vae.settings import Settings

CURVE: Sequence[str] = ("step", "part", "words", "states", "entropy", "nll")
OWN: Sequence[str] = ("checkpoints", "losses.csv", "evaluation.json", "states.csv", "plots", "index.html")


class Run:
    """Where one training keeps everything."""

    def __init__(self, folder: Path, settings: Settings, vocabulary: Vocabulary, digest: str) -> None:
        self.folder, self.settings, self.vocabulary, self.digest = folder, settings, vocabulary, digest
        self.keeper, self.curve = Keeper(folder / "checkpoints"), folder / "losses.csv"

    @classmethod
    def new(cls, folder: Path, settings: Settings, corpus: Corpus) -> "Run":
        """A new run, of which nothing is written yet; a ValueError if the folder holds one already."""
        _check_free(folder)
        return cls(folder, settings, corpus.vocabulary, digest(corpus))

    def write(self) -> "Run":
        """Make the folder, with settings and words in it; a ValueError if another process was faster."""
        with self.alone():
            _check_free(self.folder)
            write_json(self.folder / "words.json", {"words": list(self.vocabulary.words), "digest": self.digest})
            write_json(self.folder / "settings.json", self.settings.as_json())
        return self

    def extended(self, steps: int) -> "Run":
        """The same run with more steps; nothing is written yet."""
        return Run(self.folder, self.settings.extended(steps), self.vocabulary, self.digest)

    def write_settings(self) -> None:
        """Put these settings into the place of those that the folder holds, where they have changed."""
        if Run.open(self.folder).settings == self.settings:
            return
        with self.alone():
            write_json(self.folder / "settings.json", self.settings.as_json())

    def remove(self) -> None:
        """Undo `write`, of a run that has made no step; what else is in the folder stays."""
        for name in ("settings.json", "words.json", self.curve.name, "lock"):
            (self.folder / name).unlink(missing_ok=True)
        with suppress(OSError):  # there is something else in it
            self.folder.rmdir()

    @classmethod
    def open(cls, folder: Path) -> "Run":
        """A run that was begun before."""
        path = folder / "settings.json"
        if not path.exists():
            raise ValueError(f"{folder} must be the folder of a run, which `tailsum train --output` makes: it is not")
        try:
            settings = Settings.from_json(read_json(path))
        except ValueError as error:
            raise ValueError(f"{path} must hold a run's settings. {error}") from None
        content = read_json(folder / "words.json")
        try:
            vocabulary, found = Vocabulary(tuple(content["words"])), str(content["digest"])
        except (KeyError, TypeError, ValueError):
            raise ValueError(f"{folder / 'words.json'} must hold the run's words: it is damaged") from None
        return cls(folder, settings, vocabulary, found)

    def alone(self) -> AbstractContextManager[None]:
        """While this lasts, no other process may train the run."""
        message = f"{self.folder} is in training by another process: wait for its end, or choose another --output"
        return alone(self.folder / "lock", message)

    def corpus(self, data: Path | None = None) -> Corpus:
        """The text of this run, read again (from another place, if given); a ValueError if it has changed."""
        corpus = read_corpus(self.settings, data)
        if digest(corpus) != self.digest:
            text = data or self.settings.data or "the documentation of this Python"
            raise ValueError(
                f"{text} must be the text that {self.folder} was trained on: it has changed, or is another"
            )
        return corpus

    def best(self, report_errors: Callable[[str], None] = print) -> Checkpoint:
        """The model when it did best on dev, or, where that is lost, the last one, and then `report_errors` is called."""
        return self.keeper.best(report_errors, self.accept)

    def model(self, device: torch.device | str = "cpu", checkpoint: Checkpoint | None = None) -> StructuredVAE:
        """The model of a checkpoint, by default of the best."""
        model = build(self.settings, self.vocabulary)
        self.put(checkpoint or self.best(), model)
        return model.to(device).eval()

    def put(self, checkpoint: Checkpoint, model: StructuredVAE) -> None:
        """Load a checkpoint of this run into a model of its settings; a ValueError if it is another run's."""
        self.accept(checkpoint)
        if checkpoint.facts.get("frozen") != frozen_digest(model):
            name = self.settings.encoder
            raise ValueError(f"{name} must be the encoder that {self.folder} was trained with: it has changed since")
        named = checkpoint.tensors.items()
        load(model, {name.removeprefix("model."): x for name, x in named if name.startswith("model.")})

    def accept(self, checkpoint: Checkpoint) -> None:
        """A ValueError if a checkpoint is another run's."""
        settings = Settings.from_json(checkpoint.facts.get("settings"))
        same = {
            "settings": self.settings.is_extension_of(settings),
            "digest": checkpoint.facts.get("digest") == self.digest,
        }
        for name in (name for name, holds in same.items() if not holds):
            raise ValueError(f"the checkpoint must be one of this run, {self.folder}: its {name} are another's")

    # The curve: a row for each step of training, and for each look at the dev part.

    def losses(self) -> list[dict[str, str]]:
        """All rows of the curve; those that were cut off or damaged are left out."""
        if not self.curve.exists():
            return []
        whole = self.curve.read_text(encoding="utf-8", errors="replace").rpartition("\n")[0]
        rows = [row for row in csv.reader(whole.splitlines()) if len(row) == len(CURVE) and row[0].isdecimal()]
        return [dict(zip(CURVE, row, strict=True)) for row in rows]

    def cut_curve(self, step: int) -> None:
        """Forget what came after a step."""
        kept = [row for row in self.losses() if int(row["step"]) <= step]
        with whole(self.curve) as file:
            writer = csv.DictWriter(file, CURVE)
            writer.writeheader()
            writer.writerows(kept)

    def add_to_curve(self, row: Mapping[str, object]) -> None:
        """Write one more row, to the last bit of each number."""
        with self.curve.open("a", newline="") as file:
            csv.DictWriter(file, CURVE).writerow(row)


def _check_free(folder: Path) -> None:
    if (folder / "settings.json").exists():
        raise ValueError(f"{folder} holds a run already: go on with --resume, or choose another --output")
    if there := [name for name in OWN if (folder / name).exists()]:
        raise ValueError(f"{folder} holds {there[0]} already, which is no run's: choose another --output")


def read_corpus(settings: Settings, data: Path | None = None) -> Corpus:
    """The text that settings name, or, if given, another, as they want it."""
    named = Path(settings.data) if settings.data else None
    return Corpus.read(data or named, settings.words, longest=settings.longest)


def digest(corpus: Corpus) -> str:
    """What tells one text from another."""
    content = json.dumps([corpus.vocabulary.words, corpus.train, corpus.dev, corpus.test])
    return hashlib.sha256(content.encode()).hexdigest()


def write_json(path: Path, content: Any) -> None:
    """Write a file, whole or not at all; JSON has no infinities, and nothing that is not a number: null stands for them."""
    finite = json.loads(json.dumps(content), parse_constant=lambda _: None)
    with whole(path) as file:
        json.dump(finite, file, indent=1)


def read_json(path: Path) -> Any:
    """The content of a file; a ValueError if it is damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} must be a JSON file of the run: it is missing or damaged ({error})") from None
