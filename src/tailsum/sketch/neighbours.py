"""Neighbours: for each state, the states with which it scores highest, and messages along these pairs alone.

A message from landmarks misses states whose mass rests on a few particular partners that are no landmarks: on a sticky
chain, each state and itself. In the messages of `Lookahead`, the part that each state receives from itself and from its
neighbours is exact, and landmarks estimate only the rest.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.numerics.check import at_least
from tailsum.numerics.table import tile_rows
from tailsum.numerics.tensors import at_step, finite
from tailsum.scores.factored import Factored
from tailsum.scores.potential import Dense, Potential
from tailsum.scores.scored import Scored
from tailsum.sketch.selection import Subset

EVALUATIONS = 1 << 28  # how many pairs of a `Scored` potential are evaluated to make lists of neighbours, at most


class Neighbours:
    """Lists of the best successors and predecessors of each state under a transition that all steps share.

    `size` is the length of each list. The states are split into `size` interleaved groups, and the best of each group is
    listed. Making the lists costs as much as one step of exact inference, N^2 products, in tiles. Lists may be used again
    while the scores change, as in training: sums stay unbiased with any lists, and become more accurate with fresh ones.

    >>> near = Neighbours(torch.randn(1000, 1000), size=16)
    >>> near.successors.shape, near.predecessors.shape
    (torch.Size([1000, 16]), torch.Size([1000, 16]))
    """

    @torch.no_grad()
    def __init__(self, transition: Float[Tensor, "n n"] | Potential, size: int = 64) -> None:
        at_least(1, size=size)
        potential = Dense(transition) if isinstance(transition, Tensor) else transition
        if not isinstance(potential, Potential) or potential.lead.numel() != 1:
            got = f"leading dimensions {list(potential.lead)}" if isinstance(potential, Potential) else potential
            raise ValueError(f"transition must be a table [N, N] or a potential that all steps share: got {got}")
        n, size = potential.n_to, min(size, potential.n_to)
        flat = potential.map(lambda x: x.reshape(x.shape[x.dim() - potential.trailing :]))
        device = (flat.device if isinstance(flat, Scored) else flat.tensors[0].device) or torch.device("cpu")
        rows = max(size, tile_rows(n, device) // size * size)  # whole groups of rows
        successors = list[Tensor]()
        highest = found = torch.empty(0)
        for start in range(0, potential.n_from, rows):
            scores = flat.block(torch.arange(start, min(start + rows, potential.n_from), device=device))
            successors.append(_best_in_groups(scores, size)[1])
            best, index = _best_in_groups(scores.mT, size)
            if start == 0:
                highest, found = best, index
            else:
                better = best > highest
                highest, found = torch.where(better, best, highest), torch.where(better, index + start, found)
        self.successors: Int[Tensor, "n r"] = torch.cat(successors)
        self.predecessors: Int[Tensor, "n r"] = found

    def __repr__(self) -> str:
        n, size = self.successors.shape
        return f"Neighbours(N={n}, size={size})"


def _best_in_groups(scores: Float[Tensor, "a b"], groups: int) -> tuple[Tensor, Tensor]:
    """The highest score of each row in each of interleaved groups of columns, and its column: `[a, groups]`."""
    rows, columns = scores.shape
    if columns % groups:
        scores = torch.nn.functional.pad(scores, (0, -columns % groups), value=-math.inf)
    best = scores.unflatten(-1, (-1, groups)).max(-2)
    index = best.indices * groups + torch.arange(groups, device=scores.device)
    return best.values, index.clamp_(max=columns - 1).reshape(rows, groups)


@dataclass(frozen=True)
class NearMessages:
    """Messages to each state from itself and its neighbours: `partners [N, R]`, and the scores with them."""

    partners: Int[Tensor, "n r"]
    scores: Float[Tensor, "*lead n r"]  # lead as of the potential

    def at_step(self, step: int) -> "NearMessages":
        """The messages of one step."""
        return NearMessages(self.partners, at_step(self.scores, 2, step))

    def alone(self, value: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
        """The message of the neighbours, without landmarks, from the values of all states."""
        nobody = Subset(torch.zeros_like(value[..., :1], dtype=torch.long), torch.full_like(value[..., :1], -math.inf))
        return self.joined(torch.full_like(value, -math.inf), value, nobody)

    def joined(
        self, sent: Float[Tensor, "*batch n"], value: Float[Tensor, "*batch n"], kept: Subset
    ) -> Float[Tensor, "*batch n"]:
        """The message `sent` to each state by landmarks, the part of its neighbours exact in place of estimated.

        `value` are the values of all states that the message is a sum over, `kept` the landmarks among them that sent it.
        The landmarks' estimate of the neighbours' part is subtracted; the sum is no less than the neighbours' part.
        """
        n, size = self.partners.shape
        excess = torch.ones_like(value).scatter_add_(-1, kept.index, -kept.log_weight.exp())
        chunk = tile_rows(value[..., 0].numel() * size, value.device)
        tiles = []
        for start in range(0, n, chunk):
            some, landmarks = self.partners[start : start + chunk], sent[..., start : start + chunk]
            at = some.flatten()
            ways = value.index_select(-1, at).unflatten(-1, some.shape) + self.scores[..., start : start + chunk, :]
            highest = finite(torch.maximum(ways.amax(-1), landmarks))
            ways.sub_(highest[..., None]).exp_()
            missing = (ways * excess.index_select(-1, at).unflatten(-1, some.shape)).sum(-1)
            total = (landmarks - highest).exp_().add_(missing)
            tiles.append(torch.maximum(total, ways.sum(-1)).log_().add_(highest))
        return torch.cat(tiles, -1)


@torch.no_grad()
def near_messages(
    pairs: Potential, transposed: Potential, neighbours: Neighbours | int, dtype: torch.dtype, device: torch.device
) -> tuple[NearMessages, NearMessages]:
    """Messages from successors, which go back, and from predecessors, which go on, by scores and the same transposed.

    Lists are made here if a number, their size, is given, and one table serves all steps and sequences. Else, and where a
    function would have to be evaluated too often, each state has itself alone.
    """
    n, own = pairs.n_from, torch.arange(pairs.n_from, device=device)[:, None]
    shared = pairs.lead.numel() == 1
    affordable = not isinstance(pairs, Scored) or n * n <= EVALUATIONS
    if isinstance(neighbours, int) and shared and affordable:
        neighbours = Neighbours(pairs, neighbours)
    found = list[NearMessages]()
    for potential, name in ((pairs, "successors"), (transposed, "predecessors")):
        partners = own
        if isinstance(neighbours, Neighbours):
            listed = getattr(neighbours, name)
            if listed.shape[0] != n:
                raise ValueError(f"neighbours must have lists of {n} states, as the model: got {neighbours}")
            partners = torch.cat((own, listed), -1)
        scores = _scores_with(potential, partners, device).to(dtype)
        scores[..., 1:].masked_fill_(partners[:, 1:] == own, -math.inf)  # itself is there already
        found.append(NearMessages(partners, scores))
    return found[0], found[1]


def _scores_with(
    potential: Potential, partners: Int[Tensor, "n r"], device: torch.device
) -> Float[Tensor, "*lead n r"]:
    """The score of each state with each of its partners, in tiles."""
    wide = potential.map(lambda x: x.unsqueeze(-potential.trailing - 1)) if potential.lead else potential
    width = potential.left.shape[-1] if isinstance(potential, Factored) else 1  # numbers that a score is made of
    chunk = tile_rows(potential.lead.numel() * partners.shape[1] * width, device)
    tiles = []
    for start in range(0, len(partners), chunk):
        rows = torch.arange(start, min(start + chunk, len(partners)), device=device)[:, None]
        tiles.append(wide.block(rows, partners[start : start + chunk])[..., 0, :])
    return torch.cat(tiles, -2)
