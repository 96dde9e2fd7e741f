"""Rows of probabilities as free numbers, their logits, and Dirichlet priors over them.

Entries that were minus infinity at first are forbidden: all others are `allowed`, also where EM made them zero.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tailsum.hmm.draws import exponential
from tailsum.numerics.check import check_floating, check_scores

Prior = float | Tensor  # of the concentration of each entry; one means none


def drawn_rows(shape: tuple[int, ...], given: Float[Tensor, "..."] | None, name: str) -> Float[Tensor, "..."]:
    """A copy of the given logits, or random ones: rows drawn evenly from all distributions."""
    if given is None:
        return torch.empty(shape).exponential_().log_()
    check_floating(name, given)
    check_scores(name, given)
    if given.shape != shape:
        raise ValueError(f"{name} must be {list(shape)}: got {list(given.shape)}")
    if (given.amax(-1) == -torch.inf).any():
        raise ValueError(f"{name} must allow something in each row: got a row of minus infinity")
    return given.detach().clone()


def most_likely_rows(
    logits: Float[Tensor, "*rows n"], counts: Float[Tensor, "*rows n"], prior: Prior, allowed: Bool[Tensor, "*rows n"]
) -> Float[Tensor, "*rows n"]:
    """The log-probabilities that fit counts best; rows without counts stay as they are."""
    counts = (counts + (prior - 1.0)).clamp(min=0.0).masked_fill(~allowed, 0.0)
    total = counts.sum(-1, keepdim=True)
    return torch.where(total > 0, counts.log() - total.log(), logits.detach()).to(logits.dtype)


def noisy_rows(
    logits: Float[Tensor, "..."],
    allowed: Bool[Tensor, "..."],
    generator: torch.Generator | None,
    about: Float[Tensor, "..."] | float = 1.0,
) -> Float[Tensor, "..."]:
    """Logits of random rows in the shape of some, drawn evenly from all distributions and times `about`."""
    noise = exponential(tuple(logits.shape), logits, generator)
    return ((0.05 + noise) * about).log().masked_fill(~allowed, -torch.inf)


def log_dirichlet(log_probabilities: Float[Tensor, "*rows n"], prior: Prior) -> Float[Tensor, ""]:
    """The log-density of rows of log-probabilities, up to a constant."""
    allowed = log_probabilities.masked_fill(log_probabilities == -torch.inf, 0.0)
    return ((prior - 1.0) * allowed).sum()


def free_rows(allowed: Bool[Tensor, "*rows n"]) -> int:
    """How many probabilities are free: in each row all that are allowed, but one."""
    return int(allowed.sum()) - allowed.shape[:-1].numel()
