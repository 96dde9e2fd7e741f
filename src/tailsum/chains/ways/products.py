"""Forward messages by products in probability space, for chains whose sums stay within the range of their dtype.

Products underflow below the smallest number of their floating-point type. Whether that could have changed the result is
checked afterwards. Chosen wherever nothing says that this check, or rounding, will fail.
"""

import math

import torch
from torch import Tensor

from tailsum.chains.messages import Forward, Summed, has_digits
from tailsum.chains.ways.plain_steps import message, peaks
from tailsum.chains.ways.scan import forward_scan
from tailsum.scores.potential import Potential
from tailsum.scores.products import Products


def by_products(node: Tensor, pairs: Potential, last: Tensor) -> Summed | None:
    """The messages, or None if products may have underflowed; arguments as of `forward.summed`."""
    table = pairs.products()
    messages, total, fell = forward_scan(node, table, pairs.tensors)
    if not has_digits(fell) or not in_range(node.detach(), table, messages, total, last):
        return None
    return Summed(node, pairs, table, messages, total)


def in_range(node: Tensor, table: Products, result: Forward, total: Tensor, last: Tensor) -> bool:
    """Whether underflow in the products changed the sum by no more than rounding."""
    suspect = total < table.floor
    suspect &= torch.arange(len(node), device=node.device)[:, None, None] <= last[:, None]
    suspect &= node > -math.inf
    if not table.anywhere(suspect):
        return True
    if table.steps == 1 and len(node) > 1:  # what enters a state that no state leads to is zero
        suspect[1:] &= table.push(0, torch.ones_like(node[0])) > 0
    if not table.anywhere(suspect):
        return True
    reachable, batch = table.reach(node > -math.inf), torch.arange(len(last), device=last.device)
    possible = table.highest(reachable[last, batch].to(node.dtype)) > 0
    suspect &= reachable
    suspect &= possible[:, None]
    if not table.anywhere(suspect):  # minus infinity is right: no path leads there
        return True
    # Underflow makes the result too low, a floor under every sum makes it too high. Do the two agree?
    high = raised_sum(node, table, reachable, last)
    low = table.summed(result.log_mass[last, batch].exp()).log().double() + result.offset[last, batch]
    # Both are rounded: their steps in this dtype, and their offsets in float64.
    rounding = 16 * (torch.finfo(node.dtype).eps + torch.finfo(torch.float64).eps * high.abs())
    agree = (high - low <= rounding) | (high == -math.inf)
    return bool(agree.all())


@torch.no_grad()
def raised_sum(node: Tensor, table: Products, reachable: Tensor, last: Tensor) -> Tensor:
    """The log-partition `[B]` with the table's floor under the sums that enter `reachable [T, B, N]` states, in float64."""
    peak, out, ends = peaks(node, table), torch.empty_like(node[0]), set(last.tolist())
    offset = result = torch.zeros(len(last), dtype=torch.float64, device=node.device)
    for t in range(len(node)):
        entered = None
        if t > 0:
            entered = table.push(t - 1, out.exp()).maximum(reachable[t].to(node.dtype) * table.floor)
            offset = offset + table.centre[min(t - 1, table.steps - 1)].repeat_interleave(len(last) // table.groups)
        offset = offset + peak[t].double() + message(node, peak, table, t, entered, out).double()
        if t in ends:
            result = torch.where(last == t, table.summed(out.exp()).log().double() + offset, result)
    return result
