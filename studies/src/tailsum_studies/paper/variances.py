"""What the paper's Theorem 1 and its appendix predict of estimators: the means and variances of sums and of Z, exactly.

Top states are summed and not drawn: that is Rao-Blackwellization, and the rest is importance sampling (its Eqs. 9 to 16).

Of the variance of the whole partition estimate the paper gives orders of magnitude, and they do not hold as printed:
`O(prod_t 1/K2 ...)` falls like `K2^-T`, where the variance falls like `1 / K2`; and in log space
`O(sum_t log 1/K2 ...)` is negative for many draws. What is predicted here is exact, by a recursion: `partition_variance`.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float, Float64
from torch import Tensor

from tailsum import LinearChain, Selection, Subset, inclusion_probability


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
    node, pairs = chain.node_scores().double(), chain.pair_scores().to(torch.float64)
    whole, weighted = LinearChain(node, pairs), LinearChain(node + mean_weight.log(), pairs)
    return (weighted.log_partition() - whole.log_partition()).exp().item()


# Draws without replacement that are weighted as if with: a defect of the authors' code, made to be measured.


@dataclass(frozen=True)
class WithoutReplacement(Selection):
    """The `top` states, and `sampled` draws from the rest without replacement, weighted `1 / (sampled * q_i)`: biased.

    This is what the authors' code does. `TopAndSample` draws with replacement.
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
