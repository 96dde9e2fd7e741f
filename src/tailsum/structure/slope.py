"""The mean of a sum of values under a model, as the slope of its log-partition."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tailsum.structure.derivatives import differentiating
from tailsum.structure.terms import Terms, each


def log_sum_and_slope(
    model: Any, terms: Terms, values: Terms, shared: Callable[[Tensor], Tensor] = lambda x: x
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
    """The log-partition under `terms`, and its slope in the direction of `values`: the mean of their sum.

    The slope of the batch's sum is linear in a factor on each sequence, and its gradient in these factors is the slope of
    each sequence: one pass for all. `shared` is applied to what all terms have in common, where they are on several devices.
    """
    with differentiating(model.device, terms, values) as (recording, scores, slopes):
        tilt = torch.zeros((), dtype=scores[0].tensors[0].dtype, device=model.device, requires_grad=True)
        by = shared(tilt)
        tilted = each(lambda a, b: a.scaled(1.0 + by) if a is b else a.plus(b.finite().scaled(by)), scores, slopes)
        total = model.log_sum(tilted)
        if not total.requires_grad:  # nothing is summed, as in a sentence of one word without a tree
            return total, torch.zeros_like(total)
        factor = torch.ones_like(total, requires_grad=True)
        (slope,) = torch.autograd.grad((factor * total).sum(), tilt, create_graph=True)
        (mean,) = torch.autograd.grad(slope, factor, create_graph=recording, materialize_grads=True)
    return total if recording else total.detach(), mean
