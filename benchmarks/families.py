"""Families of random chains on which sketches can go wrong: sticky, clustered, peaked, banded, with heavy tails."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from tailsum import Factored, LinearChain, Potential, Scored

Normal = Callable[..., Tensor]  # sizes to standard normal numbers
DIMENSION = 64


def random_chain(name: str, n_states: int, length: int, device: torch.device, seed: int = 0) -> LinearChain:
    """A chain of the family; emissions are standard normal unless the family says otherwise."""
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, device=device, generator=generator)

    emission, transition = FAMILIES[name](n_states, length, normal)
    return LinearChain(emission, transition)


def _sticky(scale: float, emission: float) -> Callable[[int, int, Normal], tuple[Tensor, Potential]]:
    """One set of embeddings: the score of a state with itself is its squared norm."""

    def make(n: int, length: int, normal: Normal) -> tuple[Tensor, Potential]:
        states = scale * normal(n, DIMENSION) / DIMENSION**0.25
        return emission * normal(length, n), Factored(states, states)

    return make


def _independent(scale: float, emission: float = 1.0) -> Callable[[int, int, Normal], tuple[Tensor, Potential]]:
    def make(n: int, length: int, normal: Normal) -> tuple[Tensor, Potential]:
        return emission * normal(length, n), Factored(
            scale * normal(n, DIMENSION) / math.sqrt(DIMENSION), normal(n, DIMENSION)
        )

    return make


def _factored(scale: float, emission: float) -> Callable[[int, int, Normal], tuple[Tensor, Potential]]:
    """Emissions by embeddings that transitions share."""

    def make(n: int, length: int, normal: Normal) -> tuple[Tensor, Potential]:
        states = normal(n, DIMENSION)
        context = emission * normal(length, DIMENSION) / math.sqrt(DIMENSION)
        return context @ states.mT, Factored(scale * states / math.sqrt(DIMENSION), normal(n, DIMENSION))

    return make


def _clusters(n: int, length: int, normal: Normal) -> tuple[Tensor, Potential]:
    centres = 1.8 * normal(100, DIMENSION)
    place = torch.arange(n, device=centres.device) * 100 // n
    states = (centres[place] + 0.3 * normal(n, DIMENSION)) / DIMENSION**0.25
    return normal(length, n), Factored(states, states)


def _heavy_tails(n: int, length: int, normal: Normal) -> tuple[Tensor, Potential]:
    """Norms of embeddings with a Pareto tail."""
    quantile = (torch.erf(normal(n, 1) / math.sqrt(2)) + 1) / 2
    states = normal(n, DIMENSION) * quantile.clamp(min=1e-6) ** -0.25 / DIMENSION**0.25
    return normal(length, n), Factored(states, states)


def _left_to_right(n: int, length: int, normal: Normal) -> tuple[Tensor, Potential]:
    """From state i to i .. i + 3 alone."""
    scores = normal(n, 4)

    def score(i: Tensor, j: Tensor) -> Tensor:
        step = j - i
        return torch.where((step >= 0) & (step < 4), scores[i, step.clamp(0, 3)], -math.inf)

    return 2 * normal(length, n), Scored(score, n, n, device=scores.device)


def _two_regimes(n: int, length: int, normal: Normal) -> tuple[Tensor, Potential]:
    """Sticky states of two kinds that rarely mix; the emissions of the first half favour one, of the second the other."""
    kind = torch.where(torch.arange(n, device=normal(1).device) % 2 == 0, 1.0, -1.0)[:, None]
    states = torch.cat((1.2 * normal(n, DIMENSION) / DIMENSION**0.25, 3 * kind), 1)
    half = torch.where(torch.arange(length, device=states.device) < length // 2, 1.0, -1.0)
    return normal(length, n) + 2 * half[:, None] * kind.T, Factored(states, states)


FAMILIES: dict[str, Callable[[int, int, Normal], tuple[Tensor, Potential]]] = {
    "sticky a=1": _sticky(1.0, 1.0),
    "sticky a=1.5": _sticky(1.5, 1.0),
    "sticky a=2": _sticky(2.0, 1.0),
    "sticky a=1.5 e=3": _sticky(1.5, 3.0),
    "100 clusters": _clusters,
    "independent s=1": _independent(1.0),
    "independent s=3": _independent(3.0),
    "independent s=5": _independent(5.0),
    "factored s=3 e=3": _factored(3.0, 3.0),
    "heavy tails": _heavy_tails,
    "left to right": _left_to_right,
    "two regimes": _two_regimes,
}
