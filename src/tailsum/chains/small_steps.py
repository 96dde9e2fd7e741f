"""The recursions of `scan.py` for few states and sequences, where the number of calls takes the time.

They need three or four calls a step in place of a dozen: states come before sequences, `[T, N, B]`, so that a step is one
product without transpositions, and messages stay probabilities from one step to the next. Long chains are cut into blocks
that run side by side (`time_blocks.py`).
"""

import torch
from torch import Tensor

from tailsum.chains.time_blocks import Steps, blocks, starts_of_flow, starts_of_masses
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
    total, highest = torch.ones_like(weight), torch.empty_like(peak)
    limits, steps = torch.finfo(node.dtype), len(node) - 1
    with full_precision(node.device):
        torch.amax(weight[0], 0, out=highest[0])
        first = weight[0] / highest[0]
        cut = blocks(steps, *node.shape[1:]) if len(shared) == 1 else None
        if cut is None:
            _masses(first, weight[1:], shared, total[1:], highest[1:])
        else:
            here = cut.cut(weight[1:])
            entered, top = torch.empty_like(here), torch.empty_like(here[:, 0])
            _masses(starts_of_masses(first, here, shared[0], cut), here, shared, entered, top)
            total[1:], highest[1:] = cut.joined(entered, steps), cut.joined(top[:, None], steps)[:, 0]
    # A message below `tiny / highest` has lost digits. It matters in sums that are not much larger.
    if node.numel() and bool(
        ((total < table.floor / highest.min()) & (total > 0)).any() | (highest <= limits.tiny).any()
    ):
        return None
    total, highest = total.transpose(1, 2).contiguous(), highest.log_()
    return scores.add_(total.log()).sub_(highest[..., None]), highest, total


def _masses(mass: Tensor, weight: Tensor, shared: Tensor, total: Tensor, highest: Tensor) -> None:
    """Fill in `total [steps, N, B]` and `highest [steps, B]` of the steps after `mass [N, B]`."""
    columns = shared.mT.expand(len(weight), -1, -1).unbind()
    sent = torch.empty_like(mass)
    for column, here, entered, top in zip(columns, weight.unbind(), total.unbind(), highest.unbind(), strict=True):
        torch.mm(column, mass, out=entered)
        mass = torch.mul(entered, here, out=sent)
        torch.amax(mass, 0, out=top)
        mass.div_(top)


def small_flow(
    table: Table, reverse: bool, source: Tensor, inlet: Tensor | None, after: Tensor, before: Tensor
) -> tuple[Tensor, Tensor] | None:
    """The recursion of `Flow`: x and h `[T, B, N]`. None if there are too many states."""
    shared = table.small
    if shared is None:
        return None
    turned = (lambda x: x.flip(0)) if reverse else (lambda x: x)  # in the order of the recursion
    tables = turned(shared if reverse else shared.mT)
    steps = Steps(source[1:], after[1:], before[:-1], None if inlet is None else inlet[:-1])
    if reverse:
        steps = Steps(source[:-1], after[:-1], before[1:], None if inlet is None else inlet[1:])
    steps = steps.each(lambda x: turned(x.transpose(1, 2)).contiguous())
    x, h = (torch.zeros(len(source), *source.shape[:0:-1], dtype=source.dtype, device=source.device) for _ in range(2))
    x[0] = source[-1 if reverse else 0].mT
    with full_precision(source.device):
        cut = blocks(len(source) - 1, *source.shape[1:]) if len(shared) == 1 else None
        if cut is None:
            _flow(x[0], steps, tables, x[1:], h[1:])
        else:
            pieces = steps.each(cut.cut)
            reached, entered = torch.empty_like(pieces.source), torch.empty_like(pieces.source)
            _flow(starts_of_flow(x[0], pieces, tables[0], cut), pieces, tables, reached, entered)
            x[1:], h[1:] = (cut.joined(y, len(source) - 1) for y in (reached, entered))
    return turned(x).transpose(1, 2).contiguous(), turned(h).transpose(1, 2).contiguous()


def _flow(value: Tensor, steps: Steps, tables: Tensor, x: Tensor, h: Tensor) -> None:
    """Fill in x and h of the steps after `value [N, B]`."""
    tables = tables.expand(len(x), -1, -1)
    rows = zip(*(part.unbind() for part in (*steps[:3], tables, x, h)), strict=True)
    inlets = None if steps.inlet is None else steps.inlet.unbind()
    for t, (source, after, before, matrix, reached, entered) in enumerate(rows):
        sent = before * value
        if inlets is not None:
            sent += inlets[t]
        torch.mm(matrix, sent, out=entered)
        value = torch.addcmul(source, after, entered, out=reached)
