"""The cells of models that were trained on text: every estimator on 32 test sentences. Not in the paper."""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from tailsum.apps.paper.cells import Cell, Made, Subject, cell, frugal, ours, rivals
from tailsum.apps.paper.chains import paper_proposal
from tailsum.apps.paper.rows import Estimate
from tailsum.apps.paper.trained import Kind, Settings, Trained, WordHMM, held_out_batch, load, save, train
from tailsum.apps.text import Split, sentences
from tailsum.sketch.proposal import LocalGlobal

KINDS: tuple[Kind, ...] = ("crf", "hmm")
PERCENT = (1, 10)


def text(data: Path | None, folder: Path, repeats: int, seed: int) -> Iterator[Cell[Estimate]]:
    """Log Z and entropy of the test sentences, one by one."""
    for subject in text_subjects(data, folder, seed):
        n = subject.states
        for percent in PERCENT:
            for method in (*rivals(n, percent, repeats), frugal(n, percent, repeats), ours(n, percent, repeats)):
                yield cell(subject, method)


def text_subjects(data: Path | None, folder: Path, seed: int) -> list[Subject]:
    """The models, which are trained when first needed, and kept in `folder`."""
    return [
        Subject(
            f"{kind.upper()} of {text_name(data)}",
            Settings(kind).n_states,
            seed,
            functools.partial(_make, kind, data, folder, seed),
        )
        for kind in KINDS
    ]


def text_name(data: Path | None) -> str:
    """What to call the text."""
    return data.stem if data else "Python's documentation"


def prepare(
    kind: Kind, data: Path | None, folder: Path, seed: int, step: Callable[[], None] = lambda: None
) -> tuple[Trained, Split]:
    """The trained model: from its file, or trained now and written to it. And the text."""
    split, settings = _sentences(data), Settings(kind, seed=seed)
    path = folder / f"{kind}-{text_name(data)}-s{seed}.pt".replace(" ", "_")
    try:
        return load(path, settings, split), split
    except ValueError:
        trained = train(settings, split, step)
        save(path, trained)
        return trained, split


@functools.lru_cache(maxsize=1)
def _sentences(data: Path | None) -> Split:
    return sentences(data)


def _make(kind: Kind, data: Path | None, folder: Path, seed: int, generator: torch.Generator) -> Made:
    trained, split = prepare(kind, data, folder, seed)
    batch, model = held_out_batch(trained, split, generator=generator), trained.model
    # The formula as it is printed, from the embeddings of transitions: an HMM's own scores are a table of them.
    states = model.left.detach() if isinstance(model, WordHMM) else None
    proposal = LocalGlobal() if states is None else paper_proposal(states, softmax=False)
    truth = None if isinstance(model, WordHMM) else batch.words
    parameters: dict[str, Tensor] = dict(model.named_parameters())
    return Made(model.chain(batch), {"paper": proposal}, parameters, lambda: model.chain(batch), truth)
