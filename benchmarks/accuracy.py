"""How far sketched answers are from exact ones, on the paper's chains and on the harder suite."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from benchmarks.measure import Figure, Replicates, replicate
from tailsum import LinearChain, Optimal, TopAndSample
from tailsum_studies.paper.chains import ADAM_STEPS, HARD_SETTINGS, hard_chain, paper_chain, paper_proposal


def errors(model: LinearChain, found: Replicates) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        return found.log_partition - model.log_partition(), found.entropy - model.entropy()


def mean_square(error: Tensor) -> float:
    return error.square().mean().item()


def paper_figures(n_states: int = 2000, repeats: int = 100) -> Iterator[Figure]:
    """The paper's recipe: mean square errors at 1% and 10% of the states."""
    for level in ADAM_STEPS:
        generator = torch.Generator().manual_seed(0)
        made = paper_chain(n_states, level=level, generator=generator)
        for share, log_z_goal, entropy_goal in ((0.01, 1e-4, 0.3), (0.1, 2e-6, 0.01)):
            k = round(share * n_states)
            theirs = replicate(made.chain, repeats, TopAndSample(k - 1, 1), paper_proposal(made.states), generator)
            ours = replicate(made.chain, repeats, Optimal(k), generator=generator)
            goals = (log_z_goal, entropy_goal)
            for name, error, other, goal in zip(
                ("log Z", "entropy"), errors(made.chain, ours), errors(made.chain, theirs), goals, strict=True
            ):
                value = mean_square(error)
                yield Figure(
                    f"paper's chain, {level}, K={share:.0%}: MSE of {name}",
                    f"{value:.1e} (paper's method {mean_square(other):.1e})",
                    f"at most {goal:.0e}",
                    value <= goal,
                )


def headline_figures(n_states: int = 2000, repeats: int = 400) -> Iterator[Figure]:
    """The mean square error of log Z, ours over that of the paper's method at its best split of the kept states.

    At equal K; and at equal time, in which several of its sketches, the means of their sums, stand against one of ours.
    """
    k = n_states // 10
    for level in ADAM_STEPS:
        generator = torch.Generator().manual_seed(0)
        made = paper_chain(n_states, level=level, generator=generator)
        with torch.no_grad():
            exact = made.chain.log_partition()
        ours = replicate(made.chain, repeats, Optimal(k), generator=generator)
        splits = {}
        for sampled in (1, k // 10, k // 4, k // 2, 3 * k // 4):
            selection = TopAndSample(k - sampled, sampled)
            found = replicate(made.chain, repeats, selection, paper_proposal(made.states), generator)
            splits[sampled] = mean_square(found.log_partition - exact), found
        best = min(splits, key=lambda sampled: splits[sampled][0])
        error, theirs = splits[best]
        together = max(1, round(ours.seconds / theirs.seconds))
        log_z = theirs.log_partition[: repeats // together * together].reshape(-1, together)
        averaged = mean_square(log_z.logsumexp(1) - math.log(together) - exact)
        own = mean_square(ours.log_partition - exact)
        yield Figure(
            f"paper's chain, {level}, N={n_states:,} K=10%: MSE of log Z, the paper's method at its best split over ours",
            f"{error / own:.1e} at equal K ({k - best} + {best}: {error:.1e}; {k - 1} + 1: {splits[1][0]:.1e}; ours {own:.1e}), "
            f"{averaged / own:.1e} at equal time ({together} sketches)",
            "at least 10",
            averaged >= 10 * own,
        )


def hard_figures(n_states: int = 2000, repeats: int = 24) -> Iterator[Figure]:
    """The harder suite: root mean square error of log Z in nats."""
    for share, goal, most in ((0.01, 0.5, 0.15), (0.1, 0.15, 0.05)):
        reached = []
        for transition, emission in HARD_SETTINGS:
            generator = torch.Generator().manual_seed(0)
            model = hard_chain(n_states, transition, emission, generator=generator)
            found = replicate(model, repeats, Optimal(round(share * n_states)), generator=generator)
            log_z, entropy = (mean_square(e) ** 0.5 for e in errors(model, found))
            reached.append(log_z <= most)
            yield Figure(
                f"harder suite, s={transition:g} e={emission:g}, K={share:.0%}: RMSE of log Z",
                f"{log_z:.4f} (entropy {entropy:.3f}; {found.seconds:.2f} s)",
                f"at most {goal:g}",
                log_z <= goal,
            )
        yield Figure(
            f"harder suite, K={share:.0%}: how many at most {most:g}", f"{sum(reached)} of 5", "4", sum(reached) >= 4
        )
