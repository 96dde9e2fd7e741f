"""The recursions of `scan.py` for few states and sequences, where the number of calls takes the time.

They need three or four calls a step in place of a dozen: states come before sequences, `[T, N, B]`, so that a step is one
product without transpositions, and messages stay probabilities from one step to the next.
"""

import itertools

import torch
from torch import Tensor

from tailsum.numerics.precision import full_precision
from tailsum.numerics.table import Table


def small_forward(node: Tensor, peak: Tensor, table: Table) -> tuple[Tensor, Tensor, Tensor] | None:
    """Messages `[T, B, N]` less their highest, the highest `[T, B]`, and the sum that entered each state.

    None if there are too many states, or if their range is too wide: products of probabilities underflow where the
    `log_mass` of `scan.py` does not.
    """
    shared = table.small
    if shared is None:
        return None
    scores = node - peak[..., None]
    scores[1:] += table.column_scale
    weight = scores.transpose(1, 2).exp()
    total, mass = torch.ones_like(weight), torch.empty_like(weight)
    highest = torch.empty_like(peak)
    limits = torch.finfo(node.dtype)
    columns = shared.mT.expand(max(1, len(node) - 1), -1, -1).unbind()
    rows = list(zip(total.unbind(), weight.unbind(), mass.unbind(), highest.unbind(), strict=True))
    with full_precision(node.device):
        for t, (entered, here, sent, top) in enumerate(rows):
            if t > 0:
                torch.mm(columns[t - 1], rows[t - 1][2], out=entered)
            torch.mul(entered, here, out=sent)
            torch.amax(sent, 0, out=top)
            sent.div_(top)
    # A message below `tiny / highest` has lost digits. It matters in sums that are not much larger.
    if node.numel() and bool(
        ((total < table.floor / highest.min()) & (total > 0)).any() | (highest <= limits.tiny).any()
    ):
        return None
    total, highest = total.transpose(1, 2).contiguous(), highest.log_()
    return scores.add_(total.log()).sub_(highest[..., None]), highest, total


def small_flow(
    table: Table, reverse: bool, source: Tensor, inlet: Tensor | None, after: Tensor, before: Tensor
) -> tuple[Tensor, Tensor] | None:
    """The recursion of `Flow`: x and h `[T, B, N]`. None if there are too many states."""
    shared = table.small
    if shared is None:
        return None
    inputs = [x.transpose(1, 2).contiguous() for x in (source, after, before)]
    enters = None if inlet is None else inlet.transpose(1, 2).contiguous().unbind()
    x, h = torch.empty_like(inputs[0]), torch.zeros_like(inputs[0])
    tables = (shared if reverse else shared.mT).expand(max(1, len(source) - 1), -1, -1).unbind()
    sources, afters, befores, xs, hs = (x.unbind() for x in (*inputs, x, h))
    order = range(len(source) - 1, -1, -1) if reverse else range(len(source))
    with full_precision(source.device):
        xs[order[0]].copy_(sources[order[0]])
        for s, t in itertools.pairwise(order):
            sent = befores[s] * xs[s]
            if enters is not None:
                sent += enters[s]
            torch.mm(tables[min(s, t)], sent, out=hs[t])
            torch.addcmul(sources[t], afters[t], hs[t], out=xs[t])
    return x.transpose(1, 2).contiguous(), h.transpose(1, 2).contiguous()
