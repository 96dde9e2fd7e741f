"""Random paths of a chain: forward filtering, backward sampling, and its relaxation (the paper's Algorithm 4)."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.chains import plan
from tailsum.chains.forward import forward_messages
from tailsum.chains.ways.small_walk import small_walk
from tailsum.chains.ways.walk_kernel import walk_by_kernel
from tailsum.numerics.noise import gumbel
from tailsum.numerics.tiles import tile_rows
from tailsum.scores.potential import Potential


class BackwardWalk:
    """Walks through a chain from its last position to its first, guided by its forward messages.

    `node [T, B, N]` are node scores, `lengths [*batch]` counts positions. States are -1 in the padding, and throughout
    where no path is possible.
    """

    def __init__(self, node: Float[Tensor, "T B N"], pairs: Potential, lengths: Int[Tensor, "*batch"]) -> None:
        self.pairs, self.flat, self.dtype = pairs, pairs.flat(lengths.shape), node.dtype
        self.last = lengths - 1
        self.log_mass = forward_messages(node, self.flat, self.last.reshape(-1)).log_mass
        self.messages = self.log_mass.reshape(len(node), *lengths.shape, node.shape[-1], 1)
        final = self.messages.take_along_dim(self.last[None, ..., None, None], 0)[0]
        inside = torch.arange(len(node), device=node.device) <= self.last[..., None]
        self.inside = inside & (final > -math.inf).any(-2)  # [*batch, T]
        self.way = plan.walks(self.log_mass, self.flat)

    def at_a_time(self, count: int) -> int:
        """How many of `count` samples to draw together."""
        return max(1, count) if self.way == "kernels" else tile_rows(self.messages[0].numel(), self.messages.device)

    def sample(self, count: int, generator: torch.Generator | None) -> Int[Tensor, "count *batch T"]:
        """Independent paths."""
        if self.way == "steps" or not count:
            paths = self._states(count, lambda logits: gumbel(logits, generator).argmax(-2)).movedim(-1, 0)
        else:
            walk = small_walk if self.way == "few states" else walk_by_kernel
            paths = walk(self.log_mass, self.flat, self.last.reshape(-1), count, generator)
        return torch.where(self.inside, paths.reshape(count, *self.inside.shape), -1)

    def relaxed(
        self, temperature: float, hard: bool, count: int, generator: torch.Generator | None
    ) -> tuple[Float[Tensor, "count *batch T n"], Float[Tensor, "count *batch T n"], Int[Tensor, "count *batch T"]]:
        """Relaxed paths: weights and chances as in `RelaxedSample`, and the paths that were relaxed."""
        with torch.no_grad():
            noise = gumbel(self.messages.new_zeros(()).expand(*self.messages.shape[:-1], count), generator)
            noise = noise.flip(0)  # drawn from the last position to the first, as the walk goes
            states = self._states_by(noise)
        # Given the chosen states, the logits of all positions at once: these carry the gradient.
        following = self.pairs.block(None, states[..., 1:, :])
        following = torch.where(self.inside[..., 1:, None, None], following, 0.0)
        logits = self.messages.movedim(0, -3) + F.pad(following, (0, 0, 0, 0, 0, 1))  # [*batch, T, N, count]
        impossible = _impossible(logits)
        logits = logits.masked_fill(impossible, 0.0)
        chances = logits.softmax(-2)
        weights = ((logits + noise.movedim(0, -3)) / temperature).softmax(-2)
        if hard:
            weights = torch.zeros_like(weights).scatter(-2, states[..., None, :], 1.0) + weights - weights.detach()
        outside = impossible | ~self.inside[..., None, None]
        weights, chances = (x.masked_fill(outside, 0.0).movedim(-1, 0).to(self.dtype) for x in (weights, chances))
        return weights, chances, torch.where(self.inside, states.movedim(-1, 0), -1)

    def _states_by(self, noise: Float[Tensor, "T *batch N count"]) -> Int[Tensor, "*batch T count"]:
        """The paths of highest logits with this noise, from the last position to the first."""
        if self.way == "kernels" and noise.numel():
            from tailsum.numerics.fused.paths import walk  # noqa: PLC0415
            from tailsum.numerics.fused.scores import Pairs  # noqa: PLC0415

            length, *batch, n, count = noise.shape
            logits = (self.messages + noise).movedim(-1, -2).reshape(length, -1, n)
            last = self.last.reshape(-1).repeat_interleave(count)
            return walk(logits, Pairs(self.flat.tensors), last)[0].reshape(*batch, count, length).mT.clamp(min=0)
        left = iter(noise.flip(0))

        def choose(logits: Tensor) -> Tensor:
            return (logits.masked_fill(_impossible(logits), 0.0) + next(left)).argmax(-2)

        return self._states(noise.shape[-1], choose)

    def _states(self, count: int, choose: Callable[[Tensor], Tensor]) -> Int[Tensor, "*batch T count"]:
        """`count` paths; `choose(logits [.., N, count])` draws each state, given the state chosen at the next position."""
        states: list[Tensor] = []
        for t in range(len(self.messages) - 1, -1, -1):
            logits = self.messages[t].expand(*self.messages[t].shape[:-1], count)
            if states:
                block = self.pairs.at_step(t).block(None, states[-1])
                logits = logits + torch.where(self.last[..., None, None] > t, block, 0.0)
            states.append(choose(logits))
        return torch.stack(states[::-1], -2)


def _impossible(logits: Tensor) -> Tensor:
    """Where no state is possible: `[.., 1, count]`."""
    return (logits == -math.inf).all(-2, keepdim=True)
