"""Sketches at the sizes that need them: the error of log Z by family, at the default settings.

On a GPU with 30,000 and 100,000 states, and a million; on a CPU with smaller twins.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from benchmarks.families import random_chain
from benchmarks.measure import Figure
from tailsum import LinearChain, Lookahead
from tailsum_studies.bench.measure import timed

STICKY = ("sticky a=1", "sticky a=1.5", "sticky a=2", "sticky a=1.5 e=3", "100 clusters")
# The largest RMSE in nats with many and with few states kept; None: not a goal.
GOALS: dict[str, tuple[float, float | None]] = {
    **dict.fromkeys(STICKY, (0.01, 0.05)),
    "independent s=1": (0.02, None),
    "independent s=3": (0.08, None),
    "independent s=5": (0.05, None),
    "factored s=3 e=3": (0.1, None),
    "heavy tails": (0.1, None),
    "left to right": (0.1, None),
    "two regimes": (0.1, None),
}


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def errors(chain: LinearChain, exact: Tensor, k: int, draws: int, proposal: Lookahead | None = None) -> Tensor:
    """Errors of log Z of independent sketches, drawn as one batch."""
    generator = torch.Generator(chain.device).manual_seed(1)
    many = LinearChain(chain.node_scores().expand(draws, *chain.node_shape, -1), chain.transition)
    return many.sketch(k, proposal=proposal, generator=generator).log_partition() - exact


@torch.no_grad()
def family_figures(draws: int = 8, length: int = 20) -> Iterator[Figure]:
    """Every family, with many and with few states kept."""
    sizes = ((30_000, 1000, 100), (100_000, 1000, 100)) if torch.cuda.is_available() else ((3000, 300, 30),)
    for n, many, few in sizes:
        for name, goals in GOALS.items():
            if name == "left to right" and n > 50_000:
                continue  # the exact sum of a function of pairs takes a table of all
            chain = random_chain(name, n, length, device())
            exact = chain.log_partition()
            for k, goal in zip((many, few), goals, strict=True):
                found, spent = timed(lambda k=k, chain=chain, exact=exact: errors(chain, exact, k, draws))
                error, worst = found.square().mean().sqrt().item(), found.abs().max().item()
                reached = goal is None or (error <= goal and worst <= 5 * goal)
                yield Figure(
                    f"{name}, N={n:,} K={k}: RMSE of log Z",
                    f"{error:.4f} nats (worst {worst:.3f}; {spent / draws:.2f} s each)",
                    "none" if goal is None else f"at most {goal:g}, worst at most {5 * goal:g}",
                    reached,
                )


@torch.no_grad()
def million_figures(n: int = 1_000_000, length: int = 10, draws: int = 4) -> Iterator[Figure]:
    """A million states, where each state has itself alone as a neighbour."""
    if not torch.cuda.is_available():
        return
    for name in ("factored s=3 e=3", "sticky a=1.5"):
        chain = random_chain(name, n, length, device())
        exact, whole = timed(chain.log_partition)
        found, spent = timed(lambda chain=chain, exact=exact: errors(chain, exact, 1000, draws))
        error = found.square().mean().sqrt().item()
        yield Figure(
            f"{name}, N={n:,} T={length} K=1000: RMSE of log Z",
            f"{error:.4f} nats (worst {found.abs().max():.3f}; {spent / draws:.1f} s each, exact {whole:.1f} s)",
            "at most 0.05",
            error <= 0.05,
        )


def refined_figures(k: int = 300, length: int = 20) -> Iterator[Figure]:
    """Entropy and the gradient in the emissions, plain and refined, on the sticky chains."""
    n = 30_000 if torch.cuda.is_available() else 3000
    for name in STICKY:
        chain = random_chain(name, n, length, device())
        with torch.no_grad():
            entropy, marginals = chain.entropy(), chain.marginals()
            small = chain.sketch(k, generator=torch.Generator(chain.device).manual_seed(1))
            refined = small.refine()
            found = [(small.entropy(), small.scatter(small.marginals())), (refined.entropy(), refined.marginals())]
        off = [abs(h - entropy).item() for h, _ in found]
        turned = [1 - torch.cosine_similarity(m.flatten(), marginals.flatten(), 0).item() for _, m in found]
        needed = off[0] > 0.01 or turned[0] > 1e-4
        yield Figure(
            f"{name}, N={n:,} K={k}: entropy / 1 - cosine of the gradient",
            f"plain {off[0]:.1e} / {turned[0]:.1e}, refined {off[1]:.1e} / {turned[1]:.1e}",
            "refined 10 x better, or plain below 0.01 / 1e-4",
            not needed or (10 * off[1] <= off[0] and 10 * turned[1] <= turned[0]),
        )


@torch.no_grad()
def choosing_figures(n: int = 30_000, k: int = 300, length: int = 20, batch: int = 4) -> Iterator[Figure]:
    """The time to choose, lists of neighbours included, against 512 landmarks alone, one after the other."""
    chain = random_chain("independent s=3", n, length, device())
    many = LinearChain(chain.node_scores().expand(batch, length, n), chain.transition)
    spent = {0: [], 1: []}
    for _ in range(4):
        for which, proposal in enumerate((Lookahead(512, neighbours=0), Lookahead())):
            spent[which].append(timed(lambda proposal=proposal: many.sketch(k, proposal=proposal))[1])
    before, after = (sorted(times)[1] for times in spent.values())
    yield Figure(
        f"choosing, N={n:,} K={k} T={length} B={batch}: default / 512 landmarks without neighbours",
        f"{after:.2f} / {before:.2f} s: {after / before:.2f}",
        "at most 0.7",
        after <= 0.7 * before,
    )
