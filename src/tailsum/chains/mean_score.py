"""The mean of a score over the paths of a chain, and its gradient: one pass along the chain and one back.

With it the entropy (the paper's Algorithm 3, Eqs. 19 to 22) is `log Z - mean`.

The passes carry means along with the messages. With `before_t(i)` the mean score of positions up to t, and `after_t(i)` that
of positions after t, both given state i at t, the mean of the whole given the pair (i, j) at t and t+1 is

    mean_t(i, j) = before_t(i) + value_t(i, j) + value_{t+1}(j) + after_{t+1}(j),

and the gradient of the mean in the pair's score is the pair's probability times `mean_t(i, j) - mean`. The part that all
states share grows along the chain and is kept apart, in float64; the differences do not grow. In place of `after` the
pass back carries `after` times the probability of the state, which needs no division.

`Structure` computes the same by derivatives of the log-partition, for every structure and range of scores: in many more
passes, and with the rounding errors of numbers that grow along the chain.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from tailsum.chains.forward import final_log_sum, in_range
from tailsum.chains.scan import Forward, forward_scan, inverse_total
from tailsum.numerics.precision import product
from tailsum.numerics.table import Table, pull, push
from tailsum.numerics.tensors import as_values


class MeanScore(NamedTuple):
    """The log-partition of a chain and the mean of a score, `[B]` in float64."""

    log_partition: Tensor
    mean: Tensor


def mean_score(node: Tensor, scores: Tensor, value: Tensor, values: Tensor | None, last: Tensor) -> MeanScore | None:
    """The mean of `value [T, B, N]` and `values [G, S, N, N]`, all finite, along the paths of a chain.

    The chain has the scores `node [T, B, N]` of states and `scores [G, S, N, N]` of pairs, as in a `Table`, and ends at
    `last [B]`; it has two positions or more. `values=None` means the finite entries of `scores`. Differentiable any number
    of times. Returns None if the table is too large to keep, or the range of the scores too wide for products.
    """
    table = Table((scores,))
    if table.kept is None:
        return None
    with torch.no_grad():
        found = forward_scan(node, table, (scores,))
        if not in_range(node, table, *found, last):
            return None
    return MeanScore(*_MeanScore.apply(table, found, last, node, scores, value, values))


class _Tables(NamedTuple):
    """The scaled table of pair scores, and its product with the values, entry by entry: `[G, S, N, N]`."""

    plain: Tensor
    weighed: Tensor


def _weighed(plain: Tensor, scores: Tensor, values: Tensor | None) -> _Tables:
    return _Tables(plain, plain * (as_values(scores) if values is None else values))


class _Onward(NamedTuple):
    """Results of the pass along the chain; `before + offset` is the mean score up to a position."""

    mass: Tensor  # [T, B, N]
    inverse: Tensor
    before: Tensor
    offset: Tensor  # [T, B], float64, without gradient
    final: Tensor  # [B, N], the probabilities of the states of the last position
    rest: Tensor  # [B], the mean minus the offset of the last position


class _MeanScore(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        table: Table,
        found: tuple[Forward, Tensor],
        last: Tensor,
        node: Tensor,
        scores: Tensor,
        value: Tensor,
        values: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        assert table.kept is not None
        tables = _weighed(table.kept, scores, values)
        onward = _carry(table, tables, found, last, node, value)
        ctx.table, ctx.last, ctx.tables, ctx.onward = table, last, tables, onward
        ctx.save_for_backward(node, scores, value, values)
        log_z = final_log_sum(found[0], last)
        mean = onward.offset.gather(0, last[None])[0] + onward.rest.double()
        return log_z, mean.masked_fill_(log_z == -torch.inf, 0.0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        table, last, tables, onward = ctx.table, ctx.last, ctx.tables, ctx.onward
        node, scores, value, values = ctx.saved_tensors
        if torch.is_grad_enabled():  # the gradient will be differentiated: recompute everything, recorded
            tables = _weighed((scores - table.scale).exp(), scores, values)
            onward = _carry(table, tables, forward_scan(node, table, (scores,)), last, node, value)
        back = _return(tables, onward, value, last)
        of_log_z, of_mean = (grad.to(node.dtype)[:, None] for grad in grads)
        # Pairs: x_t(i) plain(i, j) y_{t+1}(j) is a probability; further terms multiply it by `mean_t(i, j) - mean`.
        x, constant = onward.mass[:-1], of_log_z if values is not None else of_log_z + of_mean
        first = table.by_table(of_mean * x)
        second = table.by_table(x * (of_mean * (onward.before[:-1] + back.pair_excess) + constant))
        z, y = table.by_table(back.entering_after), table.by_table(back.entering)
        chance = product(first.mT, y)
        outer = product(torch.cat((first, second), -2).mT, torch.cat((z, y), -2))
        of_scores = tables.plain * outer if torch.is_grad_enabled() else outer.mul_(tables.plain)  # saves a table
        of_scores = of_scores.addcmul_(tables.weighed, chance)
        of_values = None if values is None else tables.plain * chance
        of_node = of_log_z * back.chance + of_mean * back.excess
        return None, None, None, of_node, of_scores, of_mean * back.chance, of_values


def _carry(
    table: Table, tables: _Tables, found: tuple[Forward, Tensor], last: Tensor, node: Tensor, value: Tensor
) -> _Onward:
    """The pass along the chain, which carries the mean score up to each position."""
    log_mass = found[0].log_mass
    mass, inverse = log_mass.exp(), inverse_total(table, node, log_mass, found[1])
    share = mass.detach() / mass.detach().sum(-1, keepdim=True).clamp_(min=torch.finfo(mass.dtype).tiny)
    before, offset = list[Tensor](), list[Tensor]()
    plain, weighed = (x.unbind(1) for x in tables)
    for t in range(len(value)):
        carried = value[t]
        if t > 0:
            step, sent = min(t, len(plain)) - 1, mass[t - 1]
            carried = carried + inverse[t] * (push(plain[step], sent * before[-1]) + push(weighed[step], sent))
        common = (share[t] * carried.detach()).sum(-1)
        before.append(carried - common[:, None])
        offset.append(common.double())
    at_last = last[None, :, None].expand(1, -1, mass.shape[-1])
    final = log_mass.gather(0, at_last)[0]
    impossible = (final == -torch.inf).all(-1, keepdim=True)
    final = final.masked_fill(impossible, 0.0).softmax(-1).masked_fill(impossible, 0.0)
    means = torch.stack(before)
    rest = (final * means.gather(0, at_last)[0]).sum(-1)
    return _Onward(mass, inverse, means, torch.stack(offset).cumsum(0), final, rest)


class _Return(NamedTuple):
    """Results of the pass back, `[T, B, N]`, or `[T-1, B, N]` for the positions from the second on."""

    chance: Tensor  # the probability of each state
    excess: Tensor  # chance times (the mean given the state - the mean)
    entering: Tensor  # chance over the sum that entered the state
    entering_after: Tensor  # entering times the mean of the state's value and of all after it, up to an offset
    pair_excess: Tensor  # [T-1, B, 1], that offset, with those of `before` and of the mean


def _return(tables: _Tables, onward: _Onward, value: Tensor, last: Tensor) -> _Return:
    """The pass back, which carries the probability of each state and the mean score after it."""
    mass, inverse, before, offset, final, rest = onward
    length, (plain, weighed) = len(mass), (x.unbind(1) for x in tables)
    ends = last[:, None] == torch.arange(length, device=last.device)  # [B, T]
    chance = [torch.where(ends[:, -1:], final, 0.0)]
    after, shared = [torch.zeros_like(chance[0])], [torch.zeros_like(offset[0])]
    entering, entering_after = list[Tensor](), list[Tensor]()
    for t in range(length - 2, -1, -1):
        step = min(t, len(plain) - 1)
        enter = inverse[t + 1] * chance[-1]
        enter_after = inverse[t + 1] * (chance[-1] * value[t + 1] + after[-1])
        now = mass[t] * pull(plain[step], enter)
        behind = mass[t] * (pull(plain[step], enter_after) + pull(weighed[step], enter))
        common = behind.detach().sum(-1)  # the probabilities sum to one, or to zero after the last position
        chance.append(now + torch.where(ends[:, t, None], final, 0.0))
        after.append(behind - now * common[:, None])
        shared.append(shared[-1] + common.double())
        entering.append(enter)
        entering_after.append(enter_after)
    chances, afters, late = (torch.stack(x[::-1]) for x in (chance, after, shared))
    whole = offset.gather(0, last[None])
    of_state, of_pair = (
        ((early + later - whole).to(rest.dtype) - rest)[..., None]
        for early, later in ((offset, late), (offset[:-1], late[1:]))
    )
    excess = chances * (before + of_state) + afters
    return _Return(chances, excess, torch.stack(entering[::-1]), torch.stack(entering_after[::-1]), of_pair)
