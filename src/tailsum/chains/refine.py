"""Sharper answers from a sketch of a chain: what its random choices did to them, estimated and taken back.

A sketch replaces the sum over all N states of a position by a weighted sum over K of them. What that choice changed,
all others left as they are, can be seen: let every state of the position speak, once all of them and once the kept ones
alone, with the messages that the kept states of earlier positions send to all of them, and messages from later
positions that do not depend on the choice, because an independent second sketch, the *pilot*, sends them. The
difference has mean zero whatever the pilot says, so that it may be taken off; and if the pilot says the truth, nothing
is left of the error. (In statistics: a control variate, or a doubly robust estimate. What stays is a product of two
errors, the sketch's and the pilot's.) It costs as much as the sketch's own choice, T x N x (K + landmarks), and gives
gradients to all N states, not only to the kept ones.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.chains.expected_message import expected_message
from tailsum.numerics.precision import full_precision
from tailsum.numerics.reduce import log_sum_exp
from tailsum.numerics.tensors import as_values, finite, without_common
from tailsum.scores.potential import Potential
from tailsum.scores.scored import Scored
from tailsum.sketch.selection import Subset


class PathMass(NamedTuple):
    """Of the paths through each state `[B, N]`: the logarithm of their mass, and the mean of their scores."""

    mass: Tensor
    mean: Tensor


class Estimate(NamedTuple):
    """Log of the sum over all paths, and the mean of their scores."""

    log_sum: Float[Tensor, "*batch"]
    mean: Float[Tensor, "*batch"]


class Refined:
    """Log-partition, marginals and entropy of a chain over all its states, from kept states and a pilot.

    `node_scores()` gives the chain's `[*batch, T, N]`, in the caller's mode. The kept states are `[*batch, T, K]`, the
    pilot's `[*batch, T-1, M]`. `last [B]` is each last position.
    """

    def __init__(
        self, node_scores: Callable[[], Tensor], pairs: Potential, kept: Subset, pilot: Subset, last: Int[Tensor, " B"]
    ) -> None:
        self._node_scores, self._pairs, self._last = node_scores, pairs, last
        self._batch_shape = kept.index.shape[:-2]
        lead, dtype = (*self._batch_shape, kept.index.shape[-2] - 1, -1), kept.log_weight.dtype
        with torch.inference_mode(False):  # tensors of inference mode cannot take part in a backward pass
            self._kept = _Kept(kept.index, kept.log_weight)
            self._pilot = _Kept(pilot.index.long().expand(lead), pilot.log_weight.to(dtype).expand(lead))

    def log_partition(self) -> Float[Tensor, "*batch"]:
        """Log of the sum of `exp(score)` over all paths."""
        return self._estimate(self._node_scores(), self._pairs).log_sum

    def entropy(self) -> Float[Tensor, "*batch"]:
        """Shannon entropy in nats: `log Z - E[score]`."""
        estimate = self._estimate(without_common(self._node_scores(), 1), self._pairs.centred())
        return estimate.log_sum - estimate.mean

    def marginals(self) -> Float[Tensor, "*batch T N"]:
        """Estimates of the probability of every state at every position: the gradient of the log-partition.

        Those of a position sum to one. Those of states that matter little may be slightly below zero.
        """
        recording, own = torch.is_grad_enabled(), self._node_scores()
        with torch.inference_mode(False), torch.enable_grad():
            nodes = own.clone() if own.is_inference() else own
            pairs = self._pairs.map(lambda x: x.clone() if x.is_inference() else x)
            recording &= nodes.requires_grad or _requires_grad(pairs)
            nodes = nodes if recording and nodes.requires_grad else nodes.detach().clone().requires_grad_()
            total = self._estimate(nodes, pairs).log_sum
            (found,) = torch.autograd.grad(total.sum(), nodes, create_graph=recording, materialize_grads=True)
        return found

    def _estimate(self, nodes: Tensor, pairs: Potential) -> Estimate:
        """The sketch's answers, less what the choice of the kept states of each position did to them."""
        with full_precision(nodes.device):
            nodes = nodes.reshape(len(self._last), *nodes.shape[-2:]).transpose(0, 1).contiguous()
            past, log_sum, mean = self._past(nodes, pairs)
            future = self._future(nodes, pairs)
            for t, (before, after) in enumerate(zip(past, future, strict=True)):
                mass, score = before.mass + after.mass, before.mean + after.mean
                index, log_weight = self._kept.at(t)
                everything = _summed(mass, score)
                kept = _summed(mass.gather(-1, index) + log_weight, score.gather(-1, index))
                # Where the pilot gives the kept states no chance, it has no information.
                informed = (t < self._last) & (kept[0] > -math.inf)
                for whole, some, change in zip(everything, kept, (log_sum, mean), strict=True):
                    change.append(torch.where(informed, finite(whole) - finite(some), 0.0).double())
                    change.append(torch.where(self._last == t, whole, 0.0).double())
            total = torch.stack(log_sum).sum(0)
            never = total == -math.inf
            found = total.masked_fill(never, -math.inf), torch.stack(mean).sum(0).masked_fill(never, 0.0)
        return Estimate(*(x.to(nodes.dtype).reshape(self._batch_shape) for x in found))

    def _past(self, nodes: Tensor, pairs: Potential) -> tuple[list[PathMass], list[Tensor], list[Tensor]]:
        """Of all paths that end in each state: the mass and the mean.

        At each position both lack a common part, so that they stay small: what the positions up to the last lack
        together, `[B]` each, is given too.
        """
        sent = PathMass(nodes[0], as_values(nodes[0]))
        found, mass, mean = [sent], list[Tensor](), list[Tensor]()
        for t in range(1, len(nodes)):
            step = self._step(pairs, t - 1, self._kept, sent)
            common = _common(step)
            for all_of, one in zip((mass, mean), common, strict=True):
                all_of.append(torch.where(t <= self._last, one[:, 0], 0.0).double())
            sent = PathMass(nodes[t] + step.mass - common.mass, as_values(nodes[t]) + step.mean - common.mean)
            found.append(sent)
        return found, mass, mean

    def _future(self, nodes: Tensor, pairs: Potential) -> list[PathMass]:
        """Of all paths that go on from each state, the state left out: the mass and the mean, but for a common part."""
        nothing = PathMass(torch.zeros_like(nodes[0]), torch.zeros_like(nodes[0]))
        found, back = [nothing], pairs.transposed()
        for t in range(len(nodes) - 2, -1, -1):
            after = PathMass(nodes[t + 1] + found[-1].mass, as_values(nodes[t + 1]) + found[-1].mean)
            step = self._step(back, t, self._pilot, after)
            common, inside = _common(step), (t < self._last)[:, None]
            found.append(PathMass(*(torch.where(inside, x - c, 0.0) for x, c in zip(step, common, strict=True))))
        return found[::-1]

    def _step(self, pairs: Potential, step: int, kept: "_Kept", sent: PathMass) -> PathMass:
        """What the kept states at one end of a step say of all states at its other end."""
        shape, (index, log_weight) = self._batch_shape, kept.at(step)
        params = pairs.at_step(step).gather(kept.index[..., step, :], None).table_params()
        params = tuple(p.expand(*shape, -1, -1).reshape(-1, *p.shape[-2:]) if p.dim() > 2 else p[None] for p in params)
        value = sent.mass.gather(-1, index) + log_weight
        return PathMass(*expected_message(params, value, sent.mean.gather(-1, index)))


class _Kept:
    """Some states of each position, and the logarithms of their weights, `[*batch, T, K]`."""

    def __init__(self, index: Tensor, log_weight: Tensor) -> None:
        self.index, self.log_weight = (x.clone() if x.is_inference() else x for x in (index, log_weight))

    def at(self, t: int) -> tuple[Tensor, Tensor]:
        """Those of one position, `[B, K]`."""
        index, log_weight = (x[..., t, :].reshape(-1, x.shape[-1]) for x in (self.index, self.log_weight))
        return index, log_weight


def _common(paths: PathMass) -> PathMass:
    """A part that the masses, and one that the means, have in common: constants, `[B, 1]`."""
    mass, mean = (x.detach() for x in paths)
    return PathMass(finite(mass.amax(-1, keepdim=True)), mean.mean(-1, keepdim=True))


def _summed(mass: Tensor, score: Tensor) -> tuple[Tensor, Tensor]:
    """The logarithm of all mass, and the mean of the scores under it."""
    total = log_sum_exp(mass, -1)
    return total, ((mass - finite(total)[:, None]).exp() * score).sum(-1)


def _requires_grad(pairs: Potential) -> bool:
    """Whether scores have gradients, those of a function by what it gives for one pair."""
    if isinstance(pairs, Scored):
        first = torch.zeros((), dtype=torch.long, device=pairs.device)
        return pairs.at(first, first).requires_grad
    return any(x.requires_grad for x in pairs.tensors)
