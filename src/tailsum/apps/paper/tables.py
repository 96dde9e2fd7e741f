"""The cells of the paper's Table 2, Table 3 and Table 4, by the authors' settings.

Where the code behind the paper did other than the paper says, the cells have both: TopK at the labelled 20% and 50% of
the states, and at the 500 and 1,000 that were kept at either N. Figures that the paper labels 1%, 10% and 20% were
measured on hypertrees with 10, 100 and 200 states kept and as many drawn, at either N.
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from tailsum.apps.paper.cells import Cell, Made, Method, Subject, cell, frugal, ours, share_of
from tailsum.apps.paper.chains import ADAM_STEPS, Level, global_proposal, paper_chain, paper_proposal
from tailsum.apps.paper.rows import Estimate
from tailsum.apps.paper.trees import paper_tree
from tailsum.sketch.model import Propose
from tailsum.sketch.proposal import Local, Lookahead, Uniform
from tailsum.sketch.selection import TopAndSample, TopK

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
    "Lookahead": lambda _: Lookahead(),
}


def table2(states: Iterable[int], repeats: int, seed: int) -> Iterator[Cell[Estimate]]:
    """Mean square errors of log Z of chains and hypertrees, and of the entropy of chains."""
    for n in states:
        for level in ADAM_STEPS:
            yield from _chain_cells(n, level, repeats, seed)
        for level in ADAM_STEPS:
            yield from _tree_cells(n, level, repeats, seed)


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
            k = share_of(n, percent)
            for name in PROPOSALS:
                yield cell(
                    subject, Method(name, f"{percent}%", k, TopAndSample(k - 1, 1), name, repeats, quantities=LOG_Z)
                )
            yield cell(subject, frugal(n, percent, repeats))
            yield cell(subject, ours(n, percent, repeats))


def chain_subject(n: int, level: Level, seed: int) -> Subject:
    """A chain of the paper's recipe."""
    return Subject(f"chain, {level}", n, seed, functools.partial(_make_chain, n, level))


def tree_subject(n: int, level: Level, seed: int) -> Subject:
    """A hypertree of the paper's recipe: its sentences are shorter where there are more states."""
    return Subject(f"hypertree, {level}", n, seed, functools.partial(_make_tree, n, level), LOG_Z)


def _make_chain(n: int, level: Level, generator: torch.Generator) -> Made:
    made = paper_chain(n, level=level, generator=generator)
    proposals = {name: propose(made.states) for name, propose in PROPOSALS.items()}
    return Made(made.chain, {"paper": proposals["Local+Global"], **proposals})


def _make_tree(n: int, level: Level, generator: torch.Generator) -> Made:
    length, size = (15, 100) if n < 10_000 else (5, 50)
    return Made(paper_tree(n, length, level, size, generator), {"paper": Uniform()})


def _top_k(n: int) -> Iterator[tuple[str, int]]:
    """How many states TopK has: as labelled, and as used."""
    yield from ((f"{percent}%", share_of(n, percent)) for percent in (20, 50))
    yield from ((f"K={k}", k) for k in (500, 1000) if k <= n)


def _chain_cells(n: int, level: Level, repeats: int, seed: int) -> Iterator[Cell[Estimate]]:
    subject = chain_subject(n, level, seed)
    for label, k in _top_k(n):
        yield cell(subject, Method("TopK", label, k, TopK(k), "paper", 1))
    for percent in PERCENT:
        k, label = share_of(n, percent), f"{percent}%"
        count = repeats if k < 2000 else max(2, repeats // 2)  # these take longest, and tell least
        paper = Method("paper", label, k, TopAndSample(k - 1, 1), "paper", count)
        if n == 2000:  # the entropies of the paper's smaller chains have two draws
            yield cell(subject, replace(paper, quantities=LOG_Z))
            yield cell(subject, replace(paper, quantities=("entropy",), selection=TopAndSample(k - 2, 2)))
        else:
            yield cell(subject, paper)
        yield cell(subject, ours(n, percent, count))


def _tree_cells(n: int, level: Level, repeats: int, seed: int) -> Iterator[Cell[Estimate]]:
    subject = tree_subject(n, level, seed)
    for label, k in _top_k(n):
        yield cell(subject, Method("TopK", label, k, TopK(k), Local(), 1))
    for percent, used in zip(PERCENT, (10, 100, 200), strict=True):
        half = min(used, n // 2)
        yield cell(subject, Method("paper", f"{percent}%", 2 * half, TopAndSample(half, half), "paper", repeats))
        yield cell(subject, ours(n, percent, repeats, kept=2 * half))
