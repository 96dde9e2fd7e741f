"""Every way to train with as much time, for several seeds, and how well each restores held-out words.

A finished run is a JSON file in the output folder; the same command goes on from there.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from tailsum_studies.files import whole
from tailsum_studies.gaps.data import Text
from tailsum_studies.gaps.examples import filled
from tailsum_studies.gaps.model import GapFiller
from tailsum_studies.gaps.train import evaluate, held_out, train
from tailsum_studies.gaps.ways import Way

EXAMPLES = 8  # gaps that are shown


@dataclass(frozen=True)
class Settings:
    """How long to train, and how much to evaluate on."""

    seconds: float = 90.0
    sentences: int = 256  # held-out ones that are measured on
    exact: int = 0  # how many of them also with the exact sum
    kept: int = 256  # words at each position in the measurement


@dataclass(frozen=True)
class Run:
    """One way trained from one seed, and what came of it; log-likelihoods are those of each held-out gap."""

    way: str
    label: str
    seed: int
    bound: float
    settings: dict[str, Any]
    steps: int
    seconds: float
    loss: float
    dev: float
    test: float
    accuracy: float
    log_likelihood: list[float]
    words: list[float]
    exact: float | None  # nats per word of the first gaps with the exact sum,
    sketched: float | None  # and of the same gaps as measured
    examples: list[str] = field(default_factory=list)


def measure(
    way: Way, text: Text, settings: Settings, seed: int, device: torch.device, step: Callable[[int], None]
) -> Run:
    """Train and evaluate."""
    model, curve = train(way, text, settings.seconds, seed, device, step)
    generator = torch.Generator(device).manual_seed(seed)
    dev, test = (
        evaluate(model, held_out(text, part, settings.sentences), text, settings.kept, generator=generator)
        for part in ("dev", "test")
    )
    exact = sketched = None
    chain = model if isinstance(model, GapFiller) and model.paired else None
    if settings.exact and chain:
        some = held_out(text, "test", settings.sentences)[: max(1, settings.exact // 16)]
        score = evaluate(chain, some, text, None)
        count = len(score.words)
        exact, sketched = score.nll, -(test.log_likelihood[:count].sum() / test.words[:count].sum()).item()
    return Run(
        way.name, way.label, seed, way.bound, asdict(settings), curve.steps, curve.seconds, curve.loss, dev.nll, test.nll,
        test.accuracy, test.log_likelihood.tolist(), test.words.tolist(), exact, sketched,
        filled(chain, held_out(text, "test", EXAMPLES)[0], text, settings.kept, generator) if chain else [],
    )  # fmt: skip


def compare(
    chosen: Sequence[Way],
    text: Text,
    settings: Settings,
    seeds: Sequence[int],
    folder: Path,
    device: torch.device,
    step: Callable[[int], None] = lambda _: None,
) -> Iterator[Run]:
    """Every run, those that were finished before from their files; seed after seed."""
    for seed in seeds:
        for way in chosen:
            path = folder / "runs" / f"{way.name}-{seed}.json"
            found = _read(path, way, settings)
            if found is None:
                found = measure(way, text, settings, seed, device, step)
                with whole(path, "w") as file:
                    json.dump(asdict(found), file)
            yield found


def _read(path: Path, way: Way, settings: Settings) -> Run | None:
    """The run of a file, if it was made with these settings; a damaged file counts for nothing."""
    try:
        found = Run(**json.loads(path.read_text()))
    except (FileNotFoundError, json.JSONDecodeError, TypeError):
        return None
    return found if (found.label, found.bound, found.settings) == (way.label, way.bound, asdict(settings)) else None
