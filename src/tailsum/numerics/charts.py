"""Charts over the spans of a sentence, filled bottom-up by width.

A chart is a list: entry w-1 holds the spans of w positions as `[B, T-w+1, ...]`, by their first position.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Combine = Callable[[int, list[Tensor], list[Tensor]], Tensor]
Watch = Callable[[int, Tensor], Tensor]


def keep(_: int, entry: Tensor) -> Tensor:
    """A `Watch` that changes nothing."""
    return entry


def fill_chart(leaves: Tensor, combine: Combine, watch: Watch = keep) -> list[Tensor]:
    """The chart over `leaves [B, T, ...]`, with each entry replaced by `watch(width, entry)` before it is used.

    `combine(width, left, right)` computes the entry of one width from its left and right children, two lists by split:
    the left child has 1, 2, .. width-1 positions.
    """
    chart = [watch(1, leaves)]
    length = leaves.shape[1]
    for width in range(2, length + 1):
        count = length - width + 1
        left = [chart[size - 1][:, :count] for size in range(1, width)]
        right = [chart[width - size - 1][:, size : size + count] for size in range(1, width)]
        chart.append(watch(width, combine(width, left, right)))
    return chart


def by_width(spans: Tensor) -> list[Tensor]:
    """The chart of a square `[B, T, T, ...]` indexed by first and last position."""
    return [spans.diagonal(width, 1, 2).movedim(-1, 1) for width in range(spans.shape[1])]


def square(chart: Sequence[Tensor]) -> Tensor:
    """The inverse of `by_width`; minus infinity below the diagonal."""
    batch, length, *rest = chart[0].shape
    whole = chart[0].new_full((batch, length, length, *rest), -math.inf)
    for width, entry in enumerate(chart):
        first = torch.arange(length - width, device=entry.device)
        whole[:, first, first + width] = entry
    return whole
