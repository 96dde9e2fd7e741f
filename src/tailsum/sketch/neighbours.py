"""Neighbours: for each state, the states with which it scores highest, and messages along these pairs alone.

A message from landmarks misses states whose mass rests on a few particular partners that are no landmarks: on a sticky
chain, each state and itself. In the messages of `Lookahead`, the part that each state receives from itself and from its
neighbours is exact, and landmarks estimate only the rest.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from tailsum.numerics.check import at_least
from tailsum.numerics.stream import Parts, in_tiles
from tailsum.numerics.table import tile_rows
from tailsum.numerics.tensors import at_step, finite
from tailsum.scores.factored import Factored
from tailsum.scores.potential import Dense, Potential
from tailsum.scores.scored import Scored
from tailsum.sketch.selection import Subset

_TOGETHER = 8  # states of each group that are compared at a time
_FAR = 3e38  # minus this stands for minus infinity, whose last bits cannot hold a place
# How many pairs are scored to make lists of neighbours unless they are given, at most; of a function.
PAIRS, EVALUATIONS = 1 << 36, 1 << 30


class Neighbours:
    """Lists of the best successors and predecessors of each state under a transition that all steps share.

    `size` is the length of each list. The states are split into `4 * size` interleaved groups, and the best of each group
    compete for the list. Making the lists costs as much as one step of exact inference, N^2 products, in tiles. Lists may
    be used again while the scores change, as in training: sums stay unbiased with any lists, and become more accurate
    with fresh ones.

    >>> near = Neighbours(torch.randn(1000, 1000), size=16)
    >>> near.successors.shape, near.predecessors.shape
    (torch.Size([1000, 16]), torch.Size([1000, 16]))
    """

    @torch.no_grad()
    def __init__(self, transition: Float[Tensor, "n n"] | Potential, size: int = 32) -> None:
        at_least(1, size=size)
        potential = Dense(transition) if isinstance(transition, Tensor) else transition
        if not isinstance(potential, Potential) or potential.lead.numel() != 1:
            got = f"leading dimensions {list(potential.lead)}" if isinstance(potential, Potential) else potential
            raise ValueError(f"transition must be a table [N, N] or a potential that all steps share: got {got}")
        flat = potential.map(lambda x: x.reshape(x.shape[x.dim() - potential.trailing :]))
        device = (flat.device if isinstance(flat, Scored) else flat.tensors[0].device) or torch.device("cpu")
        self.successors: Int[Tensor, "n r"]
        self.predecessors: Int[Tensor, "n r"]
        self.successors, self.predecessors = _lists(flat, min(size, flat.n_from), device)

    @classmethod
    def of(cls, successors: Int[Tensor, "n r"], predecessors: Int[Tensor, "n r"]) -> "Neighbours":
        """Lists that were made before."""
        lists = cls.__new__(cls)
        lists.successors, lists.predecessors = successors, predecessors
        return lists

    def __repr__(self) -> str:
        n, size = self.successors.shape
        return f"Neighbours(N={n}, size={size})"


def _lists(potential: Potential, size: int, device: torch.device) -> tuple[Int[Tensor, "n r"], Int[Tensor, "n r"]]:
    """For each row `size` columns of high score, and for each column rows: the best of those that lead their group.

    A score is compared together with its place in the group, which takes the last bits of its mantissa, so that one
    maximum finds both: much faster than a maximum with indices.
    """
    n, groups = potential.n_from, min(4 * size, potential.n_from)
    places = (1 << (-(-n // groups)).bit_length()) - 1  # the bits for places, all ones
    height = _TOGETHER * groups
    width = max(1, tile_rows(height, device) // groups) * groups
    by_column, by_row = (torch.full(shape, -math.inf, device=device) for shape in ((groups, n), (n, groups)))
    for top in range(0, n, height):
        rows = torch.arange(top, min(top + height, n), device=device)
        best = by_row[top : top + height]
        for left in range(0, n, width):
            right = min(left + width, n)
            tile = _in_groups(potential.columns(left, right).block(rows).float(), groups)
            if not isinstance(potential, Factored):
                tile.clamp_(-_FAR, _FAR)
            bits, (down, _, across, _) = tile.view(torch.int32), tile.shape
            place = torch.arange(down, dtype=torch.int32, device=device)[:, None, None, None] + top // groups
            bits.bitwise_and_(~places).bitwise_or_(place)
            found = by_column[:, left:right]
            found.copy_(torch.maximum(found, tile.amax(0).flatten(1)[:, : right - left]))
            other = torch.arange(across, dtype=torch.int32, device=device)[:, None] + left // groups
            bits.bitwise_xor_(place ^ other)  # the places of columns instead of rows
            best.copy_(torch.maximum(best, tile.amax(2).flatten(0, 1)[: len(rows)]))

    def listed(leaders: Float[Tensor, "n groups"]) -> Int[Tensor, "n r"]:
        best = leaders.topk(size)
        return (best.values.view(torch.int32) & places) * groups + best.indices

    return listed(by_row), listed(by_column.T.contiguous())


def _in_groups(scores: Float[Tensor, "a b"], groups: int) -> Float[Tensor, "down groups across groups"]:
    """Rows and columns in interleaved groups; incomplete ones are filled up."""
    down, across = (-size % groups for size in scores.shape)
    if down or across:
        scores = torch.nn.functional.pad(scores, (0, across, 0, down), value=-1.1 * _FAR)
    return scores.unflatten(1, (-1, groups)).unflatten(0, (-1, groups))


@dataclass(frozen=True)
class NearMessages:
    """Messages to each state from itself, its first partner, and its neighbours."""

    partners: Int[Tensor, "n r"]
    scale: Float64[Tensor, "*lead n"]  # the highest score of a state with a partner; lead as of the potential
    weight: Float64[Tensor, "*lead n r"]  # the exponentiated scores, less the scale

    def each(self, change: Callable[[Tensor, int], Tensor]) -> "NearMessages":
        """The messages of other leading dimensions: `change` gets a tensor and how many dimensions follow the leading."""
        return NearMessages(self.partners, change(self.scale, 1), change(self.weight, 2))

    def at_step(self, step: int) -> "NearMessages":
        """The messages of one step."""
        return self.each(lambda x, trailing: at_step(x, trailing, step))

    def joined(
        self, sent: Float[Tensor, "*batch n"], value: Float[Tensor, "*batch n"], kept: Subset
    ) -> Float[Tensor, "*batch n"]:
        """The message `sent` to each state by landmarks, the part of its neighbours exact in place of estimated.

        `value` are the values of all states that the message is a sum over, `kept` the landmarks among them that sent it.
        The landmarks' estimate of the neighbours' part is subtracted. The sum is no less than the part of the state
        itself, whatever the rounding of large weights.
        """
        highest = finite(value.amax(-1, keepdim=True)).double()
        mass = (value.double() - highest).exp_()
        excess = mass.scatter_add(-1, kept.index, -mass.gather(-1, kept.index) * kept.log_weight.double().exp())
        scale = self.scale + highest
        landmarks = sent.double() - scale
        top = landmarks.clamp(min=0.0)
        total = (landmarks - top).exp_().add_(self._summed(excess) * (-top).exp())
        itself = self.weight[..., 0] * mass * (-top).exp_()
        return torch.maximum(total, itself).log_().add_(top).add_(scale).to(sent.dtype)

    def alone(self, value: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
        """The message to each state from itself and its neighbours, without landmarks."""
        highest = finite(value.amax(-1, keepdim=True)).double()
        total = self._summed((value.double() - highest).exp_())
        return total.log_().add_(self.scale + highest).to(value.dtype)

    def _summed(self, mass: Float64[Tensor, "*batch n"]) -> Float64[Tensor, "*batch n"]:
        """The sum over the partners of each state of their mass, times the exponentiated scores."""
        if not mass.numel():
            return mass
        shared = self.weight.shape[:-2].numel() == 1
        weight = self.weight if shared else self.weight.expand(*mass.shape, -1)
        n, size = self.partners.shape
        tables = weight.shape[:-2].numel()
        first = torch.arange(tables, device=weight.device)[:, None, None] * n
        found = torch.nn.functional.embedding_bag(
            (self.partners + first).reshape(-1, size),
            mass.reshape(tables, -1, n).mT.reshape(tables * n, -1),
            per_sample_weights=weight.reshape(-1, size),
            mode="sum",
        )
        return found.reshape(tables, n, -1).mT.reshape(mass.shape)


class Near:
    """Messages along pairs of neighbours in both directions, by pair scores and the same transposed.

    Lists are made here if a number, their size, is given, and one table serves all steps and sequences. Else, and where
    too many pairs would have to be scored, each state has itself alone.
    """

    @torch.no_grad()
    def __init__(self, pairs: Potential, back: Potential, neighbours: Neighbours | int, device: torch.device) -> None:
        self.lists: Neighbours | None  # None: each state has itself alone
        self._pairs, self._back, self._device = pairs, back, device
        n = pairs.n_from
        affordable = n * n <= (EVALUATIONS if isinstance(pairs, Scored) else PAIRS)
        if isinstance(neighbours, int):
            shared = pairs.lead.numel() == 1
            self.lists = Neighbours(pairs, neighbours) if shared and affordable else None
        elif len(neighbours.successors) != n:
            raise ValueError(f"neighbours must have lists of {n} states, as the model: got {neighbours}")
        else:
            self.lists = neighbours

    @cached_property
    def back(self) -> NearMessages:
        """Messages to each state from itself and its successors."""
        return self._messages(self._pairs, None if self.lists is None else self.lists.successors)

    @cached_property
    def onward(self) -> NearMessages:
        """Messages to each state from itself and its predecessors."""
        return self._messages(self._back, None if self.lists is None else self.lists.predecessors)

    @torch.no_grad()
    def _messages(self, potential: Potential, listed: Int[Tensor, "n r"] | None) -> NearMessages:
        own = torch.arange(potential.n_from, device=self._device)[:, None]
        partners = own if listed is None else torch.cat((own, listed), -1)
        scores = _scores_with(potential, partners, self._device).double()
        scores[..., 1:].masked_fill_(partners[:, 1:] == own, -math.inf)  # itself is there already
        scale = finite(scores.amax(-1))
        return NearMessages(partners, scale, scores.sub_(scale[..., None]).exp_())


def _scores_with(
    potential: Potential, partners: Int[Tensor, "n r"], device: torch.device
) -> Float[Tensor, "*lead n r"]:
    """The score of each state with each of its partners, in tiles."""
    wide = potential.map(lambda x: x.unsqueeze(-potential.trailing - 1)) if potential.lead else potential
    width = potential.left.shape[-1] if isinstance(potential, Factored) else 1  # numbers that a score is made of

    def tile(start: int, stop: int) -> Parts:
        rows = torch.arange(start, stop, device=device)[:, None]
        return Parts((wide.block(rows, partners[start:stop])[..., 0, :],))

    chunk = tile_rows(potential.lead.numel() * partners.shape[1] * width, device)
    return in_tiles(tile, len(partners), chunk).rows[0]
