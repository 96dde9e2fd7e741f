"""Comparisons of two models: over the same states, and infinite where one model forbids what the other allows."""

import math
from typing import Any

import torch
from torch import Tensor

from tailsum.numerics.check import check_broadcast, first_index
from tailsum.structure.slope import log_sum_and_slope
from tailsum.structure.terms import Terms, each


def matching(model: Any, other: Any, name: str = "other") -> Any:
    """`other` over the states of `model`; a ValueError that names the argument `name` if they cannot be compared."""
    if not (isinstance(other, type(model)) or isinstance(model, type(other))):
        raise ValueError(f"{name} must be a {type(model).__name__}: got {type(other).__name__}")
    if (other.node_shape, other.whole.n_states) != (model.node_shape, model.whole.n_states):
        raise ValueError(f"{name} must have the same positions and states as {model}: got {other}")
    if check_broadcast(name, other.batch_shape, model.batch_shape, "this model's") != model.batch_shape:
        raise ValueError(
            f"{name} must have a batch shape within {list(model.batch_shape)}: got {list(other.batch_shape)}"
        )
    other = other.in_batch(model.batch_shape)
    if model.kept is not None and other.kept is None:
        other = other.restrict(model.kept)
    same = f"{name} must have the same positions and states as {model}: got {other}"
    if other.form() != model.form():
        raise ValueError(f"{same}, another form of {type(model).__name__}" if str(model) == str(other) else same)
    if model.kept is not None or other.kept is not None:
        if model.states.shape != other.states.shape:
            raise ValueError(same)
        differ = (model.states != other.states).any(-1)
        if differ.any():
            place = tuple(first_index(differ))
            here, there = (sorted(x.states[place].tolist()) for x in (model, other))
            raise ValueError(f"{same}, which keeps others: at {list(place)} {_few(there)}, and this model {_few(here)}")
    known = model.lengths is not other.lengths  # both None, too
    if known and not torch.equal(model.sequence_lengths(), other.sequence_lengths()):
        raise ValueError(f"{name} must have the same lengths")
    return other


def infinite_where_forbidden(model: Any, value: Tensor, scores: Terms, terms: Terms) -> Tensor:
    """`value`, but infinite where a part that `terms` forbid has positive probability under `scores`."""
    if not any(term.may_forbid() for term in terms):
        return value
    with torch.no_grad():
        # Not by `log_sum_and_mean`, whose overrides may round: this slope is exactly zero if nothing forbidden is possible.
        forbidden = each(lambda term: term.forbidden(model.dtype), terms)
        _, chance = log_sum_and_slope(model, scores, forbidden)
    return value.masked_fill(chance > 0, math.inf)


def _few(states: list[int], most: int = 10) -> str:
    return str(states) if len(states) <= most else f"{str(states[:most])[:-1]}, ..]"
