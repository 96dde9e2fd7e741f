"""Work on many observations, some rows at a time: temporary tensors hold at most a few million numbers."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

_NUMBERS = 2**22


def by_rows(
    function: Callable[..., Tensor], *data: Shaped[Tensor, "rows *_"], width: int
) -> Float[Tensor, "rows *result"]:
    """A function of each row, where each row needs `width` numbers on the way."""
    found = [function(*few) for few in zip(*(x.split(max(1, _NUMBERS // width)) for x in data), strict=True)]
    return found[0] if len(found) == 1 else torch.cat(found)


def weighted_sums(
    features: Callable[..., tuple[Tensor, ...]], weight: Float[Tensor, "rows n"], *data: Shaped[Tensor, "rows *_"]
) -> tuple[Float[Tensor, "n *feature"], ...]:
    """For each state, the weighted sum over the rows of each feature `[rows, *feature]`: in double precision.

    Sums of squares of single-precision numbers keep all digits there, whatever their mean is.
    """
    one = features(*(x[:1] for x in data))
    width = weight.shape[1] + sum(x[:1].numel() for x in one)
    total = [x.new_zeros(weight.shape[1], *x.shape[1:], dtype=torch.double) for x in one]
    for w, *few in zip(*(x.split(max(1, _NUMBERS // width)) for x in (weight, *data)), strict=True):
        shares = w.double().mT
        for kept, x in zip(total, features(*few), strict=True):
            kept.add_((shares @ x.double().flatten(1)).view_as(kept))
    return tuple(total)
