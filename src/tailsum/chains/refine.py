"""More accurate answers from a sketch of a chain: the error of its random choices, estimated and subtracted.

A sketch replaces the sum over all N states of a position by a weighted sum over K of them. The change that this makes at
one position is estimated as a difference of two sums, over the kept states and over all states. Both use the messages from
the kept states of earlier positions, and messages from later positions sent by an independent second sketch, the *pilot*.
Since these do not depend on the choice, the difference has mean zero whatever the pilot is: a control variate. What
remains is a product of the sketch's error and the pilot's. It costs as much as choosing the sketch, T x N x (K +
landmarks), and gives gradients to all N states, not only to the kept ones.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.chains.expected_message import PathMass, expected_message
from tailsum.chains.shared_products import shared_products
from tailsum.numerics.gradients import tracked
from tailsum.numerics.precision import full_precision
from tailsum.numerics.reduce import log_sum_exp
from tailsum.numerics.tensors import as_values, finite, without_common
from tailsum.scores.potential import Potential
from tailsum.sketch.selection import Subset


class Refined:
    """Log-partition, marginals and entropy of a chain over all its states, from kept states and a pilot.

    `node_scores()` returns the chain's `[*batch, T, N]`, in the caller's autograd mode. The kept states are
    `[*batch, T, K]`, those of the pilot `[*batch, T-1, M]`. `last [B]` is each last position.
    """

    def __init__(
        self, node_scores: Callable[[], Tensor], pairs: Potential, kept: Subset, pilot: Subset, last: Int[Tensor, " B"]
    ) -> None:
        self._node_scores, self._pairs, self._last = node_scores, pairs, last
        self._batch_shape = kept.index.shape[:-2]
        lead, dtype = (*self._batch_shape, kept.index.shape[-2] - 1, -1), kept.log_weight.dtype
        with torch.inference_mode(False):
            self._kept = tuple(_recordable(x) for x in (kept.index, kept.log_weight))
            self._pilot = tuple(_recordable(x.expand(lead)) for x in (pilot.index.long(), pilot.log_weight.to(dtype)))

    def __repr__(self) -> str:
        length, kept = self._kept[0].shape[-2:]
        return f"Refined(batch={list(self._batch_shape)}, T={length}, N={kept} of {self._pairs.n_to})"

    def log_partition(self) -> Float[Tensor, "*batch"]:
        """Log of the sum of `exp(score)` over all paths."""
        return self._estimate(self._node_scores(), self._pairs)[0]

    def entropy(self) -> Float[Tensor, "*batch"]:
        """Shannon entropy in nats: `log Z - E[score]`."""
        log_sum, mean = self._estimate(without_common(self._node_scores(), 1), self._pairs.centred())
        return log_sum - mean

    def marginals(self) -> Float[Tensor, "*batch T N"]:
        """Estimates of the probability of every state at every position: the gradient of the log-partition.

        They sum to one at each position. Those of improbable states may be slightly below zero.
        """
        recording, scores = torch.is_grad_enabled(), self._node_scores()
        with torch.inference_mode(False), torch.enable_grad():
            nodes, pairs = _recordable(scores), self._pairs.map(_recordable)
            recording &= nodes.requires_grad or pairs.requires_grad
            nodes = tracked(nodes, recording)
            total = self._estimate(nodes, pairs)[0].sum()
            return torch.autograd.grad(total, nodes, create_graph=recording, materialize_grads=True)[0]

    def _estimate(self, nodes: Tensor, pairs: Potential) -> tuple[Tensor, ...]:
        """Log of the sum over all paths and the mean of their scores, `[*batch]`, with the correction of each position."""
        with full_precision(nodes.device):
            nodes = nodes.reshape(len(self._last), *nodes.shape[-2:]).transpose(0, 1).contiguous()
            past, log_sum, mean = self._past(nodes, pairs)
            future = self._future(nodes, pairs)
            for t, (before, after) in enumerate(zip(past, future, strict=True)):
                mass, score = before.mass + after.mass, before.mean + after.mean
                index, log_weight = _at(self._kept, t)
                everything = _summed(mass, score)
                kept = _summed(mass.gather(-1, index) + log_weight, score.gather(-1, index))
                # Where the pilot's messages leave the kept states no mass, they carry no information.
                informed = (t < self._last) & (kept[0] > -math.inf)
                for of_all, of_kept, change in zip(everything, kept, (log_sum, mean), strict=True):
                    change.append(torch.where(informed, finite(of_all) - finite(of_kept), 0.0).double())
                    change.append(torch.where(self._last == t, of_all, 0.0).double())
            total = torch.stack(log_sum).sum(0)
            never = total == -math.inf
            estimates = total.masked_fill(never, -math.inf), torch.stack(mean).sum(0).masked_fill(never, 0.0)
        return tuple(x.to(nodes.dtype).reshape(self._batch_shape) for x in estimates)

    def _past(self, nodes: Tensor, pairs: Potential) -> tuple[list[PathMass], list[Tensor], list[Tensor]]:
        """Mass and mean of all paths that end in each state, at each position.

        A common part is subtracted at every step, so that they stay small. The parts subtracted from mass and mean up to
        each last position are returned too, `[B]` for each step.
        """
        paths, mass, mean = [PathMass(nodes[0], as_values(nodes[0]))], list[Tensor](), list[Tensor]()
        send = self._sender(pairs, self._kept)
        for t in range(1, len(nodes)):
            sent = send(t - 1, paths[-1])
            common = _common(sent)
            for parts, part in zip((mass, mean), common, strict=True):
                parts.append(torch.where(t <= self._last, part[:, 0], 0.0).double())
            paths.append(PathMass(nodes[t] + sent.mass - common.mass, as_values(nodes[t]) + sent.mean - common.mean))
        return paths, mass, mean

    def _future(self, nodes: Tensor, pairs: Potential) -> list[PathMass]:
        """Mass and mean of all paths that continue from each state, without the state itself, up to a common part."""
        paths = [PathMass(torch.zeros_like(nodes[0]), torch.zeros_like(nodes[0]))]
        send = self._sender(pairs.transposed(), self._pilot)
        for t in range(len(nodes) - 2, -1, -1):
            after = PathMass(nodes[t + 1] + paths[-1].mass, as_values(nodes[t + 1]) + paths[-1].mean)
            sent = send(t, after)
            common, inside = _common(sent), (t < self._last)[:, None]
            paths.append(PathMass(*(torch.where(inside, x - c, 0.0) for x, c in zip(sent, common, strict=True))))
        return paths[::-1]

    def _sender(self, pairs: Potential, kept: tuple[Tensor, ...]) -> Callable[[int, PathMass], PathMass]:
        """A function that sends from the kept states at one end of a step to all states at its other end."""
        shape, (steps, count) = self._batch_shape, kept[0].shape[-2:]
        shared = shared_products(pairs, count, shape.numel(), steps, means=True)

        def flat(x: Tensor) -> Tensor:
            return x.expand(*shape, -1, -1).reshape(-1, *x.shape[-2:]) if x.dim() > 2 else x[None]

        def send(step: int, paths: PathMass) -> PathMass:
            index, log_weight = _at(kept, step)
            value, mean = paths.mass.gather(-1, index) + log_weight, paths.mean.gather(-1, index)
            if shared is not None and (sent := shared.carried(index, value, mean)) is not None:
                return sent
            scores = pairs.at_step(step).gather(kept[0][..., step, :], None).in_rows()
            return expected_message(scores.map(flat), value, mean)

        return send


def _recordable(x: Tensor) -> Tensor:
    """A copy if the tensor was made in inference mode, as such tensors cannot take part in a backward pass."""
    return x.clone() if x.is_inference() else x


def _at(kept: tuple[Tensor, ...], t: int) -> tuple[Tensor, ...]:
    """Index and log weight of the kept states of one position, `[B, K]`."""
    return tuple(x[..., t, :].reshape(-1, x.shape[-1]) for x in kept)


def _common(paths: PathMass) -> PathMass:
    """The common parts that `_past` and `_future` subtract: the highest mass and the average mean, `[B, 1]` constants."""
    mass, mean = (x.detach() for x in paths)
    return PathMass(finite(mass.amax(-1, keepdim=True)), mean.mean(-1, keepdim=True))


def _summed(mass: Tensor, score: Tensor) -> tuple[Tensor, Tensor]:
    """The log of the total mass, and the mean of the scores under it, `[B]`."""
    total = log_sum_exp(mass, -1)
    return total, ((mass - finite(total)[:, None]).exp() * score).sum(-1)
