"""What the paper proves (its Theorem 1 and appendix), predicted and measured: means and variances over many draws.

Models and vectors are the same at every run; only the draws vary. Replicates are a batch of identical models, so that
each is sketched on its own.

Of the variance of the whole partition estimate the paper gives orders of magnitude, and they do not hold as printed:
`O(prod_t 1/K2 ...)` falls like `K2^-T`, where the variance falls like `1 / K2`; and in log space
`O(sum_t log 1/K2 ...)` is negative for many draws. What is predicted here is exact, by a recursion: `partition_variance`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float, Float64
from torch import Tensor

from tailsum.apps.paper.chains import hard_chain, paper_chain, paper_proposal
from tailsum.apps.paper.rows import Check
from tailsum.apps.paper.trees import paper_tree
from tailsum.chains.linear_chain import LinearChain
from tailsum.numerics.check import at_least
from tailsum.sketch.model import Propose
from tailsum.sketch.proposal import Local, LocalGlobal, Lookahead, Uniform
from tailsum.sketch.selection import Optimal, Selection, Subset, TopAndSample, inclusion_probability
from tailsum.trees.span_tree import SpanTree

REPEATS = 10_000
BATCH = 1000  # replicates at a time: larger tables are slower
N_ENTRIES = 200  # of the vector whose tail is summed


def checks(
    repeats: int = REPEATS, generator: torch.Generator | None = None, step: Callable[[], None] = lambda: None
) -> list[Check]:
    """Every statement; `step` is called after each function of `STATEMENTS`, for a progress bar."""
    at_least(2, repeats=repeats)
    rows: list[Check] = []
    for statement in STATEMENTS:
        rows += statement(repeats, generator)
        step()
    return rows


def deviation(check: Check) -> float:
    """How many standard errors lie between what was predicted and what was measured.

    >>> deviation(Check("unbiased", "a chain", 1.0, predicted=1.0, measured=1.5, standard_error=0.25))
    2.0
    """
    return (check.measured - check.predicted) / check.standard_error


# Statements: each gives its checks.


def unbiased(repeats: int, generator: torch.Generator | None) -> list[Check]:
    """Theorem 1, `E[Z_hat] / Z = 1`, for the paper's selection and for `Optimal`, at K states kept."""
    rows = []
    for case in _unbiased_cases():
        ratio = log_ratios(case.model, case.selection, case.proposal, repeats, generator).exp()
        rows.append(Check("unbiased", case.setting, float(case.kept), 1.0, *_mean(ratio)))
    return rows


def partition(repeats: int, generator: torch.Generator | None) -> list[Check]:
    """The partition estimate of the paper's selection at K2 draws: its variance, and what becomes of it in log space.

    "partition variance" is of `Z_hat / Z`, predicted exactly. "lower bound" is `E[log Z_hat] - log Z`, predicted to
    second order, minus half the variance of `Z_hat / Z`; "log variance" is the variance of `log Z_hat`, predicted to first
    order, the variance of `Z_hat / Z` itself (the delta method). Both expansions hold where that variance is small: the
    more draws, the better. So the logarithm reduces a variance only in that it divides by Z squared.
    """
    rows = []
    for name, chain, proposal, top, sampled in _partition_cases():
        log_q = proposal(replicated(chain, 1))[0]
        variance = partition_variance(chain, weight_moments(log_q, top, sampled))
        log_ratio = log_ratios(chain, TopAndSample(top, sampled), proposal, repeats, generator)
        setting = f"{name}, K1={top}"
        rows += [
            Check("partition variance", setting, float(sampled), variance, *_variance(log_ratio.exp())),
            Check("lower bound", setting, float(sampled), -variance / 2, *_mean(log_ratio)),
            Check("log variance", setting, float(sampled), variance, *_variance(log_ratio)),
        ]
    return rows


def tail(repeats: int, generator: torch.Generator | None) -> list[Check]:
    """The variance of the tail estimator `a_i / q_i` (one draw), for several proposals, at K1 states kept for certain."""
    return [
        Check("tail variance", name, float(top), *_tail_check(name, top, 1, repeats, generator))
        for name in tail_proposals()
        for top in (0, 10, 50)
    ]


def many_draws(repeats: int, generator: torch.Generator | None) -> list[Check]:
    """The corollary: with K2 draws the variance of the tail estimator is one K2th."""
    return [
        Check("1/K2", f"{name}, K1=10", float(sampled), *_tail_check(name, 10, sampled, repeats, generator))
        for name in ("uniform", "too flat")
        for sampled in (1, 2, 4, 8, 16, 32, 64)
    ]


def same_number(repeats: int, generator: torch.Generator | None) -> list[Check]:
    """The variance of a sum over K states kept by the same proposal: the paper's selection, split in two ways, and ours."""
    a, rows = long_tail(), []
    for name in ("noisy", "too flat"):
        log_q = tail_proposals()[name].log()
        for kept in (16, 32, 64):
            for split, top in (("K2=1", kept - 1), ("K1=K2", kept // 2)):
                predicted = sum_variance(a, log_q, top, kept - top)
                sums = weighted_sums(a, log_q, TopAndSample(top, kept - top), repeats, generator)
                rows.append(
                    Check("same K", f"{name}, top and sample, {split}", float(kept), predicted, *_variance(sums))
                )
            sums = weighted_sums(a, log_q, Optimal(kept), repeats, generator)
            predicted = optimal_variance(a, log_q, kept)
            rows.append(Check("same K", f"{name}, optimal", float(kept), predicted, *_variance(sums)))
    return rows


def without_replacement(repeats: int, generator: torch.Generator | None) -> list[Check]:
    """How biased `E[Z_hat] / Z` is where draws without replacement are weighted as if with: N = 30, K1 = 1, K2 draws.

    One draw is unbiased, and so is the uniform proposal. Otherwise a likely state, which can be drawn no more than once,
    has a mean weight below one, and an unlikely state one above: too low where the sum is more peaked than the proposal.
    """
    rows = []
    mild, paper = mild_chain(30), paper_chain(30, 10, generator=_seeded())
    by_paper = paper_proposal(paper.states.double())
    for name, chain, proposal, draws in (
        ("mild chain, uniform", mild, Uniform(), (20,)),
        ("mild chain, local and global", mild, LocalGlobal(), (1, 5, 10, 20)),
        ("paper's chain and proposal", paper.chain, by_paper, (1, 5, 10, 20)),
    ):
        for sampled in draws:
            selection = WithoutReplacement(1, sampled)
            ratio = log_ratios(chain, selection, proposal, repeats, generator).exp()
            predicted = partition_bias(chain, selection.mean_weight(proposal(replicated(chain, 1))[0]))
            rows.append(Check("without replacement", name, float(sampled), predicted, *_mean(ratio)))
    return rows


STATEMENTS = (unbiased, partition, tail, many_draws, same_number, without_replacement)


# What is predicted.


def tail_variance(a: Float64[Tensor, " n"], q: Float64[Tensor, " n"], sampled: int = 1) -> float:
    """The variance of the mean of K2 draws of `a_i / q_i`, i with probability `q_i` (which sum to one).

    The paper's theorem: `sum(a^2 / q) - S^2`, S the sum of a. Its second form `S^2 sum(e^2 / q + 2 e)`, with
    `e = a / S - q`, is the same as printed, for the e add up to zero: it is not approximately but exactly quadratic, S^2
    times the chi-square divergence of a / S from q. That is computed here, for it loses no digits near zero. In
    the corollary the mean over K2 draws is printed as a sum to N.

    >>> a = torch.tensor([1.0, 3.0]).double()
    >>> tail_variance(a, a / 4), tail_variance(a, torch.tensor([0.5, 0.5]).double())
    (0.0, 4.0)
    """
    total = a.sum()
    gap = a / total - q
    return (total.square() * (gap.square() / q).sum() / sampled).item()


def sum_variance(a: Float64[Tensor, " n"], log_q: Float64[Tensor, " n"], top: int, sampled: int) -> float:
    """The variance of a sum over all n as `TopAndSample(top, sampled)` estimates it."""
    rest = log_q.argsort(descending=True)[top:]
    return tail_variance(a[rest], log_q[rest].softmax(-1), sampled)


def optimal_variance(a: Float64[Tensor, " n"], log_q: Float64[Tensor, " n"], kept: int) -> float:
    """The variance of a sum over all n as `Optimal(kept)` estimates it: exact, a step function of its one uniform number.

    All states must be possible.
    """
    inclusion = inclusion_probability(log_q, kept)
    order = (-inclusion.log2().floor()).clamp_(max=8).argsort(stable=True)
    reach = torch.cat((inclusion.new_zeros(1), inclusion[order].cumsum(-1)))
    edges = torch.cat((reach.new_tensor([0.0, 1.0]), reach % 1)).sort().values
    places = (reach - (edges[1:] + edges[:-1])[:, None] / 2).floor()
    sums = ((places[:, 1:] > places[:, :-1]) * (a / inclusion)[order]).sum(-1)
    return (edges.diff() * (sums - a.sum()).square()).sum().item()


def weight_moments(log_q: Float64[Tensor, "*lead n"], top: int, sampled: int) -> Float64[Tensor, "*lead n n"]:
    """`E[W_i W_j]` of the total weights that `TopAndSample(top, sampled)` gives the states i and j.

    One if either is a top state. Otherwise each weight counts how many of K2 draws hit it, over `K2 q`: by the moments
    of the multinomial distribution, `1 - 1 / K2`, and `1 / (K2 q_i)` more where i = j.
    """
    head = log_q.topk(top).indices
    rest = log_q.scatter(-1, head, -math.inf)
    tail = rest > -math.inf
    moments = 1 - (tail[..., None] & tail[..., None, :]).double() / sampled
    return moments + torch.diag_embed(torch.where(tail, (-rest.log_softmax(-1)).exp() / sampled, 0.0))


def partition_variance(chain: LinearChain, moments: Float64[Tensor, "T N N"]) -> float:
    """The variance of `Z_hat / Z` where states of different positions are selected independently: exact.

    `M_t[i, j] = E[alpha_hat_t(i) alpha_hat_t(j)]` has a recursion like that of alpha itself, over pairs of states. On
    its diagonal, for K1 = 0 and K2 = 1, it is the one that the paper's "single step" theorem starts from. The
    theorem then subtracts the square of `sum_j sqrt(E[alpha_hat_t(j)^2]) Phi(j, i) phi(i)`, which is not the mean and
    too large, so that the variance comes out too low; what has to be subtracted is `alpha_{t+1}(i)^2`, as here.
    """
    node = chain.node_scores().double()
    node = (node - node.amax(-1, keepdim=True)).exp()
    pair = chain.pair_scores().block().double()
    pair = (pair - pair.amax()).exp()
    alpha, second = node[0], torch.outer(node[0], node[0])
    for here, moment in zip(node[1:], moments, strict=False):
        alpha = here * (alpha @ pair)
        second = torch.outer(here, here) * (pair.T @ (second * moment) @ pair)
        scale = alpha.sum()
        alpha, second = alpha / scale, second / scale.square()
    return ((second * moments[-1]).sum() / alpha.sum().square() - 1).item()


def partition_bias(chain: LinearChain, mean_weight: Float64[Tensor, "T N"]) -> float:
    """`E[Z_hat] / Z` where states are selected independently, with weights of the given means (one if unbiased)."""
    whole = replicated(chain, 1)
    weighted = LinearChain(whole.node_scores() + mean_weight.log(), chain.pair_scores().to(torch.float64))
    return (weighted.log_partition() - whole.log_partition()).exp().item()


def inclusion_without_replacement(q: Float64[Tensor, "*lead n"], draws: int) -> Float64[Tensor, "*lead n"]:
    """The chance that each state is among so many draws without replacement, with probabilities q (normalised).

    Let state i arrive at an exponential time of rate `q_i`: the order of arrival is that of the draws. So the chance is an
    integral over i's time of arrival: that fewer than `draws` of the others came before. In the logarithm of time,
    equally spaced points converge to it quickly.

    >>> inclusion_without_replacement(torch.tensor([0.5, 0.25, 0.25]).double(), 2).round(decimals=4).tolist()
    [0.8333, 0.5833, 0.5833]
    """
    n = q.shape[-1]
    low, high = math.log(1e-12 / q.max().item()), math.log(40 / q.min().item())
    log_time = torch.linspace(low, high, int((high - low) / 0.1), dtype=torch.float64)
    reach = q[..., None, :] * log_time.exp()[:, None]  # [*lead, points, n]
    arrived = -torch.expm1(-reach)
    before = torch.zeros(*reach.shape, draws, dtype=torch.float64)  # of how many others, for each state
    before[..., 0] = 1.0
    for other in range(n):
        chance = arrived[..., other, None, None].expand_as(before).clone()
        chance[..., other, :] = 0.0
        before = before * (1 - chance) + F.pad(before * chance, (1, -1))
    density = reach * (-reach).exp()
    return (density * before.sum(-1)).sum(-2) * (log_time[1] - log_time[0])


# What is measured.


@dataclass(frozen=True)
class WithoutReplacement(Selection):
    """The `top` states, and `sampled` draws from the rest without replacement, weighted `1 / (sampled * q_i)`: biased.

    This is what the authors' code does; it is here to be measured. `TopAndSample` draws with replacement.
    """

    top: int
    sampled: int

    def __call__(self, log_q: Float[Tensor, "*lead n"], generator: torch.Generator | None = None) -> Subset:
        head = log_q.topk(self.top).indices
        rest = log_q.scatter(-1, head, -math.inf).log_softmax(-1)
        arrival = torch.empty_like(rest).exponential_(generator=generator)
        drawn = (rest - arrival.log()).topk(self.sampled).indices
        log_weight = -math.log(self.sampled) - rest.gather(-1, drawn)
        return Subset(torch.cat((head, drawn), -1), torch.cat((rest.new_zeros(head.shape), log_weight), -1))

    def mean_weight(self, log_q: Float64[Tensor, "*lead n"]) -> Float64[Tensor, "*lead n"]:
        """The mean of the weight that each state gets; one if it were unbiased."""
        rest = log_q.argsort(descending=True, stable=True)[..., self.top :]
        q = log_q.gather(-1, rest).softmax(-1)
        mean = inclusion_without_replacement(q, self.sampled) / (self.sampled * q)
        return torch.ones_like(log_q).scatter(-1, rest, mean)


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
    generator: torch.Generator | None = None,
) -> Float64[Tensor, " {repeats}"]:
    """`log Z_hat - log Z` of so many independent sketches."""
    exact = replicated(model, 1).log_partition()
    parts = []
    for start in range(0, repeats, BATCH):
        whole = replicated(model, min(BATCH, repeats - start))
        small = whole.sketch(proposal=proposal, selection=selection, generator=generator)
        parts.append(small.log_partition() - exact)
    return torch.cat(parts)


def weighted_sums(
    a: Float64[Tensor, " n"],
    log_q: Float64[Tensor, " n"],
    selection: Selection,
    repeats: int,
    generator: torch.Generator | None = None,
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


class _Case(NamedTuple):
    setting: str
    kept: int
    model: LinearChain | SpanTree
    selection: Selection
    proposal: Propose


def _unbiased_cases() -> list[_Case]:
    mild, tree = mild_chain(), paper_tree(30, 4, generator=_seeded())
    paper = paper_chain(50, 10, generator=_seeded())
    proposals = {"uniform": Uniform(), "local": Local(), "local and global": LocalGlobal()}
    cases = [
        _Case(f"mild chain, {name}, K1={top} K2={sampled}", top + sampled, mild, TopAndSample(top, sampled), proposal)
        for name, proposal in proposals.items()
        for top, sampled in ((0, 16), (8, 8), (15, 1))
    ]
    by_paper = paper_proposal(paper.states.double())
    for top, sampled in ((7, 1), (4, 4)):
        name = f"paper's chain and proposal, K1={top} K2={sampled}"
        cases.append(_Case(name, top + sampled, paper.chain, TopAndSample(top, sampled), by_paper))
    for name, chain in (("mild chain", mild), ("paper's chain", paper.chain)):
        cases.append(_Case(f"{name}, lookahead, optimal", 8, chain, Optimal(8), Lookahead(8)))
    for top, sampled in ((10, 10), (5, 15)):
        name = f"paper's hypertree, uniform, K1={top} K2={sampled}"
        cases.append(_Case(name, top + sampled, tree, TopAndSample(top, sampled), Uniform()))
    cases.append(_Case("paper's hypertree, uniform, optimal", 20, tree, Optimal(20), Uniform()))
    cases.append(_Case("paper's hypertree, lookahead, optimal", 20, tree, Optimal(20), Lookahead(8)))
    return cases


def _partition_cases() -> list[tuple[str, LinearChain, Propose, int, int]]:
    mild, paper = mild_chain(), paper_chain(50, 10, generator=_seeded())
    by_paper = paper_proposal(paper.states.double())
    return [
        *(("mild chain, local", mild, Local(), 5, sampled) for sampled in (4, 8, 16, 32)),
        *(("mild chain, local and global", mild, LocalGlobal(), 5, sampled) for sampled in (4, 8, 16, 32)),
        *(("paper's chain and proposal", paper.chain, by_paper, 5, sampled) for sampled in (1, 4, 16)),
    ]


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


def _tail_check(name: str, top: int, sampled: int, repeats: int, generator: torch.Generator | None) -> list[float]:
    """Predicted, measured and standard error; the `top` largest entries are kept whatever the proposal says of them."""
    a, q = long_tail(), tail_proposals()[name]
    log_q = torch.cat((q.new_full((top,), 1e3), q[top:].log()))
    sums = weighted_sums(a, log_q, TopAndSample(top, sampled), repeats, generator)
    return [tail_variance(a[top:], q[top:] / q[top:].sum(), sampled), *_variance(sums)]


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)
