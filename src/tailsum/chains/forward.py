"""Forward messages of a chain, by the fastest method that is accurate for the range of its scores.

Products in probability space underflow below the smallest number of their floating-point type. `forward_messages` runs
them, checks whether underflow could have changed the result, and if so repeats them in float64 (a range of e^650 in place
of e^57), and where that is still too narrow, in log space.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from tailsum.chains.fused_messages import fused_log_partition, fused_messages, suits_log_steps
from tailsum.chains.scan import Forward, forward_scan
from tailsum.numerics.reduce import log_sum_exp
from tailsum.numerics.stream import Parts, streamed
from tailsum.numerics.table import Table, block_scores, tile_rows, transposed
from tailsum.numerics.tensors import finite

LogStep = Callable[[Tensor, tuple[Tensor, ...]], Tensor]  # from log masses `[B, N]` and `[G, ...]` to sums `[B, N]`
Normalise = Callable[[Tensor], Forward]


def forward_messages(node: Tensor, params: tuple[Tensor, ...], last: Tensor) -> Forward:
    """Forward messages from scores `node [T, B, N]` and the `params` of a `Table`; `last [B]` is each last position."""
    if len(node) == 1:
        return _normalise(node)
    if suits_log_steps(node.shape[1], node.shape[2], params):
        return fused_messages(
            node.transpose(0, 1), params, last, lambda x, params: forward_messages(x.transpose(0, 1), params, last)
        )
    table = Table(params)
    result, total = forward_scan(node, table, params)
    if in_range(node.detach(), table, result, total, last):
        return result
    del table, result, total
    if node.dtype == torch.float32:
        wide = forward_messages(node.double(), tuple(p.double() for p in params), last)
        return Forward(wide.log_mass.to(node.dtype), wide.offset)
    return log_space_scan(node, params)


def log_partition(node: Tensor, params: tuple[Tensor, ...], last: Tensor) -> Tensor:
    """Log-partition `[B]` in float64, from scores `node [B, T, N]`; other arguments as above."""
    batch, length, n = node.shape
    if length > 1 and suits_log_steps(batch, n, params):
        return fused_log_partition(node, params, last, lambda node, params: log_partition(node, params, last))
    return final_log_sum(forward_messages(node.transpose(0, 1).contiguous(), params, last), last)


def in_range(node: Tensor, table: Table, result: Forward, total: Tensor, last: Tensor) -> bool:
    """Whether underflow in the products changed the sum by no more than rounding."""
    inside = torch.arange(len(node), device=node.device)[:, None, None] <= last[:, None]
    suspect = (total < table.floor) & (node > -math.inf) & inside
    if not table.anywhere(suspect):
        return True
    reachable = _reachable(node, table)
    if not table.anywhere(suspect & reachable):  # no path at all leads to the small ones: minus infinity is right
        return True
    # Underflow makes the result too low, a floor under every sum too high: do the two agree?
    with torch.no_grad():
        raised, _ = forward_scan(node, table, table.params, reachable.to(node.dtype) * table.floor)
    batch = torch.arange(len(last), device=last.device)
    low, high = (
        table.summed(r.log_mass[last, batch].exp()).log().double() + r.offset[last, batch] for r in (result, raised)
    )
    agree = (high - low <= 16 * torch.finfo(node.dtype).eps) | (high == -math.inf)
    return bool(agree.all())


def _reachable(node: Tensor, table: Table) -> Tensor:
    """Where some allowed path from the start arrives: `[T, B, N]`."""
    allowed = node > -math.inf
    if len(table.params) == 2:  # factored scores are finite
        for t in range(1, len(node)):
            allowed[t] &= table.highest(allowed[t - 1].to(node.dtype))[:, None] > 0
        return allowed
    (scores,) = table.params
    open_edges = table.with_params((torch.zeros_like(scores).masked_fill_(scores == -math.inf, -math.inf),))
    for t in range(1, len(node)):
        allowed[t] &= open_edges.push(t - 1, allowed[t - 1].to(node.dtype)) > 0
    return allowed


def final_log_sum(messages: Forward, last: Tensor) -> Tensor:
    """Log-partition `[B]` in float64: the messages at each sequence's last position, summed."""
    batch = torch.arange(len(last), device=last.device)
    return log_sum_exp(messages.log_mass[last, batch], -1).double() + messages.offset[last, batch]


def log_space_scan(
    node: Tensor, params: tuple[Tensor, ...], step: LogStep | None = None, normalise: Normalise | None = None
) -> Forward:
    """Forward messages without products: accurate for scores of any size, and many times slower.

    `step` and `normalise` are what asks about all states, if they are not all here.
    """
    step, normalise = step or log_space_step, normalise or _normalise
    messages = [normalise(node[:1])]
    for t in range(1, len(node)):
        here = min(t - 1, params[0].shape[1] - 1)
        before = messages[-1]
        entering = step(before.log_mass[0], tuple(p[:, here] for p in params))
        after = normalise((node[t] + entering)[None])
        messages.append(Forward(after.log_mass, before.offset + after.offset))
    return Forward(torch.cat([m.log_mass for m in messages]), torch.cat([m.offset for m in messages]))


def _normalise(alpha: Tensor) -> Forward:
    highest = finite(alpha.detach().amax(-1))
    return Forward(alpha - highest[..., None], highest.double())


def log_space_step(alpha: Tensor, params: tuple[Tensor, ...]) -> Tensor:
    """`logsumexp_i(alpha [B, i] + scores [G, i, j])`, streamed over j."""
    columns, *rest = transposed(params)
    alpha = alpha.reshape(columns.shape[0], -1, alpha.shape[-1])

    def tile(parts: Parts) -> Parts:
        columns, (alpha, *rest) = parts
        scores = block_scores((*columns, *rest))
        return Parts((log_sum_exp(scores[:, :, None] + alpha[:, None], -1),))

    out = streamed(tile, Parts((columns,), (alpha, *rest)), tile_rows(alpha.numel(), alpha.device), 1).rows[0]
    return out.mT.reshape(-1, out.shape[-2])
