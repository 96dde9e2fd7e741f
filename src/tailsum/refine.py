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

from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tailsum.kernels.expect import expected_message
from tailsum.kernels.precision import full_precision
from tailsum.kernels.reduce import log_sum_exp
from tailsum.potential import Potential, finite
from tailsum.select import Subset

if TYPE_CHECKING:
    from tailsum.chain import LinearChain


class Paths(NamedTuple):
    """Of the paths through each state `[B, N]`: the logarithm of their mass, and the mean of their scores."""

    mass: Tensor
    mean: Tensor


class Estimate(NamedTuple):
    """Log of the sum over all paths, and the mean of their scores."""

    log_sum: Float[Tensor, "*batch"]
    expected: Float[Tensor, "*batch"]


class Refined:
    """Log-partition, marginals and entropy of a chain over all its states, from a sketch and a pilot."""

    def __init__(self, sketch: "LinearChain", pilot: Subset) -> None:
        self.sketch, self.pilot, self.whole = sketch, pilot, sketch.whole
        self._pairs = self.whole._pairs
        self._last = self.whole._length() - 1

    def log_partition(self) -> Float[Tensor, "*batch"]:
        """Log of the sum of `exp(score)` over all paths."""
        return self._estimate(self.whole.node_scores()).log_sum

    def entropy(self) -> Float[Tensor, "*batch"]:
        """Shannon entropy in nats: `log Z - E[score]`."""
        estimate = self._estimate(self.whole.node_scores())
        return estimate.log_sum - estimate.expected

    def marginals(self) -> Float[Tensor, "*batch T N"]:
        """Estimates of the probability of every state at every position: the gradient of the log-partition.

        Those of a position sum to one. Of states that matter little, single ones may come out a little below zero.
        """
        recording = torch.is_grad_enabled()
        with torch.inference_mode(False), torch.enable_grad():
            nodes = self.whole.node_scores()
            recording &= nodes.requires_grad or any(x.requires_grad for x in self._pairs.tensors)
            nodes = nodes if nodes.requires_grad else nodes.detach().clone().requires_grad_()
            total = self._estimate(nodes).log_sum
            (found,) = torch.autograd.grad(total.sum(), nodes, create_graph=recording, materialize_grads=True)
        return found

    def _estimate(self, nodes: Tensor) -> Estimate:
        """The sketch's answers, less what the choice of the kept states of each position did to them."""
        with full_precision(nodes.device):
            nodes = self.whole._time_first(nodes)
            past, offset = self._past(nodes)
            future = self._future(nodes)
            log_sum, expected = offset, torch.zeros_like(offset)
            for t, (before, after) in enumerate(zip(past, future, strict=True)):
                mass, score = before.mass + after.mass, before.mean + after.mean
                index, log_weight = _flat(self.sketch.states, t), _flat(self.sketch.log_weight, t)
                everything = _summed(mass, score)
                kept = _summed(mass.gather(-1, index) + log_weight, score.gather(-1, index))
                log_sum = log_sum + self._share(t, everything[0], kept[0]).double()
                expected = expected + self._share(t, everything[1], kept[1])
        shape = self.whole.batch_shape
        return Estimate(log_sum.to(nodes.dtype).reshape(shape), expected.to(nodes.dtype).reshape(shape))

    def _share(self, t: int, everything: Tensor, kept: Tensor) -> Tensor:
        """What a position adds: the value itself at the last, the change by the choice of its states before that."""
        change = torch.where(t < self._last, finite(everything) - finite(kept), 0.0)
        return torch.where(self._last == t, everything, change)

    def _past(self, nodes: Tensor) -> tuple[list[Paths], Tensor]:
        """Of all paths that end in each state: the mass, divided by `exp(offset [B])` at the last position, and mean."""
        sent = Paths(nodes[0], finite(nodes[0]))
        found, offset, kept = [sent], nodes.new_zeros(nodes.shape[1], dtype=torch.float64), self.sketch
        for t in range(1, len(nodes)):
            step = self._step(self._pairs, t - 1, kept.states, kept.log_weight, sent)
            highest = finite(step.mass.detach().amax(-1, keepdim=True))
            offset = offset + torch.where(t <= self._last, highest[:, 0], 0.0).double()
            sent = Paths(nodes[t] + step.mass - highest, finite(nodes[t]) + step.mean)
            found.append(sent)
        return found, offset

    def _future(self, nodes: Tensor) -> list[Paths]:
        """Of all paths that go on from each state, the state left out: the mass, but for a factor, and mean."""
        nothing = Paths(torch.zeros_like(nodes[0]), torch.zeros_like(nodes[0]))
        found, back = [nothing], self._pairs.transposed()
        for t in range(len(nodes) - 2, -1, -1):
            after = Paths(nodes[t + 1] + found[-1].mass, finite(nodes[t + 1]) + found[-1].mean)
            step = self._step(back, t, self.pilot.index, self.pilot.log_weight, after)
            inside = (t < self._last)[:, None]
            mass = step.mass - finite(step.mass.detach().amax(-1, keepdim=True))
            found.append(Paths(*(torch.where(inside, x, 0.0) for x in (mass, step.mean))))
        return found[::-1]

    def _step(self, pairs: Potential, step: int, states: Tensor, log_weight: Tensor, sent: Paths) -> Paths:
        """What the kept states at one end of a step say of all states at its other end."""
        shape, index = self.whole.batch_shape, _flat(states, step)
        params = pairs.at_step(step).gather(states[..., step, :], None).table_params()
        params = tuple(p.expand(*shape, -1, -1).reshape(-1, *p.shape[-2:]) for p in params)
        value = sent.mass.gather(-1, index) + _flat(log_weight, step)
        return Paths(*expected_message(params, value, sent.mean.gather(-1, index)))


def _flat(x: Tensor, t: int) -> Tensor:
    """Position t of `[*batch, T, K]` as `[B, K]`."""
    return x[..., t, :].reshape(-1, x.shape[-1])


def _summed(mass: Tensor, score: Tensor) -> tuple[Tensor, Tensor]:
    """The logarithm of all mass, and the mean of the scores under it."""
    total = log_sum_exp(mass, -1)
    return total, ((mass - finite(total)[:, None]).exp() * score).sum(-1)
