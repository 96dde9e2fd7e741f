"""Checks whether a sketch misses states that matter, by comparisons with other sketches of the same model.

Sketches that miss the same states agree with one another, and their error bars are small. Three things expose them:
- A sum over any subset of the states, with weights one, is at most the true sum. If such a *bound* is above the estimate,
  the estimate is too low.
- Estimates by another proposal are right on average too, and rarely too high: by t nats with probability `exp(-t)` at most
  (Markov's inequality). If they are higher, the estimate is too low.
- If a few replicates, or a few states of large weight, make up the sum, another draw would have given another sum.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.numerics.tiles import tile_size
from tailsum.sketch.model import Propose
from tailsum.sketch.proposal import Lookahead
from tailsum.sketch.selection import Optimal, Subset
from tailsum.structure.base import Structure
from tailsum.structure.replicates import Combined, combine, effective, shares
from tailsum.structure.sketches import sketches

OTHERS = 4  # sketches by another proposal
LEAST = 64  # states that they keep at least
NEIGHBOURS = 64  # of their proposal
AFFORDABLE = 8192  # states for each node: with more, lists of neighbours would cost more than the sketches
MARGIN = 0.05  # nats that do not matter
ADVICE = "Raise k or landmarks, or use Lookahead with neighbours"


class SketchWarning(UserWarning):
    """Sketches of a model miss states that matter, or vary too much to be trusted."""


class Replicates(NamedTuple):
    """Sketches of one model: their log-partitions, the kept states, and the probability of each."""

    log_z: Float[Tensor, "r *batch"]
    states: Int[Tensor, "r *batch_node k"]
    chance: Float[Tensor, "r *batch_node k"]

    @classmethod
    def of(cls, small: Structure) -> "Replicates":
        """The replicates in a batch `[r, *batch]` of sketches."""
        log_z, chance = small.state_chances()
        return cls(log_z, small.states, chance)

    @classmethod
    def joined(cls, parts: Sequence["Replicates"]) -> "Replicates":
        """The replicates of several batches."""
        return cls(*map(torch.cat, zip(*parts, strict=True)))


def check_sketch(small: Structure[Any, Any], generator: torch.Generator | None = None) -> list[str]:
    """Reasons to distrust one sketch, as texts that say what is wrong and what to raise; an empty list if there are none.

    The sketch is compared with a few sketches by another proposal, and with the sum over the best states of all.

    >>> import tailsum as ts
    >>> chain = ts.LinearChain(torch.zeros(9, 200), 20 * torch.eye(200))
    >>> ts.check_sketch(chain.sketch(200))
    []
    >>> bool(ts.check_sketch(chain.sketch(10, proposal=ts.Uniform())))
    True
    """
    if not isinstance(small, Structure) or small.kept is None:
        raise ValueError(f"small must be a sketch: got {small}")
    if not small.batch_shape.numel():
        return []
    with torch.no_grad():
        replicate = Replicates.of(small.in_batch((1, *small.batch_shape)))
        log_z = replicate.log_z[0]
        estimate = Combined(log_z, torch.zeros_like(log_z), log_z - 1, log_z + 1)  # one sketch has no error bar
        others = _others(small.whole, replicate.states.shape[-1], None, generator)
        return [
            *_of_weights(replicate.chance[0], small.log_weight),
            *_too_low(estimate, _combined(others)),
            *_too_high(estimate, _combined(others)),
            *_below_bound(small.whole, estimate, (replicate, others)),
            *small.diagnostics(),
        ]


def diagnostics(
    model: Structure,
    replicates: Replicates,
    proposal: Propose | None,
    confidence: float,
    generator: torch.Generator | None,
) -> list[str]:
    """Reasons to distrust the sum of some replicates."""
    if not model.batch_shape.numel():
        return []
    estimate = _combined(replicates, confidence)
    others = _others(model, replicates.states.shape[-1], proposal, generator)
    return [
        *_of_spread(replicates.log_z, estimate),
        *_too_low(estimate, _combined(others)),
        *_below_bound(model, estimate, (replicates, others)),
    ]


def _combined(replicates: Replicates, confidence: float = 0.95) -> Combined:
    return combine(replicates.log_z, replicates.log_z, logarithm=True, confidence=confidence)


def _others(model: Structure, k: int, proposal: Propose | None, generator: torch.Generator | None) -> Replicates:
    """Sketches by another proposal: more rounds, and neighbours where the structure has them.

    Lists of neighbours cost N^2; where that would be more than the sketches, there are none.
    """
    chosen = Lookahead() if proposal is None else proposal
    near = chosen.neighbours if isinstance(chosen, Lookahead) else 0
    affordable = model.n_states <= AFFORDABLE * model.node_shape.numel()
    other = Lookahead(rounds=2, neighbours=near or (NEIGHBOURS if affordable else 0))
    batches = sketches(model, OTHERS, Optimal(max(k, LEAST)), other, generator)
    return Replicates.joined([Replicates.of(small) for small in batches])


# Reasons to distrust a sum.


def _of_spread(log_z: Float[Tensor, "r *batch"], estimate: Combined) -> list[str]:
    """Few replicates make up the sum, or the interval is wide."""
    count, few = len(log_z), effective(log_z)
    bad = (few < count / 3) | (estimate.high - estimate.low > 2)
    if count == 1 or not bad.any():  # a single replicate has no interval
        return []
    width = (estimate.high - estimate.low)[bad].max().item()
    about = f"{few.min().item():.1f} of {count} make up the sum, and its interval is {width:.3g} nats wide"
    return [f"the replicates vary{instances(bad)}: {about}. {ADVICE}, or take more replicates"]


def _of_weights(chance: Float[Tensor, "*batch_node k"], log_weight: Float[Tensor, "*batch_node k"]) -> list[str]:
    """A state that was not sure to be kept, times its weight, makes up much of the sum."""
    risky = torch.where(log_weight > math.log(2), chance, 0.0)
    if not (risky > max(0.5, 4 / chance.shape[-1])).any():
        return []
    return [f"one state that was kept by chance makes up {risky.max().item():.0%} of the sum. {ADVICE}"]


def _too_low(estimate: Combined, others: Combined) -> list[str]:
    text = "sketches by another proposal find {} nats more{}: states that matter are missed"
    return _gap(others.low - estimate.high, others.value - estimate.value, text)


def _too_high(estimate: Combined, others: Combined) -> list[str]:
    text = "sketches by another proposal find {} nats less{}: weights are too large"
    return _gap(estimate.low - others.high, estimate.value - others.value, text)


def _below_bound(model: Structure, estimate: Combined, seen: Sequence[Replicates]) -> list[str]:
    """A sum over some of the states is at most the whole one."""
    best = model.restrict(_best_states(model, seen))
    if not best.is_exact:
        return []
    bound = best.log_partition()
    text = "the sum over some of the states alone is {} nats above the estimate{}"
    return _gap(bound - estimate.high, bound - estimate.value, text)


def _gap(between: Tensor, nats: Tensor, text: str) -> list[str]:
    """`text` with the largest difference, in nats, if there is a gap between two intervals."""
    bad = between > MARGIN
    return [f"{text.format(f'{nats[bad].max().item():.3g}', instances(bad))}. {ADVICE}"] if bad.any() else []


def instances(bad: Tensor) -> str:
    """How many instances of a batch are concerned, for a text."""
    return f" in {int(bad.sum())} of {bad.numel()} instances" if bad.numel() > 1 else ""


# The states that matter most in all replicates.


def _best_states(model: Structure, seen: Sequence[Replicates]) -> Subset:
    """The states of highest probability in all replicates, and those that score highest if all nodes have them."""
    lead = (*model.batch_shape, *model.node_shape)
    chance = torch.zeros(*lead, model.n_states, dtype=model.dtype, device=model.device)
    for log_z, states, chances in seen:
        share = shares(log_z).exp().to(chance.dtype)
        weighted = chances * share.reshape(*share.shape, *(1,) * (chances.dim() - share.dim()))
        chance.scatter_add_(-1, *(x.movedim(0, -2).flatten(-2) for x in (states, weighted)))
    most = min(model.n_states, 2 * max(replicates.states.shape[-1] for replicates in seen))
    alike = _alike(model).topk(-(-most // 8), 0).indices.movedim(0, -1)  # [*batch, few]
    alike = alike.reshape(*model.batch_shape, *(1,) * len(model.node_shape), -1).expand(*lead, -1)
    chance.scatter_(-1, alike, 2.0 * len(seen))
    best = chance.topk(most)
    return Subset(best.indices, torch.where(best.values > 0, 0.0, -math.inf).to(chance.dtype))


def _alike(model: Structure) -> Float[Tensor, "n *batch"]:
    """For each state, the log-sum over all configurations in which every node has this state."""
    lead, log_sums = (*model.batch_shape, *model.node_shape), list[Tensor]()
    chunk = max(1, tile_size(model.device) // max(1, math.prod(lead)))
    for states in torch.arange(model.n_states, device=model.device).split(chunk):
        index = states.reshape(-1, *(1,) * (len(lead) + 1)).expand(-1, *lead, 1)
        zeros = torch.zeros(index.shape, dtype=model.dtype, device=model.device)
        small = model.in_batch((len(states), *model.batch_shape)).restrict(Subset(index, zeros))
        log_sums.append(small.log_partition())
    return torch.cat(log_sums)
