"""The mean of a sum of values over the parts of a configuration: expected counts, risk, expected scores."""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tailsum.numerics.check import check_broadcast, check_device, check_floating, check_scores
from tailsum.numerics.precision import full_precision
from tailsum.structure.compare import infinite_where_forbidden, matching
from tailsum.structure.terms import each


def expectation(model: Any, values: Any) -> Float[Tensor, "*sample_batch"]:
    """The mean of the sum of values: see `Structure.expectation`."""
    if isinstance(values, Tensor):
        return _of_parts(model, values)
    if not isinstance(values, type(model)) and not isinstance(model, type(values)):
        raise ValueError(
            f"values must be a tensor of the shape of the marginals or a {type(model).__name__} whose scores are the "
            f"values: got {type(values).__name__}"
        )
    return _of_scores(model, values)


def _of_parts(model: Any, values: Tensor) -> Tensor:
    """By marginals. What is impossible does not count, so values of padding may be anything."""
    check_floating("values", values)
    check_device("values", values, model.device)
    chances = model.scattered_marginals()
    part = chances.shape[len(model.batch_shape) :]
    if values.shape[max(0, values.dim() - len(part)) :] != part:
        sizes = ", ".join(map(str, part))
        raise ValueError(
            f"values must be [*batch, {sizes}], as the marginals over all states: got {list(values.shape)}"
        )
    check_broadcast("values", values.shape[: values.dim() - len(part)], model.batch_shape, "the model's")
    values = torch.where(chances.detach() == 0, 0.0, values.to(chances.dtype))
    check_scores("values", values.detach())
    never = values == -math.inf
    dims = tuple(range(-len(part), 0))
    return (chances * values.masked_fill(never, 0.0)).sum(dims).masked_fill(never.any(dims), -math.inf)


def _of_scores(model: Any, values: Any) -> Tensor:
    """By the slope of the log-partition. Values without lengths have the model's."""
    model = model.in_batch(check_broadcast("values", values.batch_shape, model.batch_shape, "the model's"))
    if values.lengths is None:
        values = values.in_batch(model.batch_shape).replaced(lengths=model.lengths)
    with full_precision(model.device):
        other = matching(model, values, "values")
        own, terms = (
            model.summed(),
            each(lambda term: term.map(lambda x: x.to(model.dtype) if x.is_floating_point() else x), other.unmasked()),
        )
        _, mean = model.log_sum_and_mean(own, terms)
        return -infinite_where_forbidden(model, -mean, own, terms).to(model.dtype)
