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
from tailsum.chains.weighed import Params, Weighed, WeighedTable, WeighedTiles
from tailsum.numerics.table import Table, block_scores
from tailsum.numerics.tensors import as_values


class MeanScore(NamedTuple):
    """The log-partition of a chain and the mean of a score, `[B]` in float64."""

    log_partition: Tensor
    mean: Tensor


def mean_score(
    node: Tensor, params: Params, value: Tensor, values: Params | None, last: Tensor, kept: bool
) -> MeanScore | None:
    """The mean of `value [T, B, N]` and of the pair scores `values` along the paths of a chain.

    The chain has the scores `node [T, B, N]` of states and those of pairs in `params`, both kinds of pair scores the
    parameters of a `Table`, with the same G and S. It ends at `last [B]` and has two positions or more. `values=None` means
    the scores of pairs themselves; of all values only the finite ones count. Differentiable any number of times. With
    `kept`, two tables as large as that of all pairs are kept; else everything is streamed. Returns None if the range of
    the scores is too wide for products.
    """
    found = summed(node, params, last)
    if found is None:
        return None
    if found.left_out is not None:  # in another gauge: these scores are not those whose mean is wanted
        values = (as_values(block_scores(params if values is None else values)).expand_as(found.params[0]),)
    dtype = found.node.dtype
    value, values = value.to(dtype), tuple(x.to(dtype) for x in values or ())
    kept = kept and found.table.kept is not None and len(found.params) == 1
    passed = Forward(*(x.detach() for x in found.messages)), found.total.detach()
    count = len(found.params)
    return MeanScore(
        *_MeanScore.apply(found.table, kept, passed, last, count, found.node, value, *found.params, *values)
    )


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
        kept: bool,
        found: tuple[Forward, Tensor],
        last: Tensor,
        count: int,
        node: Tensor,
        value: Tensor,
        *pairs: Tensor,
    ) -> tuple[Tensor, Tensor]:
        params, values = pairs[:count], pairs[count:] or None
        weighed = WeighedTable(table, params, values) if kept else WeighedTiles(table, params, values)
        chances = _chances(table, weighed, found, last, node, value, params)
        ctx.table, ctx.last, ctx.weighed, ctx.chances, ctx.count = table, last, weighed, chances, count
        ctx.save_for_backward(node, value, *pairs)
        return final_log_sum(found[0], last), chances.gain.double().sum((0, 2)) + weighed.common(last)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        table, last, weighed, chances = ctx.table, ctx.last, ctx.weighed, ctx.chances
        node, value, *pairs = ctx.saved_tensors
        params, values = tuple(pairs[: ctx.count]), tuple(pairs[ctx.count :]) or None
        if torch.is_grad_enabled():  # the gradient will be differentiated: recompute everything, recorded
            weighed = type(weighed)(table, params, values)
            found = forward_scan(node, table, params)
            chances = _chances(table, weighed, found, last, node, value, params)
        mass, chance = chances.mass, chances.chance
        before, after, entering, entering_after = _excesses(table, weighed, chances, value, params)
        of_log_z, of_mean = (grad.to(node.dtype)[:, None] for grad in grads)
        # Pairs: mass_t(i) plain(i, j) entering_{t+1}(j) is a probability; further terms multiply it by `mean_t(i, j) - mean`.
        x, constant = mass[:-1], of_log_z if values is not None else of_log_z + of_mean
        first, second = table.by_table(of_mean * x), table.by_table(x * (of_mean * before[:-1] + constant))
        z, y = table.by_table(entering_after[1:]), table.by_table(entering[1:])
        of_pairs = weighed.gradients(first, second, z, y, ctx.needs_input_grad[7:])
        of_node = of_log_z * chance + of_mean * (chance * before + after)
        return None, None, None, None, None, of_node, of_mean * chance, *of_pairs


def _chances(
    table: Table,
    weighed: Weighed,
    found: tuple[Forward, Tensor],
    last: Tensor,
    node: Tensor,
    value: Tensor,
    params: Params,
) -> _Chances:
    """The pass back, which carries the probability of each state, and what the positions add."""
    log_mass = found[0].log_mass
    mass, inverse = log_mass.exp(), inverse_total(table, node, log_mass, found[1])
    final = log_mass.gather(0, last[None, :, None].expand(1, -1, mass.shape[-1]))
    impossible = (final == -torch.inf).all(-1, keepdim=True)
    final = final.masked_fill(impossible, 0.0).softmax(-1).masked_fill(impossible, 0.0)
    ends = last == torch.arange(len(mass), device=last.device)[:, None]  # [T, B]
    source = torch.where(ends[..., None], final, 0.0)
    chance, _ = Flow.apply(table, True, source, None, mass, inverse, *params)
    whole = chance.detach().sum(-1, keepdim=True)  # one, but for rounding that adds up, or none
    chance = chance / whole.masked_fill(whole == 0, 1.0)
    led = table.by_step(weighed.push(table.by_table(mass[:-1])), len(mass) - 1)
    added = torch.cat((value[:1], value[1:] + inverse[1:] * led))
    return _Chances(mass, inverse, chance, added, (chance * added).sum(-1, keepdim=True))


class _Excesses(NamedTuple):
    """Means less what they are on average, `[T, B, N]`."""

    before: Tensor  # of the positions up to the state's, given the state
    after: Tensor  # of those behind it, times the probability of the state
    entering: Tensor  # the probability of the state over the sum that entered it
    entering_after: Tensor  # entering times the mean of the state's value and of all after it


def _excesses(table: Table, weighed: Weighed, chances: _Chances, value: Tensor, params: Params) -> _Excesses:
    """A pass along the chain and one back."""
    mass, inverse, chance, added, gain = chances
    before, _ = Flow.apply(table, False, added - gain, None, inverse, mass, *params)
    before = before - (chance * before).sum(-1, keepdim=True)  # but for rounding, that is zero
    entering = inverse * chance
    inlet = entering * (value - gain)
    led = table.by_step(weighed.pull(table.by_table(entering[1:])), len(mass) - 1)
    source = torch.cat((mass[:-1] * led, torch.zeros_like(mass[:1])))
    after, _ = Flow.apply(table, True, source, inlet, mass, inverse, *params)
    after = after - chance * after.sum(-1, keepdim=True)
    return _Excesses(before, after, entering, inverse * after + inlet)
