"""The mean of a score over the paths of a chain, and its gradient.

With it the entropy (the paper's Algorithm 3, Eqs. 19 to 22) is `log Z - mean`.

The mean is a sum over positions of `gain_t`, the mean of what position t adds: the value of its state and that of the pair that
leads to it. With `before_t(i)` the mean of the first positions up to t, and `after_t(i)` that of the positions after t, both
given state i at t, the mean of the whole given the pair (i, j) at t and t+1 is

    mean_t(i, j) = before_t(i) + value_t(i, j) + value_{t+1}(j) + after_{t+1}(j),

and the gradient of the mean in the pair's score is the pair's probability times `mean_t(i, j) - mean`. Both come by the linear
recursion of `scan.Flow`, like the probabilities themselves. From what position t adds, `gain_t` is subtracted: so neither
grows along the chain, and both have mean zero. In place of `after` it is `after` times the probability of the
state that is carried, which needs no division.

`Structure` computes the same by derivatives of the log-partition, for every structure and range of scores: in many more
passes, and with the rounding errors of numbers that grow along the chain.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from tailsum.chains.forward import final_log_sum, summed
from tailsum.chains.scan import Flow, Forward, forward_scan, inverse_total
from tailsum.numerics.precision import product
from tailsum.numerics.table import Table, times
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
    found = summed(node, (scores,), last)
    if found is None or found.table.kept is None:
        return None
    if found.left_out is not None:  # in another gauge: these scores are not those whose mean is wanted
        values = (as_values(scores) if values is None else values).expand_as(found.params[0])
    dtype = found.node.dtype
    value, values = value.to(dtype), None if values is None else values.to(dtype)
    messages, total = Forward(*(x.detach() for x in found.messages)), found.total.detach()
    return MeanScore(*_MeanScore.apply(found.table, (messages, total), last, found.node, *found.params, value, values))


class _Tables(NamedTuple):
    """The scaled table of pair scores, and its product with the values, entry by entry: `[G, S, N, N]`."""

    plain: Tensor
    weighed: Tensor


def _weighed(plain: Tensor, scores: Tensor, values: Tensor | None) -> _Tables:
    return _Tables(plain, plain * (as_values(scores) if values is None else values))


class _Chances(NamedTuple):
    """Probabilities of the states, and what each position adds to the mean; `[T, B, N]`."""

    mass: Tensor
    inverse: Tensor
    chance: Tensor
    added: Tensor  # by a position, given its state and what comes before
    gain: Tensor  # [T, B, 1]: its mean


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
        chances = _chances(table, tables, found, last, node, scores, value)
        ctx.table, ctx.last, ctx.tables, ctx.chances = table, last, tables, chances
        ctx.save_for_backward(node, scores, value, values)
        return final_log_sum(found[0], last), chances.gain.double().sum((0, 2))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        table, last, tables, chances = ctx.table, ctx.last, ctx.tables, ctx.chances
        node, scores, value, values = ctx.saved_tensors
        if torch.is_grad_enabled():  # the gradient will be differentiated: recompute everything, recorded
            tables = _weighed((scores - table.scale).exp(), scores, values)
            found = forward_scan(node, table, (scores,))
            chances = _chances(table, tables, found, last, node, scores, value)
        mass, chance = chances.mass, chances.chance
        before, after, entering, entering_after = _excesses(table, tables, chances, scores, value)
        of_log_z, of_mean = (grad.to(node.dtype)[:, None] for grad in grads)
        # Pairs: mass_t(i) plain(i, j) entering_{t+1}(j) is a probability; further terms multiply it by `mean_t(i, j) - mean`.
        x, constant = mass[:-1], of_log_z if values is not None else of_log_z + of_mean
        first, second = table.by_table(of_mean * x), table.by_table(x * (of_mean * before[:-1] + constant))
        z, y = table.by_table(entering_after[1:]), table.by_table(entering[1:])
        together = product(first.mT, y)
        outer = product(torch.cat((first, second), -2).mT, torch.cat((z, y), -2))
        of_scores = tables.plain * outer if torch.is_grad_enabled() else outer.mul_(tables.plain)  # saves a table
        of_scores = of_scores.addcmul_(tables.weighed, together)
        of_values = None if values is None else tables.plain * together
        of_node = of_log_z * chance + of_mean * (chance * before + after)
        return None, None, None, of_node, of_scores, of_mean * chance, of_values


def _chances(
    table: Table,
    tables: _Tables,
    found: tuple[Forward, Tensor],
    last: Tensor,
    node: Tensor,
    scores: Tensor,
    value: Tensor,
) -> _Chances:
    """The pass back, which carries the probability of each state, and what the positions add."""
    log_mass = found[0].log_mass
    mass, inverse = log_mass.exp(), inverse_total(table, node, log_mass, found[1])
    final = log_mass.gather(0, last[None, :, None].expand(1, -1, mass.shape[-1]))
    impossible = (final == -torch.inf).all(-1, keepdim=True)
    final = final.masked_fill(impossible, 0.0).softmax(-1).masked_fill(impossible, 0.0)
    ends = last == torch.arange(len(mass), device=last.device)[:, None]  # [T, B]
    source = torch.where(ends[..., None], final, 0.0)
    chance, _ = Flow.apply(table, True, source, None, mass, inverse, scores)
    whole = chance.detach().sum(-1, keepdim=True)  # one, but for rounding that adds up, or none
    chance = chance / whole.masked_fill(whole == 0, 1.0)
    led = table.by_step(times(table.by_table(mass[:-1]), tables.weighed), len(mass) - 1)
    added = torch.cat((value[:1], value[1:] + inverse[1:] * led))
    return _Chances(mass, inverse, chance, added, (chance * added).sum(-1, keepdim=True))


class _Excesses(NamedTuple):
    """Means less what they are on average, `[T, B, N]`."""

    before: Tensor  # of the positions up to the state's, given the state
    after: Tensor  # of those behind it, times the probability of the state
    entering: Tensor  # the probability of the state over the sum that entered it
    entering_after: Tensor  # entering times the mean of the state's value and of all after it


def _excesses(table: Table, tables: _Tables, chances: _Chances, scores: Tensor, value: Tensor) -> _Excesses:
    """A pass along the chain and one back."""
    mass, inverse, chance, added, gain = chances
    before, _ = Flow.apply(table, False, added - gain, None, inverse, mass, scores)
    before = before - (chance * before).sum(-1, keepdim=True)  # but for rounding, that is zero
    entering = inverse * chance
    inlet = entering * (value - gain)
    led = table.by_step(product(table.by_table(entering[1:]), tables.weighed.mT), len(mass) - 1)
    source = torch.cat((mass[:-1] * led, torch.zeros_like(mass[:1])))
    after, _ = Flow.apply(table, True, source, inlet, mass, inverse, scores)
    after = after - chance * after.sum(-1, keepdim=True)
    return _Excesses(before, after, entering, inverse * after + inlet)
