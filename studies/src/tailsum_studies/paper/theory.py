"""What the paper proves (its Theorem 1 and appendix), predicted and measured: means and variances over many draws.

Models and vectors are the same at every run; only the draws vary. Replicates are a batch of identical models, so that
each is sketched on its own.
"""

import math
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from tailsum import (
    LinearChain,
    Local,
    LocalGlobal,
    Lookahead,
    Optimal,
    Propose,
    Selection,
    SpanTree,
    TopAndSample,
    Uniform,
)
from tailsum_studies.check import at_least
from tailsum_studies.paper.chains import hard_chain, paper_chain, paper_proposal
from tailsum_studies.paper.printed import printed_bias, printed_log_ratios
from tailsum_studies.paper.rows import Check
from tailsum_studies.paper.trees import paper_tree
from tailsum_studies.paper.variances import (
    WithoutReplacement,
    optimal_variance,
    partition_bias,
    partition_variance,
    sum_variance,
    tail_variance,
    weight_moments,
)

REPEATS = 10_000
BATCH = 1000  # replicates at a time: larger tables are slower
N_ENTRIES = 200  # of the vector whose tail is summed

Generator = torch.Generator | None


def checks(repeats: int = REPEATS, generator: Generator = None, step: Callable[[], None] = lambda: None) -> list[Check]:
    """Every statement; `step` is called after each function of `STATEMENTS`, for a progress bar."""
    at_least(2, repeats=repeats)
    rows: list[Check] = []
    for statement in STATEMENTS:
        rows += statement(repeats, generator)
        step()
    return rows


# Statements: each gives its checks.


def unbiased(repeats: int, generator: Generator) -> Iterator[Check]:
    """Theorem 1, `E[Z_hat] / Z = 1`, for the paper's selection and for `Optimal`, at K states kept."""
    chains, tree = _chains(), paper_tree(30, 4, generator=_seeded())
    (mild, _), (paper, _) = chains["mild chain, local"], chains["paper's chain and proposal"]
    lookahead, uniform = Lookahead(8, rounds=1, neighbours=0), Uniform()
    cases = {
        **{
            f"{name}, K1={top} K2={sampled}": (top + sampled, model, proposal, TopAndSample(top, sampled))
            for name, (model, proposal) in chains.items()
            for top, sampled in (((7, 1), (4, 4)) if model is paper else ((0, 16), (8, 8), (15, 1)))
        },
        "mild chain, lookahead, optimal": (8, mild, lookahead, Optimal(8)),
        "paper's chain, lookahead, optimal": (8, paper, lookahead, Optimal(8)),
        "paper's hypertree, uniform, K1=10 K2=10": (20, tree, uniform, TopAndSample(10, 10)),
        "paper's hypertree, uniform, K1=5 K2=15": (20, tree, uniform, TopAndSample(5, 15)),
        "paper's hypertree, uniform, optimal": (20, tree, uniform, Optimal(20)),
        "paper's hypertree, lookahead, optimal": (20, tree, lookahead, Optimal(20)),
    }
    for setting, (kept, model, proposal, selection) in cases.items():
        ratio = log_ratios(model, selection, proposal, repeats, generator).exp()
        yield Check("unbiased", setting, float(kept), 1.0, *_mean(ratio))


def partition(repeats: int, generator: Generator) -> Iterator[Check]:
    """The partition estimate of the paper's selection at K2 draws: its variance, and what becomes of it in log space.

    "partition variance" is of `Z_hat / Z`, predicted exactly. "lower bound" is `E[log Z_hat] - log Z`, predicted to
    second order, minus half the variance of `Z_hat / Z`; "log variance" is the variance of `log Z_hat`, predicted to first
    order, the variance of `Z_hat / Z` itself (the delta method). Both expansions hold where that variance is small: the
    more draws, the better. So the logarithm reduces a variance only in that it divides by Z squared.
    """
    chains, top = _chains(), 5
    mild = product(("mild chain, local", "mild chain, local and global"), (4, 8, 16, 32))
    for name, sampled in (*mild, *product(("paper's chain and proposal",), (1, 4, 16))):
        chain, proposal = chains[name]
        log_q = proposal(replicated(chain, 1))[0]
        variance = partition_variance(chain, weight_moments(log_q, top, sampled))
        log_ratio = log_ratios(chain, TopAndSample(top, sampled), proposal, repeats, generator)
        where = f"{name}, K1={top}", float(sampled)
        yield Check("partition variance", *where, variance, *_variance(log_ratio.exp()))
        yield Check("lower bound", *where, -variance / 2, *_mean(log_ratio))
        yield Check("log variance", *where, variance, *_variance(log_ratio))


def tail(repeats: int, generator: Generator) -> Iterator[Check]:
    """The variance of the tail estimator `a_i / q_i` (one draw), for several proposals, at K1 states kept for certain."""
    for name, top in product(tail_proposals(), (0, 10, 50)):
        yield Check("tail variance", name, float(top), *_tail_check(name, top, 1, repeats, generator))


def many_draws(repeats: int, generator: Generator) -> Iterator[Check]:
    """The corollary: with K2 draws the variance of the tail estimator is one K2th."""
    for name, sampled in product(("uniform", "too flat"), (1, 2, 4, 8, 16, 32, 64)):
        yield Check("1/K2", f"{name}, K1=10", float(sampled), *_tail_check(name, 10, sampled, repeats, generator))


def same_number(repeats: int, generator: Generator) -> Iterator[Check]:
    """The variance of a sum over K states kept by the same proposal: the paper's selection, split in two ways, and ours."""
    a = long_tail()
    for name, kept in product(("noisy", "too flat"), (16, 32, 64)):
        log_q = tail_proposals()[name].log()
        one, half = ((top, kept - top) for top in (kept - 1, kept // 2))
        for how, predicted, selection in (
            ("top and sample, K2=1", sum_variance(a, log_q, *one), TopAndSample(*one)),
            ("top and sample, K1=K2", sum_variance(a, log_q, *half), TopAndSample(*half)),
            ("optimal", optimal_variance(a, log_q, kept), Optimal(kept)),
        ):
            sums = weighted_sums(a, log_q, selection, repeats, generator)
            yield Check("same K", f"{name}, {how}", float(kept), predicted, *_variance(sums))


def without_replacement(repeats: int, generator: Generator) -> Iterator[Check]:
    """How biased `E[Z_hat] / Z` is where draws without replacement are weighted as if with: N = 30, K1 = 1, K2 draws.

    One draw is unbiased, and so is the uniform proposal. Otherwise a likely state, which can be drawn no more than once,
    has a mean weight below one, and an unlikely state one above: too low where the sum is more peaked than the proposal.
    """
    chains = _chains(30)
    biased = product(("mild chain, local and global", "paper's chain and proposal"), (1, 5, 10, 20))
    for name, sampled in (("mild chain, uniform", 20), *biased):
        (chain, proposal), selection = chains[name], WithoutReplacement(1, sampled)
        ratio = log_ratios(chain, selection, proposal, repeats, generator).exp()
        predicted = partition_bias(chain, selection.mean_weight(proposal(replicated(chain, 1))[0]))
        yield Check("without replacement", name, float(sampled), predicted, *_mean(ratio))


def as_printed(repeats: int, generator: Generator) -> Iterator[Check]:
    """`E[Z_hat] / Z` of Algorithm 2 as printed, without its cross terms: a hypertree of 200 states, uniform, K1 = K2 = K / 2.

    At the paper's size (2,000 states, 15 words, K1 = K2 = 200) the prediction is 2.5 to 2.9 nats below log Z.
    """
    tree = paper_tree(200, 6, generator=_seeded())
    for half in (20, 30, 40, 50, 70, 100):
        chunks = [min(BATCH, repeats - start) for start in range(0, repeats, BATCH)]
        ratio = torch.cat([printed_log_ratios(tree, half, half, count, generator) for count in chunks]).exp()
        yield Check(
            "as printed", "paper's hypertree, uniform", 2.0 * half, math.exp(printed_bias(tree, half)), *_mean(ratio)
        )


STATEMENTS = (unbiased, partition, tail, many_draws, same_number, without_replacement, as_printed)


# What is measured.


def replicated(model: LinearChain | SpanTree, count: int) -> LinearChain | SpanTree:
    """A batch of so many copies, in double precision: each is sketched on its own."""
    scores = model.node_scores().double()
    scores = scores.expand(count, *scores.shape)
    if isinstance(model, SpanTree):
        return SpanTree(scores)
    return LinearChain(scores, model.pair_scores().to(torch.float64))


@torch.no_grad()
def log_ratios(
    model: LinearChain | SpanTree,
    selection: Selection,
    proposal: Propose,
    repeats: int,
    generator: Generator = None,
) -> Float64[Tensor, " {repeats}"]:
    """`log Z_hat - log Z` of so many independent sketches."""
    how: dict[str, Any] = {"proposal": proposal, "selection": selection, "generator": generator}
    wholes = (replicated(model, min(BATCH, repeats - start)) for start in range(0, repeats, BATCH))
    return torch.cat([whole.sketch(**how).log_partition() for whole in wholes]) - replicated(model, 1).log_partition()


def weighted_sums(
    a: Float64[Tensor, " n"],
    log_q: Float64[Tensor, " n"],
    selection: Selection,
    repeats: int,
    generator: Generator = None,
) -> Float64[Tensor, " {repeats}"]:
    """So many independent estimates of the sum of a."""
    subset = selection(log_q.expand(repeats, -1), generator)
    return (a[subset.index] * subset.log_weight.exp()).sum(-1)


def _mean(values: Float64[Tensor, " r"]) -> tuple[float, float]:
    """The mean and its standard error, which is at least what rounding leaves uncertain."""
    error = values.std() / math.sqrt(len(values))
    return values.mean().item(), max(error.item(), 1e-12)


def _variance(values: Float64[Tensor, " r"]) -> tuple[float, float]:
    """The variance and its standard error, from the fourth moment; at least what rounding leaves uncertain."""
    count, variance = len(values), values.var()
    fourth = (values - values.mean()).pow(4).mean()
    error = ((fourth - variance.square() * (count - 3) / (count - 1)) / count).clamp_(min=0).sqrt()
    return variance.item(), max(error.item(), 1e-16)


# What it is measured on.


def _chains(n_states: int = 50) -> dict[str, tuple[LinearChain, Propose]]:
    """Chains of so many states, and a proposal for each."""
    mild, paper = mild_chain(n_states), paper_chain(n_states, 10, generator=_seeded())
    return {
        "mild chain, uniform": (mild, Uniform()),
        "mild chain, local": (mild, Local()),
        "mild chain, local and global": (mild, LocalGlobal()),
        "paper's chain and proposal": (paper.chain, paper_proposal(paper.states.double())),
    }


def mild_chain(n_states: int = 50) -> LinearChain:
    """A chain on which every proposal comes close enough for variances to be measured."""
    return hard_chain(n_states, 0.5, 1.0, length=5, size=16, generator=_seeded())


def long_tail() -> Float64[Tensor, " n"]:
    """A vector that falls with the power 1.2 of the rank; its sum is one."""
    a = torch.arange(1, N_ENTRIES + 1, dtype=torch.float64) ** -1.2
    return a / a.sum()


def tail_proposals() -> dict[str, Float64[Tensor, " n"]]:
    """Proposals for `long_tail`: that of no variance, the uniform one, and what lies between and beyond."""
    a = long_tail()
    noise = torch.randn(N_ENTRIES, generator=_seeded(), dtype=torch.float64) * 0.5
    return {
        "proportional": a,
        "noisy": a * noise.exp(),
        "too flat": a.sqrt(),
        "too peaked": a**1.5,
        "uniform": torch.ones_like(a),
    }


def _tail_check(name: str, top: int, sampled: int, repeats: int, generator: Generator) -> list[float]:
    """Predicted, measured and standard error; the `top` largest entries are kept whatever the proposal says of them."""
    a, q = long_tail(), tail_proposals()[name]
    log_q = torch.cat((q.new_full((top,), 1e3), q[top:].log()))
    sums = weighted_sums(a, log_q, TopAndSample(top, sampled), repeats, generator)
    return [tail_variance(a[top:], q[top:] / q[top:].sum(), sampled), *_variance(sums)]


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)
