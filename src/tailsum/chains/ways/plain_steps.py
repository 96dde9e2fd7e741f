"""The recursions of `scan.py`, a product for each step. Chosen where nothing faster takes the chain."""

import itertools

import torch
from torch import Tensor

from tailsum.scores.products import Products


def peaks(node: Tensor, table: Products) -> Tensor:
    """The highest score of each position."""
    # The lowest number in place of minus infinity, which less itself is NaN.
    return table.highest(node).clamp_(min=torch.finfo(node.dtype).min)


def forward(node: Tensor, peak: Tensor, table: Products) -> tuple[Tensor, Tensor, Tensor]:
    """Messages `[T, B, N]` less their highest, the highest `[T, B]`, and the sum that entered each state."""
    log_mass, total, highest = torch.empty_like(node), torch.ones_like(node), torch.empty_like(peak)
    for t in range(len(node)):
        entered = table.push(t - 1, log_mass[t - 1].exp()) if t > 0 else None
        if entered is not None:
            total[t] = entered
        highest[t] = message(node, peak, table, t, entered, log_mass[t])
    return log_mass, highest, total


def message(node: Tensor, peak: Tensor, table: Products, t: int, entered: Tensor | None, out: Tensor) -> Tensor:
    """Fill `out [B, N]` with the message after the sum that `entered` position t; its highest number is returned, `[B]`."""
    torch.sub(node[t], peak[t, :, None], out=out)
    if entered is not None:
        out += entered.log().add_(table.column_scale[min(t - 1, table.steps - 1)])
    highest = table.highest(out).clamp_(min=torch.finfo(node.dtype).min)
    out -= highest[:, None]
    return highest


def flow(
    table: Products, reverse: bool, source: Tensor, inlet: Tensor | None, after: Tensor, before: Tensor
) -> tuple[Tensor, Tensor]:
    """The recursion of `scan.Flow`: x and h `[T, B, N]`."""
    x, h = torch.empty_like(source), torch.zeros_like(source)
    order = range(len(source) - 1, -1, -1) if reverse else range(len(source))
    x[order[0]] = source[order[0]]
    for s, t in itertools.pairwise(order):
        y = before[s] * x[s]
        if inlet is not None:
            y += inlet[s]
        h[t] = table.pull(t, y) if reverse else table.push(s, y)
        torch.addcmul(source[t], after[t], h[t], out=x[t])
    return x, h
