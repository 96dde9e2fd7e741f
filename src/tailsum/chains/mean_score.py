"""The mean of a score over the paths of a chain, and its gradient.

The entropy (the paper's Algorithm 3, Eqs. 19 to 22) is `log Z - mean`. Let `before_t(i)` be the mean over the positions up to
t, and `after_t(i)` over those after t, both given state i at t. The mean of the whole path given the pair (i, j) is

    mean_t(i, j) = before_t(i) + value_t(i, j) + value_{t+1}(j) + after_{t+1}(j),

and the gradient of the mean in the pair's score is the pair's probability times `mean_t(i, j) - mean`. `before` and `after`
follow from the recursion `scan.Flow`. Both leave out `gain_t`, the mean of what position t adds, so that they do not grow
along the chain.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tailsum.chains import small_chains
from tailsum.chains.forward import log_partition, summed
from tailsum.chains.messages import Forward
from tailsum.chains.ways.scan import Flow, forward_scan, inverse_total
from tailsum.chains.weighed import Weighed, WeighedTable, WeighedTiles
from tailsum.numerics.fused.kernel import Kernel
from tailsum.numerics.gradients import with_slope
from tailsum.numerics.tensors import as_values, finite, unmasked
from tailsum.scores.potential import Dense, Potential
from tailsum.scores.products import Products


def mean_score(
    node: Tensor, pairs: Potential, value: Tensor, values: Potential | None, last: Tensor, kept: bool
) -> tuple[Tensor, Tensor] | None:
    """Log-partition and mean over paths of `value [T, B, N]` of states plus `values` of pairs, `[B]` in float64.

    The chain has the scores `node [T, B, N]` of states and `pairs` of pairs; `pairs` and `values` are flat, with the same
    G and S. It ends at `last [B]` and has two positions or more. `values=None` means the scores of
    pairs themselves; only finite values count. Differentiable any number of times. With `kept`, two tables of all pairs
    are kept; else everything is streamed. Returns None if the range of the scores is too wide for products.
    """
    chain = summed(node, pairs, last)
    if chain is None:
        return None
    if chain.left_out is not None:  # the pair scores in another gauge are not the values
        values = Dense(as_values((pairs if values is None else values).block()).expand_as(chain.pairs.tensors[0]))
    dtype = chain.node.dtype
    weighed = Weighing(kept and chain.table.kept is not None, chain.pairs, None if values is None else values.to(dtype))
    forward = Forward(*(x.detach() for x in chain.messages)), chain.total.detach()
    return _MeanScore.apply(chain.table, weighed, forward, last, chain.node, value.to(dtype), *weighed.tensors)


class Weighing(NamedTuple):
    """Which pair scores and which values of them, and whether by a kept table."""

    kept: bool
    pairs: Potential
    values: Potential | None

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors, of the scores first."""
        return self.pairs.tensors + (() if self.values is None else self.values.tensors)

    def of(self, tensors: Sequence[Tensor], table: Products) -> Weighed:
        """Products weighed by the values, from other tensors."""
        rest = iter(tensors)
        pairs = self.pairs.map(lambda _: next(rest))
        values = None if self.values is None else self.values.map(lambda _: next(rest))
        return (WeighedTable if self.kept else WeighedTiles)(table, pairs, values)


class _Chances(NamedTuple):
    """Probabilities of the states, and what each position adds to the mean; `[T, B, N]`."""

    mass: Tensor
    inverse: Tensor
    chance: Tensor
    added: Tensor  # the mean that a position adds, given its state
    gain: Tensor  # [T, B, 1]: its mean


class _MeanScore(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        table: Products,
        weighing: Weighing,
        forward: tuple[Forward, Tensor],
        last: Tensor,
        node: Tensor,
        value: Tensor,
        *tensors: Tensor,
    ) -> tuple[Tensor, Tensor]:
        weighed = weighing.of(tensors, table)
        chances = _chances(table, weighed, forward, last, node, value)
        ctx.table, ctx.last, ctx.weighed, ctx.chances = table, last, weighed, chances
        ctx.weighing = weighing._replace(pairs=weighing.pairs.map(torch.detach), values=_detached(weighing.values))
        ctx.save_for_backward(node, value, *tensors)
        return forward[0].log_sum(weighed.pairs, last), chances.gain.double().sum((0, 2)) + weighed.common(last)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        table, last, weighed, chances = ctx.table, ctx.last, ctx.weighed, ctx.chances
        node, value, *tensors = ctx.saved_tensors
        if torch.is_grad_enabled():  # the gradient will be differentiated: recompute everything, recorded
            weighed = ctx.weighing.of(tensors, table)
            forward = forward_scan(node, table, weighed.pairs.tensors)[:2]
            chances = _chances(table, weighed, forward, last, node, value)
        mass, chance = chances.mass, chances.chance
        before, after, entering, entering_after = _excesses(table, weighed, chances, value)
        of_log_z, of_mean = (grad.to(node.dtype)[:, None] for grad in grads)
        # The probability of a pair is mass_t(i) plain(i, j) entering_{t+1}(j); its gradient has it times `mean_t(i, j) - mean`.
        x, constant = mass[:-1], of_log_z if weighed.values is not None else of_log_z + of_mean
        first, second = table.by_table(of_mean * x), table.by_table(x * (of_mean * before[:-1] + constant))
        z, y = table.by_table(entering_after[1:]), table.by_table(entering[1:])
        of_pairs = weighed.gradients(first, second, z, y, ctx.needs_input_grad[6:])
        of_node = of_log_z * chance + of_mean * (chance * before + after)
        return None, None, None, None, of_node, of_mean * chance, *of_pairs


def _chances(
    table: Products,
    weighed: Weighed,
    forward: tuple[Forward, Tensor],
    last: Tensor,
    node: Tensor,
    value: Tensor,
) -> _Chances:
    """The pass back, which carries the probability of each state, and what the positions add."""
    (log_mass, _), total = forward
    mass, inverse = log_mass.exp(), inverse_total(table, node, log_mass, total)
    final = log_mass.gather(0, last[None, :, None].expand(1, -1, mass.shape[-1]))
    impossible = (final == -torch.inf).all(-1, keepdim=True)
    final = final.masked_fill(impossible, 0.0).softmax(-1).masked_fill(impossible, 0.0)
    ends = last == torch.arange(len(mass), device=last.device)[:, None]  # [T, B]
    source = torch.where(ends[..., None], final, 0.0)
    chance, _ = Flow.apply(table, True, source, None, mass, inverse, *weighed.pairs.tensors)
    sums = chance.detach().sum(-1, keepdim=True)  # one but for rounding, which adds up, or zero
    chance = chance / sums.masked_fill(sums == 0, 1.0)
    led = table.by_step(weighed.push(table.by_table(mass[:-1])), len(mass) - 1)
    added = torch.cat((value[:1], value[1:] + inverse[1:] * led))
    return _Chances(mass, inverse, chance, added, (chance * added).sum(-1, keepdim=True))


def _excesses(table: Products, weighed: Weighed, chances: _Chances, value: Tensor) -> tuple[Tensor, ...]:
    """Conditional means less the unconditional ones, by a pass along the chain and one back.

    `before`; `after` times the probability of the state; `entering`, the probability of the state divided by the sum that
    entered it; and `entering` times the mean of the state's value and of all positions after it: each `[T, B, N]`.
    """
    mass, inverse, chance, added, gain = chances
    tensors = weighed.pairs.tensors
    before, _ = Flow.apply(table, False, added - gain, None, inverse, mass, *tensors)
    before = before - (chance * before).sum(-1, keepdim=True)  # zero but for rounding
    entering = inverse * chance
    inlet = entering * (value - gain)
    led = table.by_step(weighed.pull(table.by_table(entering[1:])), len(mass) - 1)
    source = torch.cat((mass[:-1] * led, torch.zeros_like(mass[:1])))
    after, _ = Flow.apply(table, True, source, inlet, mass, inverse, *tensors)
    after = after - chance * after.sum(-1, keepdim=True)
    return before, after, entering, inverse * after + inlet


def _detached(values: Potential | None) -> Potential | None:
    return None if values is None else values.map(torch.detach)


# Chains of few states, in one launch of a kernel.


def _small_means(node: Tensor, table: Tensor, value: Tensor, values: Tensor, *, last: Tensor | None = None) -> Tensor:
    """Log Z and the mean of the values, `[2, B]`."""
    node, value = (small_chains.cleaned(x, last) for x in (node, as_values(value)))
    node, pairs, others = unmasked(node), Dense(table[:, None]).unmasked(), Dense(as_values(values)[:, None])
    last, found = small_chains.last_positions(node, last), None
    if node.shape[1] > 1:
        forward, added = (x.transpose(0, 1).contiguous() for x in (node, value))
        found = mean_score(forward, pairs, added, others, last, kept=True)
    if found is None:  # the range is too wide
        wide = [x.double() for x in (node, pairs.scores, value, others.scores)]
        found = with_slope(lambda x: log_partition(x[0], Dense(x[1]), last), wide[:2], wide[2:])
    return torch.stack([x.double() for x in found])


def _small_entropy(
    node: Tensor,
    table: Tensor,
    *,
    last: Tensor | None = None,
    entropy: bool = True,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    assert entropy  # what the launches are told
    scores = [x - finite(x.detach().amax(dims, keepdim=True)) for x, dims in ((node, -1), (table, (-2, -1)))]
    log_sum, mean = _small_means(*scores, *scores, last=last)
    return (log_sum - mean).to(dtype)


small_entropy = Kernel("small_chains", _small_entropy, small_chains.example, *small_chains.sized(entropy=1))
small_log_sum_and_mean = Kernel("small_chains", _small_means, small_chains.example, *small_chains.sized(values=1))
