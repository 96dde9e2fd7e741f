"""Does a sketch miss what matters? What sketches of one model say about one another.

Sketches that miss the same states agree with one another, and their error bars are small. Three things expose them:
- sums over any subset of the states, with weights one, are at most the true one. Such a *bound* above what the sketches
  say proves that they are too low;
- estimates by another proposal are right on average too. They are rarely too high: by Markov's inequality, by t nats with
  probability `exp(-t)` at most. So where they are higher, the sketches are too low;
- where few of the replicates, or few states of large weight, make up the sum, others would have made another one.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.numerics.table import tile_size
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
    """Sketches of one model: their log-partitions, the kept states, and the chance of each."""

    log_z: Float[Tensor, "r *batch"]
    states: Int[Tensor, "r *batch_node k"]
    chance: Float[Tensor, "r *batch_node k"]

    @classmethod
    def of(cls, small: Structure) -> "Replicates":
        """A batch `[r, *batch]` of sketches."""
        log_z, chance = small.state_chances()
        return cls(log_z, small.states, chance)

    @classmethod
    def joined(cls, parts: Sequence["Replicates"]) -> "Replicates":
        """The replicates of several batches."""
        return cls(*map(torch.cat, zip(*parts, strict=True)))


def check_sketch(small: Structure[Any, Any], generator: torch.Generator | None = None) -> list[str]:
    """What speaks against one sketch: texts that say what was found and what to raise; none if nothing was.

    It is compared with a few sketches by another proposal, and with the sum over the best states of all.

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
        own = Replicates.of(small.in_batch((1, *small.batch_shape)))
        log_z = own.log_z[0]
        found = Combined(log_z, torch.zeros_like(log_z), log_z - 1, log_z + 1)  # one sketch has no error bar
        others = _others(small.whole, own.states.shape[-1], None, generator)
        return [
            *_of_weights(own.chance[0], small.log_weight),
            *_too_low(found, _of(others)),
            *_too_high(found, _of(others)),
            *_below_bound(small.whole, found, (own, others)),
            *small.diagnostics(),
        ]


def diagnostics(
    model: Structure, own: Replicates, proposal: Propose | None, confidence: float, generator: torch.Generator | None
) -> list[str]:
    """What speaks against the sum of some replicates."""
    if not model.batch_shape.numel():
        return []
    found, others = _of(own, confidence), _others(model, own.states.shape[-1], proposal, generator)
    return [
        *_of_spread(own.log_z, found),
        *_too_low(found, _of(others)),
        *_below_bound(model, found, (own, others)),
    ]


def _of(replicates: Replicates, confidence: float = 0.95) -> Combined:
    return combine(replicates.log_z, replicates.log_z, logarithm=True, confidence=confidence)


def _others(model: Structure, k: int, proposal: Propose | None, generator: torch.Generator | None) -> Replicates:
    """Sketches by another proposal: more rounds, and neighbours where the structure has them.

    Lists of neighbours cost N^2; where that would be more than the sketches, there are none.
    """
    given = Lookahead() if proposal is None else proposal
    near = given.neighbours if isinstance(given, Lookahead) else 0
    affordable = model.n_states <= AFFORDABLE * model.node_shape.numel()
    other = Lookahead(rounds=2, neighbours=near or (NEIGHBOURS if affordable else 0))
    some = sketches(model, OTHERS, Optimal(max(k, LEAST)), other, generator)
    return Replicates.joined([Replicates.of(small) for small in some])


# What speaks against a sum.


def _of_spread(log_z: Float[Tensor, "r *batch"], found: Combined) -> list[str]:
    """Few replicates make up the sum, or the interval is wide."""
    count, few = len(log_z), effective(log_z)
    bad = (few < count / 3) | (found.high - found.low > 2)
    if count == 1 or not bad.any():  # one has no interval at all
        return []
    width = (found.high - found.low)[bad].max().item()
    about = f"{few.min().item():.1f} of {count} make up the sum, and its interval is {width:.3g} nats wide"
    return [f"the replicates vary{instances(bad)}: {about}. {ADVICE}, or take more replicates"]


def _of_weights(chance: Float[Tensor, "*batch_node k"], log_weight: Float[Tensor, "*batch_node k"]) -> list[str]:
    """A state that was not sure to be kept, times its weight, makes up much of the sum."""
    risky = torch.where(log_weight > math.log(2), chance, 0.0)
    if not (risky > max(0.5, 4 / chance.shape[-1])).any():
        return []
    return [f"one state that was kept by chance makes up {risky.max().item():.0%} of the sum. {ADVICE}"]


def _too_low(found: Combined, others: Combined) -> list[str]:
    bad = others.low > found.high + MARGIN
    if not bad.any():
        return []
    worst = (others.value - found.value)[bad].max().item()
    return [
        f"sketches by another proposal find {worst:.3g} nats more{instances(bad)}: states that matter are missed. {ADVICE}"
    ]


def _too_high(found: Combined, others: Combined) -> list[str]:
    bad = others.high < found.low - MARGIN
    if not bad.any():
        return []
    worst = (found.value - others.value)[bad].max().item()
    return [f"sketches by another proposal find {worst:.3g} nats less{instances(bad)}: weights are too large. {ADVICE}"]


def _below_bound(model: Structure, found: Combined, seen: Sequence[Replicates]) -> list[str]:
    """A sum over some of the states is at most the whole one."""
    best = model.restrict(_best_states(model, seen))
    if not best.is_exact:
        return []
    bound = best.log_partition()
    bad = bound > found.high + MARGIN
    if not bad.any():
        return []
    worst = (bound - found.value)[bad].max().item()
    return [f"the sum over some of the states alone is {worst:.3g} nats above the estimate{instances(bad)}. {ADVICE}"]


def instances(bad: Tensor) -> str:
    """How many of a batch something is said of."""
    return f" in {int(bad.sum())} of {bad.numel()} instances" if bad.numel() > 1 else ""


# The states that matter most, by all that was seen.


def _best_states(model: Structure, seen: Sequence[Replicates]) -> Subset:
    """The states of highest chance in all replicates, and those in which all nodes together score highest."""
    lead = (*model.batch_shape, *model.node_shape)
    chance = torch.zeros(*lead, model.n_states, dtype=model.dtype, device=model.device)
    for log_z, states, chances in seen:
        share = shares(log_z).exp().to(chance.dtype)
        weighted = chances * share.reshape(*share.shape, *(1,) * (chances.dim() - share.dim()))
        chance.scatter_add_(-1, *(x.movedim(0, -2).flatten(-2) for x in (states, weighted)))
    most = min(model.n_states, 2 * max(x.states.shape[-1] for x in seen))
    alike = _alike(model).topk(-(-most // 8), 0).indices.movedim(0, -1)  # [*batch, few]
    alike = alike.reshape(*model.batch_shape, *(1,) * len(model.node_shape), -1).expand(*lead, -1)
    chance.scatter_(-1, alike, 2.0 * len(seen))
    best = chance.topk(most)
    return Subset(best.indices, torch.where(best.values > 0, 0.0, -math.inf).to(chance.dtype))


def _alike(model: Structure) -> Float[Tensor, "n *batch"]:
    """For each state, the log-sum over all configurations in which every node has this state."""
    lead, found = (*model.batch_shape, *model.node_shape), list[Tensor]()
    chunk = max(1, tile_size(model.device) // max(1, math.prod(lead)))
    for some in torch.arange(model.n_states, device=model.device).split(chunk):
        index = some.reshape(-1, *(1,) * (len(lead) + 1)).expand(-1, *lead, 1)
        zeros = torch.zeros(index.shape, dtype=model.dtype, device=model.device)
        found.append(model.in_batch((len(some), *model.batch_shape)).restrict(Subset(index, zeros)).log_partition())
    return torch.cat(found)
