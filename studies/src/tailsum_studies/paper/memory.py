"""Cells of what a training step costs: seconds and memory of the gradient of log Z + entropy, in full and sketched.

The paper claims "memory complexity as small as one percent". What can be saved depends on where the scores come from. A
table of transition scores that is itself a parameter has a gradient as large as itself, whatever is summed. Scores that are
made from embeddings, or by a function, need no table: then a sketch computes those of its K states alone. The parameters
here are embeddings `[N, d]` of states, `[T, d]` of words and `[T-1, d]` of steps, or a table.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float
from torch import Tensor

from tailsum import Dense, Factored, LinearChain, LocalGlobal, PeakMemory, Potential, Scored, table_budget
from tailsum_studies.paper import cells
from tailsum_studies.paper.cells import Cell, Method, Step, seeded
from tailsum_studies.paper.rows import StepCost

LENGTH, SIZE = 10, 50  # as the paper's chains
PERCENT = (1, 10)
TIMES = (0.125, 0.25, 0.5, 1.0, 2.0)  # the numbers of states, over the one that is asked for
MOST = 5 << 30  # bytes: what is expected to take more is left out
COPIES = 9  # of the table of all transition scores, at most, in an exact step

Parameters = dict[str, Tensor]
Loss = Callable[[Parameters], Tensor]


class Source(NamedTuple):
    """Where transition scores come from: how many tables of all pairs they stand for, and how they are made."""

    name: str
    tables: int
    is_table: bool
    potential: Callable[[Parameters], Potential]


def memory(n: int, seed: int) -> Iterator[Cell[StepCost]]:
    """Every way to take a step, for each source of scores, up to twice the number of states that is asked for."""
    for source in SOURCES:
        for times in TIMES:
            states = max(4, int(n * times))
            full = COPIES * source.tables * states**2 * 4 <= MOST
            if full or not source.is_table:
                for method, label, kept, loss in _losses(source, states, full):
                    yield _cell(source, states, seed, method, label, kept, loss)


def _by_steps(p: Parameters) -> Factored:
    return Factored(p["from"] * p["steps"][:, None], p["to"])


def _by_function(p: Parameters) -> Scored:
    """A function that is no inner product: each step scales the embeddings, and a softplus follows."""
    n = len(p["from"])

    def score(i: Tensor, j: Tensor, step: Tensor) -> Tensor:
        left, right = p["from"][i[..., 0]] * step[..., 0, :], p["to"][j[..., 0, :]]
        return F.softplus(left @ right.mT)

    return Scored(score, n, n, p["steps"])


SOURCES = (
    Source("shared, a table", 1, True, lambda p: Dense(p["table"])),
    Source("shared, from embeddings", 1, False, lambda p: Factored(p["from"], p["to"])),
    Source("per step, a table", LENGTH - 1, True, lambda p: Dense(p["table"])),
    Source("per step, from embeddings", LENGTH - 1, False, _by_steps),
    Source("per step, by a function", LENGTH - 1, False, _by_function),
)


def parameters(source: Source, n: int, generator: torch.Generator) -> Parameters:
    """Random parameters, by which scores have a deviation of about one."""
    shapes: dict[str, tuple[int, ...]] = {"words": (LENGTH, SIZE), "states": (n, SIZE)}
    if source.is_table:
        shapes["table"] = (n, n) if source.tables == 1 else (source.tables, n, n)
    else:
        shapes |= {"from": (n, SIZE), "to": (n, SIZE)}
        shapes |= {"steps": (source.tables, SIZE)} if source.tables > 1 else {}
    root: float = SIZE**-0.25
    scale = {name: 1.0 if name in ("table", "steps") else root for name in shapes}
    return {name: torch.randn(size, generator=generator) * scale[name] for name, size in shapes.items()}


def chain_of(source: Source, p: Parameters) -> LinearChain:
    """The chain that the parameters make."""
    return LinearChain(Factored(p["words"], p["states"]), source.potential(p))


# Ways to compute the loss, log Z + entropy.


def by_autograd(node: Float[Tensor, "T N"], table: Float[Tensor, "*T N N"]) -> Float[Tensor, ""]:
    """As the authors do: the recursions of log Z and entropy in log space, everything recorded for the backward pass."""
    alpha, entropy = node[0], torch.zeros_like(node[0])
    for t in range(1, len(node)):
        joint = alpha[:, None] + (table if table.dim() == 2 else table[t - 1])
        total = joint.logsumexp(0)
        chance = joint - total
        entropy = ((entropy[:, None] - chance) * chance.exp()).sum(0)
        alpha = total + node[t]
    log_z = alpha.logsumexp(0)
    chance = alpha - log_z
    return log_z + ((entropy - chance) * chance.exp()).sum()


def _losses(source: Source, n: int, full: bool) -> Iterator[tuple[str, str, int, Loss]]:
    """The name of each way, the share and number of states kept, and the loss from parameters."""

    def recorded(p: Parameters) -> Tensor:
        return by_autograd(p["words"] @ p["states"].T, source.potential(p).block())

    def exact(p: Parameters) -> Tensor:
        chain = chain_of(source, p)
        return chain.log_partition() + chain.entropy()

    if full:
        yield "autograd", "all", n, recorded
        yield "exact", "all", n, exact
    if isinstance(source.potential(parameters(source, 2, seeded(0, ""))), Factored):
        yield "exact, streamed", "all", n, exact
    for percent in PERCENT:
        k = cells.share_of(n, percent)
        paper, own = cells.baselines(n, percent, 1)[1], cells.ours(n, percent, 1)
        yield "paper", paper.label, k, _sketched(source, paper, refined=False)
        yield "tailsum", own.label, k, _sketched(source, own, refined=False)
        yield "tailsum, refined", own.label, k, _sketched(source, own, refined=True)


def _sketched(source: Source, method: Method, refined: bool) -> Loss:
    proposal = LocalGlobal() if method.proposal == "paper" else method.proposal

    def loss(p: Parameters) -> Tensor:
        assert not isinstance(proposal, str)
        small = chain_of(source, p).sketch(selection=method.selection, proposal=proposal)
        return small.log_partition() + (small.refine() if refined else small).entropy()

    return loss


# Measuring.


def _cell(source: Source, n: int, seed: int, method: str, label: str, kept: int, loss: Loss) -> Cell[StepCost]:
    text = f"memory-{source.name}-n{n}-{method}-{label}-s{seed}".replace("%", "pct")
    name = "".join(c if c.isalnum() or c in "-." else "_" for c in text)

    def run(step: Step) -> list[StepCost]:
        given = parameters(source, n, seeded(seed, f"{source.name} {n}"))
        with table_budget(0) if "streamed" in method else contextlib.nullcontext():
            found = measure(loss, given, seeded(seed, name).initial_seed())
        step()
        size = 2 * sum(x.numel() * x.element_size() for x in given.values())
        return [StepCost(source.name, n, method, label, kept, *found, size)]

    return Cell(name, StepCost, 1, run)


def measure(loss: Loss, given: Parameters, seed: int, enough: float = 1.0) -> tuple[float, int]:
    """The seconds of the fastest of some steps, and the bytes of all tensors alive at its peak, parameters included."""
    with torch.random.fork_rng([]):
        torch.default_generator.manual_seed(seed)
        with PeakMemory() as memory:
            step(loss, given)
        seconds = list[float]()
        while not seconds or (len(seconds) < 5 and sum(seconds) < enough):
            start = time.perf_counter()
            step(loss, given)
            seconds.append(time.perf_counter() - start)
    return round(min(seconds), 6), memory.peak


def step(loss: Loss, given: Parameters) -> Parameters:
    """The gradient in all parameters, which are copied first so that they count as memory of the step."""
    own = {name: x.clone().requires_grad_() for name, x in given.items()}
    value = loss(own)
    found = torch.autograd.grad(value, list(own.values()), allow_unused=True, materialize_grads=True)
    assert math.isfinite(value.item())
    return dict(zip(own, found, strict=True))
