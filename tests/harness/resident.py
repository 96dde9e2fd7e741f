"""What each operation of a chain adds to the memory of a process, tensors or not, beside its results.

`python -m harness.resident KIND N [OPERATION ..]` prints it as JSON, in multiples of a table of all pairs of states. Each
operation runs with few states first, so that code that is loaded only then does not count. Linux only.
"""

import ctypes
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import tailsum as ts
from tailsum.numerics import tiles as table

BATCH, LENGTH, SIZE, BUDGET = 8, 3, 8, 16 << 20
TILE, SEARCH_TILE = 1 << 18, 1 << 21  # a small one; and one with which the heap keeps what lies between small results


def back(value: Tensor) -> None:
    value.sum().backward()


def sketch(chain: ts.LinearChain) -> ts.LinearChain:
    return chain.sketch(20)


Operation = Callable[[ts.LinearChain, ts.LinearChain], Any]
OPERATIONS: dict[str, Operation] = {
    "argmax": lambda p, _: p.argmax(),
    "topk": lambda p, _: p.topk(2),
    "log_partition, backward": lambda p, _: back(p.log_partition()),
    "marginals": lambda p, _: p.marginals(),
    "marginals, backward": lambda p, _: back(p.marginals().square()),
    "entropy, backward": lambda p, _: back(p.entropy()),
    "sample": lambda p, _: p.sample((3,)),
    "rsample": lambda p, _: p.rsample(),
    "kl, backward": lambda p, q: back(p.kl(q)),
    "cross_entropy, backward": lambda p, q: back(p.cross_entropy(q)),
    "expectation": lambda p, q: p.expectation(q),
    "sketch": lambda p, _: sketch(p),
    "sketch, entropy, backward": lambda p, _: back(sketch(p).entropy()),
    "refine": lambda p, _: sketch(p).refine().log_partition(),
    "estimate": lambda p, _: ts.estimate(p, "log_partition", replicates=2, selection=ts.Optimal(20)),
}
FEW = ("argmax", "topk", "entropy, backward", "sketch", "refine", "estimate")
NEED_TABLES = {"dense": {"kl, backward"}}  # the difference of two tables is a third
SEARCHES = {"argmax", "topk"}  # which come first: what others leave of the heap changes what they take


def chain(kind: str, n: int) -> tuple[ts.LinearChain, list[Tensor]]:
    def leaf(*shape: int) -> Tensor:
        return torch.randn(shape).requires_grad_()

    initial, left, right = leaf(n), leaf(n, SIZE), leaf(n, SIZE)
    if kind == "hmm":
        with torch.no_grad():
            total = torch.cat([(rows @ right.mT).logsumexp(-1, keepdim=True) for rows in left.split(500)])
            left, right = torch.cat((left, -total), -1), torch.cat((right, torch.ones(n, 1)), -1)
            start, emission = initial.log_softmax(-1), leaf(n, 5).log_softmax(-1)
        leaves = [x.requires_grad_() for x in (start, emission, left, right)]
        return ts.HMM(start, ts.Factored(left, right), emission, torch.randint(5, (BATCH, LENGTH))), leaves
    leaves = [leaf(BATCH, LENGTH, n), left, right]
    if kind == "dense":
        leaves = [leaves[0], torch.randn(n, n).requires_grad_()]
        return ts.LinearChain(*leaves), leaves
    return ts.LinearChain(leaves[0], ts.Factored(left, right)), leaves


def status(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


def growth(run: Callable[[], Any], leaves: list[Tensor]) -> int:
    """Bytes at the peak, beyond those before, gradients and the table budget; other results are small."""
    for leaf in leaves:
        leaf.grad = None
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # sets the peak to what there is now
    before = status("VmRSS")
    run()
    gradients = sum(x.grad.nbytes for x in leaves if x.grad is not None)
    return status("VmHWM") - before - gradients - BUDGET


def measured(kind: str, n: int, names: list[str]) -> Iterator[tuple[str, float]]:
    torch.manual_seed(0)
    (few, _), (p, leaves) = chain(kind, 60), chain(kind, n)
    few_too, q = few.detach(), p.detach() if kind == "dense" else chain(kind, n)[0].detach()
    for name in names or [name for name in OPERATIONS if name not in NEED_TABLES.get(kind, ())]:
        operation = OPERATIONS[name]
        table._TILE["cpu"] = SEARCH_TILE if name in SEARCHES else TILE
        with ts.table_budget(0):
            operation(few, few_too)
        with ts.table_budget(BUDGET):
            yield name, growth(lambda operation=operation: operation(p, q), leaves) / (4 * n * n)


if __name__ == "__main__":
    json.dump(
        {name: round(size, 3) for name, size in measured(sys.argv[1], int(sys.argv[2]), sys.argv[3:])}, sys.stdout
    )
