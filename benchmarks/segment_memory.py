"""Resident memory of segmentations with very many states: `python -m benchmarks.segment_memory` prints a table."""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from benchmarks.measure import Figure
from benchmarks.resident import figure, grown
from tailsum import Durations, Factored, SemiMarkov

FORMS = ("table", "durations")

Operation = Callable[[SemiMarkov, SemiMarkov], Any]  # of a model and another one to compare it with
RECORDED: dict[str, Operation] = {
    "log_partition": lambda model, _: model.log_partition(),
    "marginals": lambda model, _: model.marginals().square(),
    "label_marginals": lambda model, _: model.label_marginals().square(),
    "entropy": lambda model, _: model.entropy(),
    "kl": lambda model, other: model.kl(other),
    "cross_entropy": lambda model, other: model.cross_entropy(other),
    "expectation": lambda model, other: model.expectation(other),
    "max": lambda model, _: model.max(),
    "rsample": lambda model, _: model.rsample(0.5).weights.square(),
    "sketch(100)": lambda model, _: model.sketch(100).entropy(),
}
OPERATIONS: dict[str, Operation] = {
    **RECORDED,
    "argmax": lambda model, _: model.argmax(),
    "topk(3)": lambda model, _: model.topk(3),
    "sample((10,))": lambda model, _: model.sample((10,)),
    "sample_distinct(3)": lambda model, _: model.sample_distinct(3),
}


def memory_figures(
    n: int = 20_000, longest: int = 4, length: int = 6, batch: int = 2, size: int = 32, form: str = "table"
) -> Iterator[Figure]:
    """The largest growth of a process, less the table budget and what it returns, for each operation."""
    sizes = (n, longest, length, batch, size)
    for name in [*OPERATIONS, *(f"{name}, backward" for name in RECORDED)]:
        title = f"SemiMarkov ({form}) {name}, N={n:,} D={longest} T={length} B={batch}"
        yield figure("benchmarks.segment_memory", title, n, (form, name, *sizes))


def measured(form: str, name: str, sizes: tuple[int, ...]) -> tuple[int, float]:
    """The growth of this process less its results, in bytes, and seconds."""
    name, _, backward = name.partition(", ")
    _run(form, name, bool(backward), (20, *sizes[1:]))  # loads what is loaded on first use
    return _run(form, name, bool(backward), sizes)


def _run(form: str, name: str, backward: bool, sizes: tuple[int, ...]) -> tuple[int, float]:
    leaves, other = _leaves(form, sizes, 0), _model(form, _leaves(form, sizes, 1))
    model = _model(form, [x.requires_grad_(backward) for x in leaves])
    return grown(lambda: OPERATIONS[name](model, other), leaves, backward=backward)


def _leaves(form: str, sizes: tuple[int, ...], seed: int) -> list[Tensor]:
    n, longest, length, batch, size = sizes
    g = torch.Generator().manual_seed(seed)
    own = [(batch, length, longest, n)] if form == "table" else [(batch, length, n), (longest, n)]
    return [torch.randn(shape, generator=g).mul_(0.5) for shape in (*own, (n, size), (n, size))]


def _model(form: str, leaves: list[Tensor]) -> SemiMarkov:
    *own, left, right = leaves
    return SemiMarkov(own[0] if form == "table" else Durations(*own), Factored(left, right))


if __name__ == "__main__":
    if len(sys.argv) > 2:
        print(*measured(sys.argv[1], sys.argv[2], tuple(map(int, sys.argv[3:]))))
    else:
        for form in FORMS:
            for found in memory_figures(form=form):
                print(f"{'ok  ' if found.reached else 'MISS'} {found.name}: {found.measured}", flush=True)
