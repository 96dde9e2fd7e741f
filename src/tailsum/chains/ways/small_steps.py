"""The recursions of `scan.py` for few states and sequences, where the number of calls takes the time.

They need three or four calls a step in place of a dozen: states come before sequences, so that a step is one product without
transpositions, and messages stay probabilities from one step to the next. Long chains are cut into blocks that run side by
side (`time_blocks.py`). Chosen where the table is small (`Products.small`), on a CPU, and for long chains on a GPU, where a
kernel takes the steps of all blocks. There are R sequences for each of G tables: `[steps, G, N, R]`.
"""

import torch
from torch import Tensor

from tailsum.chains.ways.time_blocks import Blocks, Steps, blocks, run_flow, run_masses
from tailsum.numerics.fused.kernel import Example, Kernel
from tailsum.numerics.precision import full_precision
from tailsum.scores.products import Products


def forward(node: Tensor, peak: Tensor, table: Products) -> tuple[Tensor, Tensor, Tensor] | None:
    """Messages `[T, B, N]` less their highest, the highest `[T, B]`, and the sum that entered each state.

    None if the range of the scores is too wide, as products of probabilities underflow where the `log_mass` of `scan.py` does
    not; and on a GPU, where the chain cannot be cut into blocks.
    """
    tables = table.small
    assert tables is not None
    scores = node - peak[..., None]
    scores[1:] += table.column_scale
    weight = _by_table(scores, table.groups).exp()  # in the order of `scores` in memory
    total, highest = torch.ones_like(weight), torch.empty_like(weight[:, :, 0])
    limits, steps = torch.finfo(node.dtype), len(node) - 1
    with full_precision(node.device):
        torch.amax(weight[0], 1, out=highest[0])
        first = weight[0] / highest[0, :, None]
        cut = blocks(steps, node.shape[1], tables)
        if cut is None or not _masses_in_blocks(first, weight[1:], tables, total[1:], highest[1:], cut):
            if node.is_cuda:  # a kernel takes less time
                return None
            total[1:], highest[1:] = _masses(first, weight[1:], tables)
    # A message below `tiny / highest` has lost digits. It matters in sums that are not much larger.
    if bool(((total < table.floor / highest.min()) & (total > 0)).any() | (highest <= limits.tiny).any()):
        return None
    total, highest = _by_sequence(total), highest.log_().flatten(1)
    return scores.add_(total.log()).sub_(highest[..., None]), highest, total


def _masses_in_blocks(
    first: Tensor, weight: Tensor, tables: Tensor, total: Tensor, highest: Tensor, cut: Blocks
) -> bool:
    here, tables, steps = cut.cut(weight), cut.of_tables(tables, len(weight)), len(weight)
    found = run_masses(masses, first, here, tables, cut)
    if found is None:
        return False
    entered, top = found
    total[...], highest[...] = cut.joined(entered, steps), cut.joined(top[:, :, None], steps)[:, :, 0]
    return True


def _by_table(x: Tensor, groups: int) -> Tensor:
    """`[T, B, N]` as `[T, G, N, R]`."""
    return x.unflatten(1, (groups, -1)).transpose(2, 3)


def _by_sequence(x: Tensor) -> Tensor:
    """The inverse of `_by_table`."""
    return x.transpose(2, 3).flatten(1, 2).contiguous()


def _masses(mass: Tensor, weight: Tensor, tables: Tensor) -> tuple[Tensor, Tensor]:
    """`total [steps, G, N, R]` and `highest [steps, G, R]` of the steps after `mass [G, N, R]`."""
    total, highest = torch.empty_like(weight), torch.empty_like(weight[:, :, 0])
    times, steps = torch.bmm, (tables.mT.expand(len(weight), -1, -1, -1), weight, total, highest)
    if len(mass) == 1:  # a product of two matrices takes less time than one of two batches of one
        times, mass, steps = torch.mm, mass[0], tuple(x[:, 0] for x in steps)
    sent = torch.empty_like(mass)
    for column, here, entered, top in zip(*(x.unbind() for x in steps), strict=True):
        times(column, mass, out=entered)
        mass = torch.mul(entered, here, out=sent)
        torch.amax(mass, -2, out=top)
        mass.div_(top.unsqueeze(-2))
    return total, highest


def _example(steps: int, groups: int, n: int, rows: int, shared: int = 1) -> tuple[Tensor, ...]:
    """Numbers of the shapes above: starts, three of each step, and tables, the same for all steps or not."""
    shape = groups, n, rows
    tables = torch.rand(1 if shared else steps, groups, n, n)
    return torch.rand(shape), *(torch.rand(steps, *shape) for _ in range(3)), tables


_SIZES = (
    {"steps": 3, "groups": 1, "n": 5, "rows": 3},
    {"steps": 4, "groups": 2, "n": 17, "rows": 2, "shared": 0},
)
_LARGE = {"steps": 500, "groups": 1, "n": 16, "rows": 2000}


def _masses_example(**how: int) -> Example:
    first, weight, *_, tables = _example(**how)
    return Example((first, weight, tables))


def _flow_example(**how: int) -> Example:
    first, source, after, before, tables = _example(**how)
    inlet, reverse = (None, True) if how["groups"] == 1 else (source.flip(0), False)
    return Example((first, source, after, before, tables), {"inlet": inlet, "reverse": reverse})


masses = Kernel("block_masses", _masses, _masses_example, _SIZES, _LARGE, impossible=0.0)


def flow(
    table: Products, reverse: bool, source: Tensor, inlet: Tensor | None, after: Tensor, before: Tensor
) -> tuple[Tensor, Tensor] | None:
    """The recursion of `scan.Flow`: x and h `[T, B, N]`. None on a GPU, where the chain cannot be cut into blocks."""
    tables = table.small
    assert tables is not None
    tables, count = tables if reverse else tables.mT, len(source) - 1
    given = Steps(source, after, before, inlet).each(lambda x: _by_table(x, table.groups).contiguous())
    x, h = torch.empty_like(given.source), torch.zeros_like(given.source)
    to, since = (slice(None, -1), slice(1, None)) if reverse else (slice(1, None), slice(None, -1))
    enters = None if given.inlet is None else given.inlet[since]
    steps = Steps(given.source[to], given.after[to], given.before[since], enters)
    first = x[-1 if reverse else 0].copy_(given.source[-1 if reverse else 0])
    with full_precision(source.device):
        cut = blocks(count, source.shape[1], tables, reverse=reverse)
        if cut is None or not _flow_in_blocks(first, steps, tables, x[to], h[to], cut):
            if source.is_cuda:
                return None
            x[to], h[to] = _flow(first, *steps[:3], tables, inlet=steps.inlet, reverse=reverse)
    return _by_sequence(x), _by_sequence(h)


def _flow_in_blocks(first: Tensor, steps: Steps, tables: Tensor, x: Tensor, h: Tensor, cut: Blocks) -> bool:
    steps, tables = steps.each(cut.cut), cut.of_tables(tables, len(x))
    found = run_flow(run_steps, first, steps, tables, cut)
    if found is None:
        return False
    x[...], h[...] = (cut.joined(y, len(x)) for y in found)
    return True


def _flow(
    value: Tensor, source: Tensor, after: Tensor, before: Tensor, tables: Tensor, *, inlet: Tensor | None, reverse: bool
) -> tuple[Tensor, Tensor]:
    """What scan.Flow calls x and h, of the steps after `value [G, N, R]`; the last of them comes first if `reverse`."""
    x, h = torch.empty_like(source), torch.empty_like(source)
    times, tables, steps = torch.bmm, tables.expand(len(x), -1, -1, -1), Steps(source, after, before, inlet)
    into = x, h
    if len(value) == 1:
        times, value, steps = torch.mm, value[0], steps.each(lambda y: y[:, 0])
        tables, *into = (y[:, 0] for y in (tables, x, h))
    order = slice(None, None, -1 if reverse else 1)
    rows = zip(*(part.unbind()[order] for part in (*steps[:3], tables, *into)), strict=True)
    inlets = None if steps.inlet is None else steps.inlet.unbind()[order]
    for t, (given, factor, weight, matrix, reached, entered) in enumerate(rows):
        sent = weight * value
        if inlets is not None:
            sent += inlets[t]
        times(matrix, sent, out=entered)
        value = torch.addcmul(given, factor, entered, out=reached)
    return x, h


run_steps = Kernel("block_flow", _flow, _flow_example, _SIZES, _LARGE, impossible=0.0)
