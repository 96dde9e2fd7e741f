"""The best path of a chain, step by step in tiles of the scores. Chosen where nothing faster takes the chain.

An offset that all states of a position share is subtracted at each step, so that it costs no digits along the chain: the
messages rank paths, they do not score them.
"""

import math

import torch
from torch import Tensor

from tailsum.numerics.reduce import highest
from tailsum.numerics.tensors import finite, unmasked
from tailsum.scores.potential import Potential
from tailsum.scores.products import grouped


def less_highest(node: Tensor) -> Tensor:
    """Scores `[B, T, N]` of states as `[T, B, N]`, less the highest of each position."""
    node = unmasked(node.transpose(0, 1)).contiguous()
    return node - finite(node.amax(-1, keepdim=True))


class PairSteps:
    """The scores of pairs at each step, less a number for each table that is near its highest score."""

    def __init__(self, pairs: Potential) -> None:
        self.pairs, (self.groups, self.count), self.n_to = pairs, pairs.lead, pairs.n_to
        self._made, self._now = -1, pairs
        self._less: Tensor | None = None  # [G], where there was no room for another table

    def _at(self, t: int) -> tuple[Potential, Tensor | None]:
        """The scores `[G, N, N]` of step t, and what is still to be subtracted from them."""
        step = min(t, self.count - 1)
        if step != self._made:
            given = self.pairs.at_step(step)
            self._now, self._made, common = given.centred(), step, given.common_part()
            self._less = common if self._now is given and bool(common.any()) else None
        return self._now, self._less

    def enter(self, best: Tensor, t: int) -> Tensor:
        """The best path into each state one step later, without the node scores: `[B, N]` from `[B, N]`."""
        pairs, less = self._at(t)
        return pairs.into(grouped(best, self.groups), highest, less).reshape(len(best), self.n_to)

    def rows(self, t: int, start: int, stop: int) -> Tensor:
        """Scores of the transitions of step t into the states `start .. stop-1`: `[G, to, from]`."""
        pairs, less = self._at(t)
        scores = pairs.columns(start, stop).block().mT
        return scores if less is None else scores - less[:, None, None]

    def into(self, t: int, state: Tensor) -> Tensor:
        """Scores of the transitions of step t into `state [B]`: `[B, from]`."""
        pairs, less = self._at(t)
        scores = pairs.block(None, grouped(state[:, None], self.groups)[..., 0])
        scores = scores if less is None else scores - less[:, None, None]
        return scores.mT.reshape(len(state), scores.shape[-2])


def best_path_by_steps(node: Tensor, pairs: Potential, last: Tensor) -> Tensor:
    """The best path `[B, T]`; arguments as of `best_paths`.

    Without back-pointers, which cost more than the maxima: following a path back takes one column a step.
    """
    node, steps = less_highest(node), PairSteps(pairs)
    best = _messages(node, steps)
    ending = best[last, torch.arange(len(last), device=last.device)]
    inside = torch.arange(len(node), device=last.device) <= last[:, None]
    possible = inside & (ending > -math.inf).any(-1, keepdim=True)
    return torch.where(possible, _walk(best, steps, last, ending.argmax(-1)), -1)


def _walk(best: Tensor, steps: PairSteps, last: Tensor, final: Tensor) -> Tensor:
    """Paths `[B, T]` back from the states `final [B]` at the positions `last`; states after these mean nothing."""
    states = [final]
    for t in range(len(best) - 2, -1, -1):
        before = (best[t] + steps.into(t, states[-1])).argmax(-1)
        states.append(torch.where(t < last, before, final))
    return torch.stack(states[::-1], -1)


def _messages(node: Tensor, steps: PairSteps) -> Tensor:
    """The score of the best path into each state, less the highest of its position: `[T, B, N]`."""
    best = torch.empty_like(node)
    for t in range(len(node)):
        entering = steps.enter(best[t - 1], t - 1) if t > 0 else 0.0
        torch.add(node[t], entering, out=best[t])
        best[t] -= finite(best[t].amax(-1, keepdim=True))
    return best
