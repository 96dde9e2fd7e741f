"""Draws without replacement that are weighted as if with: a defect of the authors' code, made to be measured."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float, Float64
from torch import Tensor

from tailsum.sketch.selection import Selection, Subset


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
