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
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor

from tailsum.chains.expected_message import expected_message
from tailsum.numerics.precision import full_precision
from tailsum.numerics.reduce import log_sum_exp
from tailsum.numerics.tensors import as_values, finite
from tailsum.scores.potential import Dense, Potential
from tailsum.scores.scored import Scored
from tailsum.sketch.selection import Subset
from tailsum.structure.base import recordable
from tailsum.structure.check import check_subset

if TYPE_CHECKING:
    from tailsum.chains.linear_chain import LinearChain


class Paths(NamedTuple):
    """Of the paths through each state `[B, N]`: the logarithm of their mass, and the mean of their scores."""

    mass: Tensor
    mean: Tensor


class Estimate(NamedTuple):
    """Log of the sum over all paths, and the mean of their scores."""

    log_sum: Float[Tensor, "*batch"]
    expected: Float[Tensor, "*batch"]


class Refined:
    """Log-partition, marginals and entropy of a chain over all its states, from a sketch and a pilot `[*batch, T-1, M]`."""

    def __init__(self, sketch: "LinearChain", pilot: Subset) -> None:
        self.whole = sketch.whole
        steps = torch.Size((self.whole.n_nodes - 1,))
        check_subset(pilot, self.whole.batch_shape, steps, self.whole.n_states, "pilot")
        lead = (*self.whole.batch_shape, *steps, -1)
        with torch.inference_mode(False):  # what was made in inference mode is of no use to a backward pass
            self._kept = _Kept(sketch.states, sketch.log_weight)
            self._pilot = _Kept(pilot.index.long().expand(lead), pilot.log_weight.to(self.whole.dtype).expand(lead))
            self._last = self.whole._length() - 1

    def log_partition(self) -> Float[Tensor, "*batch"]:
        """Log of the sum of `exp(score)` over all paths."""
        return self._estimate(self.whole.node_scores(), self.whole._pairs).log_sum

    def entropy(self) -> Float[Tensor, "*batch"]:
        """Shannon entropy in nats: `log Z - E[score]`."""
        nodes, pairs = self.whole._centred((Dense(self.whole.node_scores()), self.whole._pairs))
        estimate = self._estimate(cast("Dense", nodes).scores, cast("Potential", pairs))
        return estimate.log_sum - estimate.expected

    def marginals(self) -> Float[Tensor, "*batch T N"]:
        """Estimates of the probability of every state at every position: the gradient of the log-partition.

        Those of a position sum to one. Of states that matter little, single ones may come out a little below zero.
        """
        recording, own = torch.is_grad_enabled(), self.whole.node_scores()
        with torch.inference_mode(False), torch.enable_grad():
            scores, pairs = recordable((Dense(own), self.whole._pairs))
            nodes, pairs = cast("Dense", scores).scores, cast("Potential", pairs)
            recording &= nodes.requires_grad or _requires_grad(pairs)
            nodes = nodes if recording and nodes.requires_grad else nodes.detach().clone().requires_grad_()
            total = self._estimate(nodes, pairs).log_sum
            (found,) = torch.autograd.grad(total.sum(), nodes, create_graph=recording, materialize_grads=True)
        return found

    def _estimate(self, nodes: Tensor, pairs: Potential) -> Estimate:
        """The sketch's answers, less what the choice of the kept states of each position did to them."""
        with full_precision(nodes.device):
            nodes = self.whole._time_first(nodes)
            past, log_sum, expected = self._past(nodes, pairs)
            future = self._future(nodes, pairs)
            for t, (before, after) in enumerate(zip(past, future, strict=True)):
                mass, score = before.mass + after.mass, before.mean + after.mean
                index, log_weight = self._kept.at(t)
                everything = _summed(mass, score)
                kept = _summed(mass.gather(-1, index) + log_weight, score.gather(-1, index))
                # Where the pilot gives the kept states no chance, it has nothing to say.
                told = (t < self._last) & (kept[0] > -math.inf)
                for whole, some, change in zip(everything, kept, (log_sum, expected), strict=True):
                    change.append(torch.where(told, finite(whole) - finite(some), 0.0).double())
                    change.append(torch.where(self._last == t, whole, 0.0).double())
            total = torch.stack(log_sum).sum(0)
            never = total == -math.inf
            total, mean = total.masked_fill(never, -math.inf), torch.stack(expected).sum(0).masked_fill(never, 0.0)
        shape = self.whole.batch_shape
        return Estimate(total.to(nodes.dtype).reshape(shape), mean.to(nodes.dtype).reshape(shape))

    def _past(self, nodes: Tensor, pairs: Potential) -> tuple[list[Paths], list[Tensor], list[Tensor]]:
        """Of all paths that end in each state: the mass and the mean.

        At each position both lack a common part, so that they stay small: what the positions up to the last lack
        together, `[B]` each, is given too.
        """
        sent = Paths(nodes[0], as_values(nodes[0]))
        found, mass, mean = [sent], list[Tensor](), list[Tensor]()
        for t in range(1, len(nodes)):
            step = self._step(pairs, t - 1, self._kept, sent)
            common = _common(step)
            for all_of, one in zip((mass, mean), common, strict=True):
                all_of.append(torch.where(t <= self._last, one[:, 0], 0.0).double())
            sent = Paths(nodes[t] + step.mass - common.mass, as_values(nodes[t]) + step.mean - common.mean)
            found.append(sent)
        return found, mass, mean

    def _future(self, nodes: Tensor, pairs: Potential) -> list[Paths]:
        """Of all paths that go on from each state, the state left out: the mass and the mean, but for a common part."""
        nothing = Paths(torch.zeros_like(nodes[0]), torch.zeros_like(nodes[0]))
        found, back = [nothing], pairs.transposed()
        for t in range(len(nodes) - 2, -1, -1):
            after = Paths(nodes[t + 1] + found[-1].mass, as_values(nodes[t + 1]) + found[-1].mean)
            step = self._step(back, t, self._pilot, after)
            common, inside = _common(step), (t < self._last)[:, None]
            found.append(Paths(*(torch.where(inside, x - c, 0.0) for x, c in zip(step, common, strict=True))))
        return found[::-1]

    def _step(self, pairs: Potential, step: int, kept: "_Kept", sent: Paths) -> Paths:
        """What the kept states at one end of a step say of all states at its other end."""
        shape, (index, log_weight) = self.whole.batch_shape, kept.at(step)
        params = pairs.at_step(step).gather(kept.index[..., step, :], None).table_params()
        params = tuple(p.expand(*shape, -1, -1).reshape(-1, *p.shape[-2:]) if p.dim() > 2 else p[None] for p in params)
        value = sent.mass.gather(-1, index) + log_weight
        return Paths(*expected_message(params, value, sent.mean.gather(-1, index)))


class _Kept:
    """Some states of each position, and the logarithms of their weights, `[*batch, T, K]`."""

    def __init__(self, index: Tensor, log_weight: Tensor) -> None:
        self.index, self.log_weight = (x.clone() if x.is_inference() else x for x in (index, log_weight))

    def at(self, t: int) -> tuple[Tensor, Tensor]:
        """Those of one position, `[B, K]`."""
        index, log_weight = (x[..., t, :].reshape(-1, x.shape[-1]) for x in (self.index, self.log_weight))
        return index, log_weight


def _common(paths: Paths) -> Paths:
    """A part that the masses, and one that the means, have in common: constants, `[B, 1]`."""
    mass, mean = (x.detach() for x in paths)
    return Paths(finite(mass.amax(-1, keepdim=True)), mean.mean(-1, keepdim=True))


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
