"""The drop-in for torch-struct beside torch-struct itself: seconds and peak memory of the same script, in one run."""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch_struct
from torch import Tensor

import tailsum.compat.torch_struct as drop_in
from benchmarks.measure import Figure, seconds
from tailsum import PeakMemory
from tailsum_studies.bench.measure import timed

Make = Callable[[Any], Any]  # from one of the two modules to a distribution


@dataclass(frozen=True)
class Measured:
    """Seconds of a property, tensors alive at once in bytes, and its value."""

    seconds: float
    peak: int
    value: Tensor


def measured(make: Make, module: Any, operation: str, repeats: int) -> Measured:
    def run() -> Tensor:
        found = getattr(make(module), operation)
        return (found if isinstance(found, Tensor) else found[-1]).detach()

    with PeakMemory() as memory:
        value, first = timed(run)
    # A run of many seconds is its own measure.
    return Measured(seconds(run, repeats) if first < 5 else timed(run)[1], memory.peak, value)


def beside(name: str, make: Make, operations: tuple[str, ...], faster: float, smaller: float) -> Iterator[Figure]:
    """Both modules on the same input; a figure counts only if their values agree."""
    for operation in operations:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch-struct's distributions, which have no constraints
            theirs = measured(make, torch_struct, operation, 1)
        ours = measured(make, drop_in, operation, 5)
        torch.testing.assert_close(ours.value, theirs.value, rtol=1e-4, atol=1e-4)
        time, memory = theirs.seconds / ours.seconds, theirs.peak / ours.peak
        yield Figure(
            f"{name}, {operation}: times faster than torch-struct, and times less memory",
            f"{short(time)} and {short(memory)} ({1e3 * ours.seconds:.1f} ms against {1e3 * theirs.seconds:.0f}; "
            f"{ours.peak / 2**20:.1f} MiB against {theirs.peak / 2**20:.0f})",
            f"at least {faster:g} and {smaller:g}",
            time >= faster and memory >= smaller,
        )


def short(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.1f}"


def scores(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def chain_figures(batch: int = 2, length: int = 16, size: int = 256) -> Iterator[Figure]:
    """A chain whose scores differ at every step."""
    pairs = scores(batch, length - 1, size, size)
    name = f"LinearChainCRF, B={batch} N={length} C={size}"
    yield from beside(name, lambda m: m.LinearChainCRF(pairs.clone()), ("partition", "marginals"), 20, 20)


def ordinary_figures(batch: int = 16, length: int = 30) -> Iterator[Figure]:
    """The other classes at sizes that people use."""
    lengths = torch.arange(length, length - batch, -1)
    every = ("partition", "marginals", "argmax", "entropy")
    pairs, segments = scores(batch, length - 1, 20, 20), scores(4, length - 1, 6, 8, 8)
    arcs, spans = scores(batch, length, length), scores(batch, length, length, 20)
    grammar = scores(batch, 20, 20), scores(batch, 10, 30, 30), scores(batch, 10)
    transition, emission, init, seen = (
        scores(64, 64),
        scores(100, 64),
        scores(64),
        torch.arange(480).reshape(16, 30) % 100,
    )
    # Arcs must require gradients there, or it writes into a view of a leaf.
    makes: dict[str, Make] = {
        f"LinearChainCRF, B={batch} N={length} C=20": lambda m: m.LinearChainCRF(pairs.clone(), lengths),
        "HMM, B=16 N=30 C=64": lambda m: m.HMM(transition, emission, init, seen),
        f"SemiMarkovCRF, B=4 N={length} K=6 C=8": lambda m: m.SemiMarkovCRF(segments.clone()),
        f"DependencyCRF, B={batch} N={length}": lambda m: m.DependencyCRF(arcs.clone().requires_grad_(), lengths),
        f"TreeCRF, B={batch} N={length} NT=20": lambda m: m.TreeCRF(spans.clone(), lengths),
        f"SentCFG, B={batch} N=20 NT=10 T=20": lambda m: m.SentCFG(tuple(x.clone() for x in grammar)),
    }
    for name, make in makes.items():
        # Small charts take milliseconds, and clocks of a busy machine differ by a third; an argmax of arcs needs as much memory.
        faster, smaller = {"D": (1.5, 0.8), "T": (0.8, 1.0)}.get(name[0], (1.0, 1.0))
        yield from beside(name, make, every, faster, smaller)
