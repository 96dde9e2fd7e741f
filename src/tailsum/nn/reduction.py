"""Reductions of one value for each sequence of a batch, with the names of pytorch-crf."""

from typing import Literal, get_args

from jaxtyping import Float, Int
from torch import Tensor

Reduction = Literal["none", "sum", "mean", "token_mean"]


def check_reduction(reduction: str) -> None:
    """A ValueError unless it is a `Reduction`."""
    if reduction not in get_args(Reduction):
        raise ValueError(f"reduction must be one of {', '.join(get_args(Reduction))}: got {reduction!r}")


def reduced(
    values: Float[Tensor, " B"], reduction: Reduction, lengths: Int[Tensor, "*B"] | int
) -> Float[Tensor, "..."]:
    """All values, their sum, their mean, or their sum divided by the sum of `lengths` (or by a number of tokens).

    >>> import torch
    >>> reduced(torch.tensor([3.0, 5.0]), "token_mean", torch.tensor([1, 3]))
    tensor(2.)
    """
    match reduction:
        case "none":
            return values
        case "sum":
            return values.sum()
        case "mean":
            return values.mean()
        case "token_mean":
            return values.sum() / (lengths if isinstance(lengths, int) else lengths.sum())
