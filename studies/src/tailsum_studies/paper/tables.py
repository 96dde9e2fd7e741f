"""The cells of the paper's Table 2, Table 3 and Table 4, by the authors' settings, and those of what it has no tables of.

Where the code behind the paper did other than the paper says, the cells have both: TopK at the labelled 20% and 50% of
the states, and at the 500 and 1,000 that were kept at either N. Figures that the paper labels 1%, 10% and 20% were
measured on hypertrees with 10, 100 and 200 states kept and as many drawn, at either N.

Beyond the paper are peaked chains, four times as long as its own, and models that were trained on text.
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from tailsum import Local, LocalGlobal, Lookahead, Propose, TopAndSample, TopK, Uniform
from tailsum_studies.paper.cells import Cell, Made, Method, Subject, baselines, cell, frugal, ours, share_of
from tailsum_studies.paper.chains import (
    ADAM_STEPS,
    HARD_SETTINGS,
    Level,
    global_proposal,
    hard_chain,
    paper_chain,
    paper_proposal,
)
from tailsum_studies.paper.exact import exact_cell
from tailsum_studies.paper.rows import Estimate
from tailsum_studies.paper.trained import Kind, Settings, Trained, WordHMM, held_out_batch, load, save, train
from tailsum_studies.paper.trees import paper_tree
from tailsum_studies.text import Split, sentences

KINDS: tuple[Kind, ...] = ("crf", "hmm")  # of models trained on text
_sentences = functools.lru_cache(maxsize=1)(sentences)
PERCENT = (1, 10, 20)
LOG_Z = ("log Z",)
# The paper's code takes the softmax of the embeddings' norms; the formula that is printed divides them by their sum.
PROPOSALS: dict[str, Callable[[Tensor], Propose]] = {
    "Uniform": lambda _: Uniform(),
    "Local": lambda _: Local(),
    "Global": global_proposal,
    "Global, as printed": functools.partial(global_proposal, softmax=False),
    "Local+Global": paper_proposal,
    "Local+Global, as printed": functools.partial(paper_proposal, softmax=False),
    "Lookahead": lambda _: Lookahead(512, rounds=1, neighbours=0),
}


def table2(states: Iterable[int], repeats: int, seed: int) -> Iterator[Cell[Estimate]]:
    """Mean square errors of log Z of chains and hypertrees, and of the entropy of chains."""
    for n in states:
        for (subject, cells), level in product(
            ((chain_subject, _chain_cells), (tree_subject, _tree_cells)), ADAM_STEPS
        ):
            yield from cells(n, level, repeats, seed)
            yield exact_cell(subject(n, level, seed))


def table3(states: Iterable[int], repeats: int, seed: int) -> Iterator[Cell[Estimate]]:
    """Bias and variance of log Z: the smallest chains of Table 2, the replicates the same."""
    for level in ("dense", "long-tail"):
        yield from _chain_cells(min(states), level, repeats, seed)


def table4(states: Iterable[int], repeats: int, seed: int) -> Iterator[Cell[Estimate]]:
    """Proposals, on the smallest chains: log Z by the paper's selection, and ours beside it."""
    n = min(states)
    for level in ADAM_STEPS:
        subject = chain_subject(n, level, seed)
        for percent in PERCENT:
            _, paper = baselines(n, percent, repeats)
            theirs = (replace(paper, name=name, proposal=name, quantities=LOG_Z) for name in PROPOSALS)
            for method in (*theirs, frugal(n, percent, repeats), ours(n, percent, repeats)):
                yield cell(subject, method)


def hard(states: Iterable[int], repeats: int, seed: int) -> Iterator[Cell[Estimate]]:
    """Log Z and entropy of peaked chains. These are slow where there are many states: so fewer repeats."""
    for n in states:
        # Where transitions are peaked, each state has its own few successors, and landmarks must be among them.
        few, landmarks = max(2, repeats // (4 if n < 10_000 else 10)), max(512, n // 5)
        for transition, emission in HARD_SETTINGS:
            subject = hard_subject(n, transition, emission, seed)
            for percent in (1, 10):
                for method in (*baselines(n, percent, few), ours(n, percent, few, landmarks)):
                    yield cell(subject, method)
            yield exact_cell(subject)


def chain_subject(n: int, level: Level, seed: int) -> Subject:
    """A chain of the paper's recipe."""

    def make(generator: torch.Generator) -> Made:
        made = paper_chain(n, level=level, generator=generator)
        proposals = {name: propose(made.states) for name, propose in PROPOSALS.items()}
        return Made(made.chain, {"paper": proposals["Local+Global"], **proposals})

    return Subject(f"chain, {level}", n, seed, make)


def tree_subject(n: int, level: Level, seed: int) -> Subject:
    """A hypertree of the paper's recipe: its sentences are shorter where there are more states."""
    length, size = (15, 100) if n < 10_000 else (5, 50)

    def make(generator: torch.Generator) -> Made:
        return Made(paper_tree(n, length, level, size, generator), {"paper": Uniform()})

    return Subject(f"hypertree, {level}", n, seed, make, LOG_Z)


def hard_subject(n: int, transition: float, emission: float, seed: int) -> Subject:
    """A peaked chain, its scores of the given standard deviations."""

    def make(generator: torch.Generator) -> Made:
        return Made(hard_chain(n, transition, emission, generator=generator), {"paper": LocalGlobal()})

    return Subject(f"s={transition:g} e={emission:g}", n, seed, make)


def _top_k(subject: Subject, proposal: Propose | str) -> Iterator[Cell[Estimate]]:
    """TopK with as many states as labelled, and with as many as were used."""
    kept = {f"{percent}%": share_of(subject.states, percent) for percent in (20, 50)}
    kept |= {f"K={k}": k for k in (500, 1000) if k <= subject.states}
    return (cell(subject, Method("TopK", label, k, TopK(k), proposal, 1)) for label, k in kept.items())


def _chain_cells(n: int, level: Level, repeats: int, seed: int) -> Iterator[Cell[Estimate]]:
    subject = chain_subject(n, level, seed)
    yield from _top_k(subject, "paper")
    for percent in PERCENT:
        k = share_of(n, percent)
        count = repeats if k < 2000 else max(2, repeats // 2)  # these take longest, and tell least
        _, paper = baselines(n, percent, count)
        if n == 2000:  # the entropies of the paper's smaller chains have two draws
            yield cell(subject, replace(paper, quantities=LOG_Z))
            yield cell(subject, replace(paper, quantities=("entropy",), selection=TopAndSample(k - 2, 2)))
        else:
            yield cell(subject, paper)
        yield cell(subject, ours(n, percent, count))


def _tree_cells(n: int, level: Level, repeats: int, seed: int) -> Iterator[Cell[Estimate]]:
    subject = tree_subject(n, level, seed)
    yield from _top_k(subject, Local())
    for percent, used in zip(PERCENT, (10, 100, 200), strict=True):
        half = min(used, n // 2)
        yield cell(subject, Method("paper", f"{percent}%", 2 * half, TopAndSample(half, half), "paper", repeats))
        yield cell(subject, ours(n, percent, repeats, kept=2 * half))


# Models that were trained on text: every estimator on 32 test sentences.


def text(data: Path | None, folder: Path, repeats: int, seed: int) -> Iterator[Cell[Estimate]]:
    """Log Z and entropy of the test sentences, one by one."""
    for subject in text_subjects(data, folder, seed):
        n = subject.states
        for percent in (1, 10):
            for method in (*baselines(n, percent, repeats), frugal(n, percent, repeats), ours(n, percent, repeats)):
                yield cell(subject, method)
        yield exact_cell(subject)


def text_subjects(data: Path | None, folder: Path, seed: int) -> Iterator[Subject]:
    """The models, which are trained when first needed, and kept in `folder`."""
    for kind in KINDS:
        make = functools.partial(_make_text, kind, data, folder, seed)
        yield Subject(f"{kind.upper()} of {text_name(data)}", Settings(kind).n_states, seed, make)


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


def _make_text(kind: Kind, data: Path | None, folder: Path, seed: int, generator: torch.Generator) -> Made:
    trained, split = prepare(kind, data, folder, seed)
    batch, model = held_out_batch(trained, split, generator=generator), trained.model
    proposal, truth = LocalGlobal(), batch.words
    if isinstance(model, WordHMM):
        # The formula as it is printed, from the embeddings of transitions: an HMM's own scores are a table of them.
        proposal, truth = paper_proposal(model.left.detach(), softmax=False), None
    parameters: dict[str, Tensor] = dict(model.named_parameters())
    return Made(model.chain(batch), {"paper": proposal}, parameters, lambda: model.chain(batch), truth)
