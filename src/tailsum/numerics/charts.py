"""Charts over the spans of a sentence, filled bottom-up by width.

A chart is a list: entry w-1 holds the spans of w positions as `[B, T-w+1, ...]`, by their first position.
"""

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

Combine = Callable[[int, list[Tensor], list[Tensor]], Tensor]
Watch = Callable[[int, Tensor], Tensor]


def keep(_: int, entry: Tensor) -> Tensor:
    """A `Watch` that changes nothing."""
    return entry


def fill_chart(leaves: Tensor, combine: Combine, watch: Watch = keep) -> list[Tensor]:
    """The chart over `leaves [B, T, ...]`, each entry passed through `watch(width, entry)` before it is used.

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


class Aligned:
    """Entries `[B, n]` of a chart, aligned so that all splits of all spans of a width are two slices.

    `starts(count, splits)[b, i, k]` is the entry of k+1 positions from i on. `ends(count, splits)[b, i, k]` is the one of
    `splits - k` positions that ends where the i-th of the last `count` positions is: longest first.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self._by_first: Tensor | None = None
        self._by_last: Tensor | None = None

    def add(self, entry: Tensor) -> None:
        """The entry of the next width."""
        missing = self.length - entry.shape[1]
        first, last = F.pad(entry, (0, missing))[..., None], F.pad(entry, (missing, 0))[..., None]
        self._by_first = first if self._by_first is None else torch.cat((self._by_first, first), -1)
        self._by_last = last if self._by_last is None else torch.cat((last, self._by_last), -1)

    def starts(self, count: int, splits: int) -> Tensor:
        assert self._by_first is not None
        return self._by_first[:, :count, :splits]

    def ends(self, count: int, splits: int) -> Tensor:
        assert self._by_last is not None
        return self._by_last[:, self.length - count :, self._by_last.shape[-1] - splits :]


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


def of_length(chart: Sequence[Tensor], length: Tensor) -> Tensor:
    """The entry `[B, ...]` of the span that covers each whole sentence, of `length [B]` positions."""
    whole = torch.stack([entry[:, 0] for entry in chart])
    return whole[length - 1, torch.arange(len(length), device=length.device)]
