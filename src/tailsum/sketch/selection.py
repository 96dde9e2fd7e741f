"""Selections: keep K of N states, each with a weight, so that weighted sums over the kept estimate sums over all.

A selection maps `log_q [..., N]`, how much each state matters (unnormalised, minus infinity for never), to a `Subset`.
Leading dimensions are independent selections, made together.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from tailsum.numerics.check import at_least
from tailsum.numerics.tensors import finite
from tailsum.numerics.tiles import tile_size


@dataclass(frozen=True)
class Subset:
    """Kept states and their log weights. A log weight of minus infinity marks an empty place.

    `pilot` is the earlier subset, if any, whose messages guided the selection of this one.
    """

    index: Int[Tensor, "*lead k"]
    log_weight: Float[Tensor, "*lead k"]
    pilot: "Subset | None" = None

    def repeated(self) -> Bool[Tensor, "*lead k"]:
        """Which places are empty or repeat the state of an earlier place."""
        empty = self.log_weight == -math.inf
        ordered, order = self.index.masked_fill(empty, -1).sort(dim=-1, stable=True)
        again = F.pad(ordered[..., 1:] == ordered[..., :-1], (1, 0))
        return torch.zeros_like(again).scatter(-1, order, again) | empty

    def merged(self) -> "Subset":
        """The same states, with the weights of copies added up in the first place of each; the other places are empty."""
        top = finite(self.log_weight.detach().amax(-1, keepdim=True))
        which = self.index.masked_fill(self.log_weight == -math.inf, -1)
        ordered, order = which.sort(dim=-1, stable=True)
        group = F.pad((ordered[..., 1:] != ordered[..., :-1]).long(), (1, 0)).cumsum(-1)
        group = torch.zeros_like(group).scatter(-1, order, group)
        weight = (self.log_weight - top).exp()
        total = torch.zeros_like(weight).scatter_add(-1, group, weight).gather(-1, group)
        return Subset(self.index, (total.log() + top).masked_fill(self.repeated(), -math.inf))


class Selection(ABC):
    """A rule that keeps states by how much they matter."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    @abstractmethod
    def __call__(self, log_q: Float[Tensor, "*lead n"], generator: torch.Generator | None = None) -> Subset:
        """Keep some of the N states of each row."""


@dataclass(frozen=True)
class TopK(Selection):
    """The k states that matter most, with weight one. Not random, and biased: sums are too low.

    >>> TopK(2)(torch.tensor([0.1, 0.5, 0.4]).log()).index.tolist()
    [1, 2]
    """

    k: int

    def __post_init__(self) -> None:
        at_least(1, k=self.k)

    def __call__(self, log_q: Float[Tensor, "*lead n"], generator: torch.Generator | None = None) -> Subset:
        index = log_q.topk(min(self.k, log_q.shape[-1])).indices
        return Subset(index, log_q.new_zeros(index.shape))


@dataclass(frozen=True)
class TopAndSample(Selection):
    """The paper's selection (its Eqs. 4 to 7): the `top` states, and `sampled` draws with replacement from the rest.

    A draw of state i has weight `1 / (sampled * q_i)`, q normalised over the rest; a top state is never drawn again.
    Sums are unbiased for every `top` and every `sampled` of at least one.

    >>> TopAndSample(top=2, sampled=1)(torch.tensor([0.1, 0.5, 0.4]).log()).index.tolist()
    [1, 2, 0]
    """

    top: int
    sampled: int

    def __post_init__(self) -> None:
        at_least(0, top=self.top)
        at_least(1, sampled=self.sampled)

    def __call__(self, log_q: Float[Tensor, "*lead n"], generator: torch.Generator | None = None) -> Subset:
        head = log_q.topk(min(self.top, log_q.shape[-1])).indices
        rest = log_q.scatter(-1, head, -math.inf).double()
        highest = rest.amax(-1, keepdim=True)
        reach = cumulative((rest - finite(highest)).exp_())
        total = reach[..., -1:]
        draws = uniform((*log_q.shape[:-1], self.sampled), log_q.device, generator) * total
        # The first state whose cumulative sum exceeds the draw, so never one of zero probability.
        tail = torch.searchsorted(reach, draws, right=True).clamp_(max=log_q.shape[-1] - 1)
        log_probability = rest.gather(-1, tail) - highest - total.log()
        log_weight = (-math.log(self.sampled) - log_probability).to(log_q.dtype)
        log_weight = torch.where(total > 0, log_weight, -math.inf)  # nothing is left to draw
        return Subset(torch.cat((head, tail), -1), torch.cat((log_q.new_zeros(head.shape), log_weight), -1))


@dataclass(frozen=True)
class Optimal(Selection):
    """Keep state i with probability `min(1, q_i / c)`, weight the inverse, c such that k are kept (the default).

    The unbiased selection of least variance for independent inclusion (Fearnhead & Clifford 2003); no state is kept
    twice. Sampling is systematic, with one uniform number per row, over the states ordered by q to the nearest power of
    two: each magnitude gets its share of the kept states without a sort, which lowers the variance of the entropy.

    >>> Optimal(2)(torch.tensor([0.0, 9.0, 0.0, 0.0])).log_weight.exp().round(decimals=3).tolist()
    [1.0, 3.0]
    """

    k: int

    def __post_init__(self) -> None:
        at_least(1, k=self.k)

    def __call__(self, log_q: Float[Tensor, "*lead n"], generator: torch.Generator | None = None) -> Subset:
        *lead, n = log_q.shape
        if self.k >= n:
            return Subset(torch.arange(n, device=log_q.device).expand(*lead, n), log_q.new_zeros(*lead, n))
        mark = uniform((*lead, 1), log_q.device, generator)
        # Each row is read many times: on a CPU, select for a few rows at a time, which stay in its cache.
        few = max(1, _in_cache(log_q.device) // n) if log_q.device.type == "cpu" else max(1, log_q.numel())
        parts = zip(log_q.reshape(-1, n).split(few), mark.reshape(-1, 1).split(few), strict=True)
        kept = [self._rows(*part) for part in parts]
        index, log_weight = (torch.cat(rows).reshape(*lead, self.k) for rows in zip(*kept, strict=True))
        return Subset(index, log_weight)

    def _rows(self, log_q: Float[Tensor, "rows n"], mark: Float64[Tensor, "rows 1"]) -> tuple[Tensor, Tensor]:
        """The kept states and log weights of some rows."""
        n = log_q.shape[-1]
        everything = torch.arange(n, device=log_q.device).expand(log_q.shape)
        inclusion = inclusion_probability(log_q, self.k)
        reach = _cumulative_by_magnitude(inclusion)
        place = places(reach, inclusion, mark, self.k)
        index = everything.new_full((len(log_q), self.k + 1), n).scatter_(-1, place, everything)[..., :-1]
        return _weighted(index, inclusion, log_q.dtype)


@dataclass(frozen=True)
class Landmarks(Selection):
    """As `Optimal`, but with the states in the order of their ids: faster, for sums whose variance matters less."""

    k: int

    def __call__(self, log_q: Float[Tensor, "*lead n"], generator: torch.Generator | None = None) -> Subset:
        *lead, n = log_q.shape
        if self.k >= n:
            return Optimal(self.k)(log_q)
        inclusion = inclusion_probability(log_q, self.k)
        reach = cumulative(inclusion)
        mark = uniform((*lead, 1), log_q.device, generator) + torch.arange(self.k, device=log_q.device)
        return Subset(*_weighted(torch.searchsorted(reach, mark, right=True), inclusion, log_q.dtype))


def _weighted(index: Tensor, inclusion: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Kept states and their log weights; index n marks an empty place, where fewer than k states are possible."""
    empty = index == inclusion.shape[-1]
    index = index.masked_fill(empty, 0)
    log_weight = -inclusion.gather(-1, index).log_().to(dtype)
    return index, log_weight.masked_fill_(empty, -math.inf)


def selection_from(k: int | None, selection: Selection | None) -> Selection:
    """The selection, or `Optimal(k)`; a ValueError unless exactly one of the two is given."""
    if (k is None) == (selection is None):
        raise ValueError("give either k, the number of states to keep, or a selection: got both or neither")
    if k is not None:
        return Optimal(k)
    if not isinstance(selection, Selection):
        raise ValueError(f"selection must be a selection: got {selection!r}")
    return selection


def _in_cache(device: torch.device) -> int:
    """How many numbers to work on at a time where each needs several intermediate ones."""
    return tile_size(device) // 16


def _cumulative_by_magnitude(inclusion: Float64[Tensor, "*lead n"]) -> Float64[Tensor, "*lead n"]:
    """The cumulative sum of the probabilities, ordered by their powers of two, largest first."""
    levels = 9
    level = (1 - torch.frexp(inclusion).exponent).clamp_(0, levels - 1)
    if inclusion.numel() <= _in_cache(inclusion.device):  # one cumulative sum over all levels
        *lead, n = inclusion.shape
        place = level.long()[..., None, :]
        spread = inclusion.new_zeros(*lead, levels, n).scatter_(-2, place, inclusion[..., None, :])
        reach = cumulative(spread.flatten(-2)).unflatten(-1, (levels, n))
        return reach.gather(-2, place)[..., 0, :]
    reach = torch.zeros_like(inclusion)
    before: Tensor | float = 0.0
    for value in range(levels):
        here = level == value
        within = cumulative(torch.where(here, inclusion, 0.0)).add_(before)
        reach = torch.where(here, within, reach)
        before = within[..., -1:]
    return reach


def cumulative(x: Float64[Tensor, "*lead n"], block: int = 512) -> Float64[Tensor, "*lead n"]:
    """The cumulative sum along the last dimension, in blocks: faster on a GPU for a few long rows."""
    n = x.shape[-1]
    if n <= 4 * block:
        return x.cumsum(-1)
    blocks = F.pad(x, (0, -n % block)).unflatten(-1, (-1, block)).cumsum(-1)
    totals = blocks[..., -1]
    blocks += (totals.cumsum(-1) - totals)[..., None]
    return blocks.flatten(-2)[..., :n].contiguous()


def inclusion_probability(log_q: Float[Tensor, "*lead n"], k: int) -> Float64[Tensor, "*lead n"]:
    """`min(1, q / c)` with c such that it sums to k; if fewer than k states have q > 0, one for each of these.

    The m largest states have probability one, for the least m such that the others, which share the remaining k - m in
    proportion to q, get at most one each. Only the k largest can be among them.
    """
    at_least(1, k=k)
    if not log_q.is_floating_point() or not log_q.dim():
        raise ValueError(f"log_q must be floating-point, [.., N]: got {log_q.dtype}, {list(log_q.shape)}")
    q = normalised(log_q, log_q.amax(-1, keepdim=True))
    return included(q, share_of(*largest_and_rest(q, k), k))


def normalised(log_q: Float[Tensor, "*lead n"], highest: Float[Tensor, "*lead 1"]) -> Float64[Tensor, "*lead n"]:
    """`exp(log_q - highest)`, positive for every possible state."""
    q = (log_q - highest.clamp(min=torch.finfo(highest.dtype).min)).double().exp_()
    return q.clamp_(min=1e-280).masked_fill_(log_q == -math.inf, 0.0)


def largest_and_rest(
    q: Float64[Tensor, "*lead n"], k: int
) -> tuple[Float64[Tensor, "*lead m"], Float64[Tensor, "*lead 1"]]:
    """The k largest in descending order, or all if there are fewer, and the sum of the others."""
    largest = q.topk(min(k, q.shape[-1]))
    return largest.values, q.scatter(-1, largest.indices, 0.0).sum(-1, keepdim=True)


def share_of(
    largest: Float64[Tensor, "*lead m"], rest: Float64[Tensor, "*lead 1"], k: int
) -> Float64[Tensor, "*lead 1"]:
    """`1 / c`, from the k largest q in descending order and the sum of the rest; infinite if fewer than k are positive."""
    tail = largest.flip(-1).cumsum(-1).flip(-1) + rest  # the sum of all but the m largest, for every m < k
    left = torch.arange(k, k - largest.shape[-1], -1, dtype=tail.dtype, device=tail.device)
    sure = (largest * left > tail).sum(-1, keepdim=True)
    return (left / tail).gather(-1, sure.clamp_(max=left.shape[0] - 1))


def included(q: Float64[Tensor, "*lead n"], share: Float64[Tensor, "*lead 1"]) -> Float64[Tensor, "*lead n"]:
    """The probability that a state is kept: `min(1, q * share)`, and one where the share is infinite."""
    return (q * share.clamp(max=1e300)).clamp_(max=1.0)  # a positive q is at least 1e-280


def places(
    reach: Float64[Tensor, "*lead n"], inclusion: Float64[Tensor, "*lead n"], mark: Float64[Tensor, "*lead 1"], k: int
) -> Int[Tensor, "*lead n"]:
    """The place of each state among the k kept ones, or k if it is not kept, by systematic sampling.

    A state takes place m if `m + mark` falls between the cumulative sums of the inclusion probabilities before and after it.
    """
    place = (reach - inclusion - mark).ceil_()
    taken = place < reach - mark
    return torch.where(taken, place, k).long().clamp_(0, k)


def uniform(shape: tuple[int, ...], device: torch.device, generator: torch.Generator | None) -> Tensor:
    """Uniform random numbers in float64."""
    return torch.rand(shape, dtype=torch.float64, device=device, generator=generator)
