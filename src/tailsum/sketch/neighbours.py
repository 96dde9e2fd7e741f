"""Neighbours: for each state, the states with the highest pair scores, and messages along these pairs alone.

A message from landmarks misses states whose mass comes from a few particular partners that are no landmarks; on a sticky
chain, from the state itself. In the messages of `Lookahead`, the part that each state receives from itself and from its
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
from tailsum.numerics.fused.kernel import Example, Kernel, unseen
from tailsum.numerics.kernels import fused
from tailsum.numerics.stream import Parts, in_tiles
from tailsum.numerics.tensors import at_step, finite
from tailsum.numerics.tiles import tile_rows
from tailsum.scores.arguments import as_potential
from tailsum.scores.potential import Potential
from tailsum.sketch.selection import Subset

_TOGETHER = 8  # states of each group that are compared at a time
_FAR = 3e38  # minus this stands for minus infinity, whose last bits cannot hold a place
PAIRS = 1 << 36  # the most pairs to score for lists, if scores take no longer than those of a table


class Neighbours:
    """Lists of the best successors and predecessors of each state under a transition that all steps share.

    `size` is the length of each list. The states are split into `4 * size` interleaved groups, and the best of each group
    compete for the list. Making the lists costs as much as one step of exact inference, N^2 products, in tiles. Lists can
    be reused while the scores change, as in training: sums are unbiased with any lists, and more accurate with fresh ones.

    >>> near = Neighbours(torch.randn(1000, 1000), size=16)
    >>> near.successors.shape, near.predecessors.shape
    (torch.Size([1000, 16]), torch.Size([1000, 16]))
    """

    @torch.no_grad()
    def __init__(self, transition: Float[Tensor, "n n"] | Potential, size: int = 32) -> None:
        at_least(1, size=size)
        potential = as_potential(transition)
        if potential is None or potential.lead.numel() != 1:
            got = transition if potential is None else f"leading dimensions {list(potential.lead)}"
            raise ValueError(f"transition must be a table [N, N] or a potential that all steps share: got {got}")
        flat = potential.map(lambda x: x.reshape(x.shape[x.dim() - potential.trailing :]))
        self.successors: Int[Tensor, "n r"]
        self.predecessors: Int[Tensor, "n r"]
        self.successors, self.predecessors = _lists(flat, min(size, flat.n_from))

    @classmethod
    def of(cls, successors: Int[Tensor, "n r"], predecessors: Int[Tensor, "n r"]) -> "Neighbours":
        """Neighbours with existing lists."""
        lists = cls.__new__(cls)
        lists.successors, lists.predecessors = successors, predecessors
        return lists

    def __repr__(self) -> str:
        n, size = self.successors.shape
        return f"Neighbours(N={n}, size={size})"


def _lists(potential: Potential, size: int) -> tuple[Int[Tensor, "n r"], Int[Tensor, "n r"]]:
    """`size` columns of high score for each row, and rows for each column: the best among the leaders of their groups."""
    n, groups = potential.n_from, min(4 * size, potential.n_from)
    places = (1 << (-(-n // groups)).bit_length()) - 1  # the bits for places, all ones

    def listed(leaders: Float[Tensor, "n groups"]) -> Int[Tensor, "n r"]:
        best = leaders.topk(size)
        return (best.values.view(torch.int32) & places) * groups + best.indices

    factors = potential.for_kernels or ()
    if len(factors) == 2 and fused(*factors) and unseen(*factors):
        by_row, by_column = (group_leaders(*x, groups=groups, places=places) for x in (factors, factors[::-1]))
    else:
        by_row, by_column = _leaders(potential, groups, places)
    return listed(by_row), listed(by_column)


def _leaders(
    potential: Potential, groups: int, places: int
) -> tuple[Float[Tensor, "n groups"], Float[Tensor, "n groups"]]:
    """The highest score of each row with the columns of each group, and of each column with the rows.

    The place of a state in its group is stored in the last bits of the score's mantissa, so that one maximum finds both:
    much faster than a maximum with indices.
    """
    n, device, height = potential.n_from, potential.device, _TOGETHER * groups
    width = max(1, tile_rows(height, device) // groups) * groups
    leaders = {"dtype": torch.float32, "device": device}  # whose bits are those of an int32
    by_column, by_row = (torch.full(shape, -math.inf, **leaders) for shape in ((groups, n), (n, groups)))
    for top in range(0, n, height):
        rows = torch.arange(top, min(top + height, n), device=device)
        best = by_row[top : top + height]
        for left in range(0, n, width):
            right = min(left + width, n)
            tile = _in_groups(potential.columns(left, right).block(rows).float(), groups)
            if not potential.always_finite:
                tile.clamp_(-_FAR, _FAR)
            bits, (down, _, across, _) = tile.view(torch.int32), tile.shape
            place = torch.arange(down, dtype=torch.int32, device=device)[:, None, None, None] + top // groups
            bits.bitwise_and_(~places).bitwise_or_(place)
            best_rows = by_column[:, left:right]
            best_rows.copy_(torch.maximum(best_rows, tile.amax(0).flatten(1)[:, : right - left]))
            other = torch.arange(across, dtype=torch.int32, device=device)[:, None] + left // groups
            bits.bitwise_xor_(place ^ other)  # the places of columns instead of rows
            best.copy_(torch.maximum(best, tile.amax(2).flatten(0, 1)[: len(rows)]))
    return by_row, by_column.T.contiguous()


def _leaders_of_rows(left: Tensor, right: Tensor, *, groups: int, places: int) -> Tensor:
    scores = _in_groups((left @ right.mT).float(), groups)
    place = torch.arange(scores.shape[2], dtype=torch.int32, device=left.device)[:, None]
    bits = scores.view(torch.int32).bitwise_and(~places).bitwise_or_(place)
    return bits.view(torch.float32).amax(2).flatten(0, 1)[: len(left)]


def _example(n: int, m: int, d: int, groups: int) -> Example:
    places = (1 << (-(-m // groups)).bit_length()) - 1
    return Example((torch.randn(n, d), torch.randn(m, d)), {"groups": groups, "places": places})


group_leaders = Kernel(
    "group_leaders", _leaders_of_rows, _example,
    sizes=({"n": 20, "m": 45, "d": 3, "groups": 8}, {"n": 70, "m": 300, "d": 17, "groups": 132}),
    large={"n": 20_000, "m": 20_000, "d": 64, "groups": 128}, takes=unseen, impossible=0.0, tolerance=0.01,
)  # fmt: skip


def _in_groups(scores: Float[Tensor, "a b"], groups: int) -> Float[Tensor, "down groups across groups"]:
    """Rows and columns in interleaved groups; incomplete groups are filled up."""
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
        """The messages with other leading dimensions: `change` gets a tensor and the number of dimensions after these."""
        return NearMessages(self.partners, change(self.scale, 1), change(self.weight, 2))

    def at_step(self, step: int) -> "NearMessages":
        """The messages of one step."""
        return self.each(lambda x, trailing: at_step(x, trailing, step))

    def joined(
        self, sent: Float[Tensor, "*batch n"], value: Float[Tensor, "*batch n"], kept: Subset
    ) -> Float[Tensor, "*batch n"]:
        """The message `sent` to each state by landmarks, with the part that comes from its neighbours made exact.

        `value` has the values of all states that the message sums over, `kept` the landmarks among them that sent it.
        The landmarks' estimate of the neighbours' part is subtracted. However large weights are rounded, the sum is at
        least the part of the state itself.
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
        sums = torch.nn.functional.embedding_bag(
            (self.partners + first).reshape(-1, size),
            mass.reshape(tables, -1, n).mT.reshape(tables * n, -1),
            per_sample_weights=weight.reshape(-1, size),
            mode="sum",
        )
        return sums.reshape(tables, n, -1).mT.reshape(mass.shape)


class Near:
    """Messages between neighbours in both directions, from pair scores and their transpose.

    `neighbours` may be the size of lists to make here. They are made if all steps and sequences share the scores and
    not too many pairs must be scored; else each state has only itself.
    """

    @torch.no_grad()
    def __init__(self, pairs: Potential, back: Potential, neighbours: Neighbours | int, device: torch.device) -> None:
        self.lists: Neighbours | None  # None: each state has only itself
        self._pairs, self._back, self._device = pairs, back, device
        n = pairs.n_from
        affordable = n * n * pairs.time_per_score <= PAIRS
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
        itself = torch.arange(potential.n_from, device=self._device)[:, None]
        partners = itself if listed is None else torch.cat((itself, listed), -1)
        scores = _scores_with(potential, partners, self._device).double()
        scores[..., 1:].masked_fill_(partners[:, 1:] == itself, -math.inf)  # which comes first already
        scale = finite(scores.amax(-1))
        return NearMessages(partners, scale, scores.sub_(scale[..., None]).exp_())


def _scores_with(
    potential: Potential, partners: Int[Tensor, "n r"], device: torch.device
) -> Float[Tensor, "*lead n r"]:
    """The score of each state with each of its partners, in tiles."""
    wide = potential.map(lambda x: x.unsqueeze(-potential.trailing - 1)) if potential.lead else potential

    def tile(start: int, stop: int) -> Parts:
        rows = torch.arange(start, stop, device=device)[:, None]
        return Parts((wide.block(rows, partners[start:stop])[..., 0, :],))

    chunk = tile_rows(potential.lead.numel() * partners.shape[1] * potential.numbers_per_score, device)
    return in_tiles(tile, len(partners), chunk).rows[0]
