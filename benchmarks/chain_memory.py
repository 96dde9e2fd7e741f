"""Resident memory of chains with very many states: `python -m benchmarks.chain_memory [KIND [N]]` prints a table.

KIND is "factored", "hmm" or "dense", a chain with a table of all pairs: then the table and its gradient are inputs and
results. Of two tables, `kl` makes a third, their difference, and copies on the way: it is left out.
"""

import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from benchmarks.measure import Figure
from benchmarks.resident import figure, grown
from tailsum import HMM, Factored, LinearChain, Optimal, estimate

KINDS = ("factored", "hmm", "dense")
LENGTH, BATCH, SIZE, SYMBOLS = 4, 2, 64, 10

Operation = Callable[[LinearChain, LinearChain], Any]  # of a model and another one to compare it with


def sketch(model: LinearChain) -> LinearChain:
    return model.sketch(min(200, model.n_states // 2))


def paths(model: LinearChain) -> Tensor:
    return torch.zeros(*model.batch_shape, model.n_nodes, dtype=torch.long)


def replicates(model: LinearChain, what: str) -> Tensor:
    return estimate(model, what, replicates=4, selection=Optimal(min(200, model.n_states // 2))).value


RECORDED: dict[str, Operation] = {
    "log_partition": lambda p, _: p.log_partition(),
    "marginals": lambda p, _: p.marginals().square(),
    "entropy": lambda p, _: p.entropy(),
    "kl": lambda p, q: p.kl(q),
    "cross_entropy": lambda p, q: p.cross_entropy(q),
    "expectation": lambda p, q: p.expectation(q),
    "max": lambda p, _: p.max(),
    "rsample": lambda p, _: p.rsample().weights.square(),
    "score": lambda p, _: p.score(paths(p)),
    "log_prob": lambda p, _: p.log_prob(paths(p)),
    "sketch.log_partition": lambda p, _: sketch(p).log_partition(),
    "sketch.entropy": lambda p, _: sketch(p).entropy(),
    "sketch.kl": lambda p, q: sketch(p).kl(q),
    "sketch.rsample": lambda p, _: sketch(p).rsample().weights.square(),
    "refine.log_partition": lambda p, _: sketch(p).refine().log_partition(),
    "refine.entropy": lambda p, _: sketch(p).refine().entropy(),
}
OPERATIONS: dict[str, Operation] = {
    **RECORDED,
    "argmax": lambda p, _: p.argmax(),
    "topk(5)": lambda p, _: p.topk(5),
    "sample((10,))": lambda p, _: p.sample((10,)),
    "sample_distinct(2)": lambda p, _: p.sample_distinct(2),
    "sketch.marginals": lambda p, _: sketch(p).scattered_marginals(),
    "sketch.topk(5)": lambda p, _: sketch(p).topk(5),
    "sketch.sample((10,))": lambda p, _: sketch(p).sample((10,)),
    "refine.marginals": lambda p, _: sketch(p).refine().marginals(),
    "estimate(log_partition)": lambda p, _: replicates(p, "log_partition"),
    "estimate(entropy)": lambda p, _: replicates(p, "entropy"),
}


def memory_figures(kind: str, n: int = 20_000) -> Iterator[Figure]:
    """The largest growth of a process, less the table budget and what it returns, for each operation."""
    for name in [*OPERATIONS, *(f"{name}, backward" for name in RECORDED)]:
        if kind != "dense" or not name.startswith("kl"):
            title = f"chain ({kind}) {name}, N={n:,} T={LENGTH} B={BATCH}"
            yield figure("benchmarks.chain_memory", title, n, (kind, n, name))


def measured(kind: str, name: str, n: int) -> tuple[int, float]:
    """The growth of this process less its results, in bytes, and seconds."""
    name, _, backward = name.partition(", ")
    for size in (50, n):  # the first loads what is loaded on first use
        model, leaves = _model(kind, size, 0, recorded=bool(backward))
        other = model.detach() if kind == "dense" else _model(kind, size, 1, recorded=False)[0]
        run = lambda model=model, other=other: OPERATIONS[name](model, other)  # noqa: E731
        found = grown(run, leaves, backward=bool(backward))
    return found


def _model(kind: str, n: int, seed: int, *, recorded: bool) -> tuple[LinearChain, list[Tensor]]:
    g = torch.Generator().manual_seed(seed)
    left, right = (torch.randn(n, SIZE, generator=g) / SIZE**0.25 for _ in range(2))
    if kind == "hmm":
        total = torch.cat([(rows @ right.mT).logsumexp(-1, keepdim=True) for rows in left.split(500)])
        left, right = torch.cat((left, -total), -1), torch.cat((right, torch.ones(n, 1)), -1)
        start, emission = torch.full((n,), -math.log(n)), torch.randn(n, SYMBOLS, generator=g).log_softmax(-1)
        leaves = [x.requires_grad_(recorded) for x in (start, emission, left, right)]
        seen = torch.randint(SYMBOLS, (BATCH, LENGTH), generator=g)
        return HMM(start, Factored(left, right), emission, seen), leaves
    pairs = [left @ right.mT] if kind == "dense" else [left, right]
    leaves = [x.requires_grad_(recorded) for x in (torch.randn(BATCH, LENGTH, n, generator=g), *pairs)]
    return LinearChain(leaves[0], leaves[1] if kind == "dense" else Factored(*leaves[1:])), leaves


if __name__ == "__main__":
    kind, n, name = (*sys.argv[1:], None, None, None)[:3]
    if kind and n and name:
        print(*measured(kind, name, int(n)))
    else:
        for each in KINDS if kind is None else (kind,):
            for found in memory_figures(each, int(n or 20_000)):
                print(f"{'ok  ' if found.reached else 'MISS'} {found.name}: {found.measured}", flush=True)
