"""Alignments of two sequences, of N and of M positions: global alignment (Needleman & Wunsch 1970), edit distance.

An alignment is a path through a grid from cell (0, 0) to cell (N, M). At cell (i, j) a *match* pairs position i of the
first sequence with position j of the other and goes to (i+1, j+1), a *delete* skips position i and goes to (i+1, j), an
*insert* skips position j and goes to (i, j+1). Its score is the sum over its moves.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.numerics.check import check_broadcast, check_device, check_scores, check_whole
from tailsum.numerics.reduce import Reduce
from tailsum.numerics.tensors import finite, working_type
from tailsum.scores.potential import Dense
from tailsum.structure.base import Structure
from tailsum.structure.check import checked_lengths

MATCH, DELETE, INSERT = range(3)


class MoveTerms(NamedTuple):
    """Scores of the moves by the cell that they leave: `[*batch, N, M]`, `[*batch, N, M+1]` and `[*batch, N+1, M]`."""

    match: Dense
    delete: Dense
    insert: Dense


class Moves(NamedTuple):
    """Alignments as their moves, in order: 0 for a match, 1 for a delete, 2 for an insert, -1 after the last."""

    moves: Int[Tensor, "*sample_batch N_plus_M"]

    def cells(self) -> tuple[Int[Tensor, "*sample_batch N_plus_M"], Int[Tensor, "*sample_batch N_plus_M"]]:
        """The cell (i, j) that each move leaves."""
        along = [((self.moves == MATCH) | (self.moves == kind)).long() for kind in (DELETE, INSERT)]
        i, j = (x.cumsum(-1) - x for x in along)
        return i, j


class Alignment(Structure[MoveTerms, Moves]):
    """A distribution over the alignments of two sequences. Exact sums cost N M: there are no latent states to sketch.

    `match` is `[*batch, N, M]`. `delete` is `[*batch, N]`, or `[*batch, N, M+1]` where it depends on both positions (and has
    as many dimensions as `match`, should N be M+1); `insert` is `[*batch, M]` or `[*batch, N+1, M]`. `lengths` counts
    positions of the first sequence, `other_lengths` of the other, which may have none. Marginals are those of matches.

    >>> different = torch.tensor([[a != b for b in "sitting"] for a in "kitten"])
    >>> distance = Alignment(-different.double(), -torch.ones(6).double(), -torch.ones(7).double())
    >>> -distance.score(distance.argmax())
    tensor(3., dtype=torch.float64)
    """

    part_terms = 3

    def __init__(
        self,
        match: Float[Tensor, "*#batch N M"],
        delete: Float[Tensor, "*#batch_N"],
        insert: Float[Tensor, "*#batch_M"],
        lengths: Int[Tensor, "*#batch"] | Sequence[int] | None = None,
        other_lengths: Int[Tensor, "*#batch"] | Sequence[int] | None = None,
    ) -> None:
        if match.dim() < 2 or 0 in match.shape[-2:]:
            raise ValueError(f"match must be [*batch, N, M], N and M at least 1: got {list(match.shape)}")
        self.device, (n, m) = match.device, match.shape[-2:]
        self.node_shape, self.n_states, shape = torch.Size((n,)), m, match.shape[:-2]
        delete, insert = _by_cell("delete", delete, match, -1), _by_cell("insert", insert, match, -2)
        for name, x in (("delete", delete), ("insert", insert)):
            check_device(name, x, self.device)
            shape = check_broadcast(name, x.shape[:-2], shape, "that of the scores before it,")
        shape, others = checked_lengths(other_lengths, shape, m, self.device, "other_lengths", 0)
        self.batch_shape, self.lengths = checked_lengths(lengths, shape, n, self.device)
        others = torch.full(shape, m, device=self.device) if others is None else others
        self.other_lengths, size = others.expand(self.batch_shape), self.sequence_lengths().reshape(self.batch_shape)
        found = list[Tensor]()
        for name, x in zip(MoveTerms._fields, (match, delete, insert), strict=True):
            i, j = (torch.arange(count, device=self.device) for count in x.shape[-2:])
            inside = (i < size[..., None] + (name == "insert"))[..., None] & (
                j < self.other_lengths[..., None] + (name == "delete")
            )[..., None, :]
            found.append(torch.where(inside, x, 0.0))
            check_scores(name, found[-1])
        self.dtype = working_type(*found)
        self.tables = tuple(x.to(self.dtype) for x in found)

    def __repr__(self) -> str:
        return f"Alignment(batch={list(self.batch_shape)}, N={self.node_shape[0]}, M={self.n_states})"

    def terms(self) -> MoveTerms:
        return MoveTerms(*(Dense(x.expand(*self.batch_shape, *x.shape[-2:])) for x in self.tables))

    def total(self, terms: MoveTerms, reduce: Reduce) -> Float[Tensor, "*batch"]:
        """Diagonal after diagonal: the cells (i, d - i) have all their ways from the two diagonals before."""
        n, m = self.node_shape[0], self.n_states
        into = [
            F.pad(x.scores, pad, value=-math.inf)
            for x, pad in zip(terms, ((1, 0, 1, 0), (0, 0, 1, 0), (1, 0)), strict=True)
        ]
        i = torch.arange(n + 1, device=self.device)
        j = torch.arange(n + m + 1, device=self.device)[:, None] - i  # [d, i]
        moves = torch.stack(into)[..., i, j.clamp(0, m)].masked_fill((j < 0) | (j > m), -math.inf)  # [3, *batch, d, i]
        before, here = (moves.new_full((*self.batch_shape, n + 1), -math.inf) for _ in range(2))
        here = here.masked_fill(i == 0, 0.0)
        end = self.sequence_lengths().reshape(self.batch_shape)[..., None]
        offset, totals = torch.zeros(self.batch_shape, dtype=torch.float64, device=self.device), list[Tensor]()
        for d in range(n + m + 1):
            if d > 0:
                down = [F.pad(x, (1, 0), value=-math.inf)[..., :-1] for x in (before, here)]
                before, here = here, reduce(torch.stack((*down, here)) + moves[..., d, :], 0)
            # What all cells share is kept apart in float64, so that long sequences lose no digits.
            top = finite(here.detach().amax(-1))
            before, here, offset = before - top[..., None], here - top[..., None], offset + top.double()
            totals.append(here.gather(-1, end)[..., 0].double() + offset)
        last = end[..., 0] + self.other_lengths
        return torch.stack(totals, -1).gather(-1, last[..., None])[..., 0].to(self.dtype)

    def gap_marginals(self) -> tuple[Float[Tensor, "*batch N M_plus_1"], Float[Tensor, "*batch N_plus_1 M"]]:
        """The probabilities of the deletes and of the inserts at each cell."""
        return self.term_gradients(1)[0], self.term_gradients(2)[0]

    def read(self, used: Sequence[Float[Tensor, "..."]]) -> Moves:
        length = self.node_shape[0] + self.n_states
        moves = -torch.ones(*self.batch_shape, length, dtype=torch.long, device=self.device)
        for kind, table in enumerate(used):  # at most one move leaves each diagonal
            i, j = (torch.arange(count, device=self.device) for count in table.shape[-2:])
            moves = moves.index_add(-1, (i[:, None] + j).flatten(), (kind + 1) * table.flatten(-2).long())
        order = (moves < 0).long().argsort(dim=-1, stable=True)  # the second half of each match goes to the end
        return Moves(moves.gather(-1, order))

    def used(self, configuration: Moves) -> tuple[Float[Tensor, "..."], ...]:
        moves, (i, j), found = configuration.moves, configuration.cells(), list[Tensor]()
        for kind, x in enumerate(self.tables):
            here, (rows, columns) = moves == kind, x.shape[-2:]
            table = torch.zeros(*moves.shape[:-1], rows * columns, dtype=self.dtype, device=self.device)
            place = torch.where(here, i * columns + j, 0)
            found.append(table.scatter_add(-1, place, here.to(self.dtype)).unflatten(-1, (rows, columns)))
        return tuple(found)

    def to_global(self, configuration: Moves) -> Moves:
        return configuration

    def form(self) -> tuple[object, ...]:
        return self.n_states, tuple(self.other_lengths.flatten().tolist())

    def n_scores(self) -> int:
        return self.node_shape[0] + self.n_states

    def check_configuration(self, configuration: Moves) -> Moves:
        """A ValueError unless each alignment covers both sequences, or is none (-1)."""
        if not isinstance(configuration, Moves):
            raise ValueError(f"alignment must be Moves: got {type(configuration).__name__}")
        moves, length = check_whole("alignment.moves", configuration.moves), self.node_shape[0] + self.n_states
        if moves.shape[-1:] != (length,):
            raise ValueError(f"alignment.moves must be [..., N+M] with N+M = {length}: got {list(moves.shape)}")
        shape = check_broadcast("alignment.moves", moves.shape[:-1], self.batch_shape, "the model's")
        moves, ends = moves.expand(*shape, -1), (self.sequence_lengths().reshape(self.batch_shape), self.other_lengths)
        covered = [
            ((moves == MATCH) | (moves == kind)).sum(-1) == end
            for kind, end in zip((DELETE, INSERT), ends, strict=True)
        ]
        in_order = ((moves[..., 1:] < 0) | (moves[..., :-1] >= 0)).all(-1) & ((moves >= -1) & (moves <= INSERT)).all(-1)
        if not ((covered[0] & covered[1] & in_order) | (moves == -1).all(-1)).all():
            raise ValueError("alignment.moves must lead from (0, 0) to the end of both sequences: got some that do not")
        return Moves(moves)


def _by_cell(name: str, given: Tensor, match: Tensor, shared: int) -> Tensor:
    """Scores of a move by the cell that it leaves; `shared` is the dimension along which they may be the same."""
    sizes = list(match.shape[-2:])
    own = sizes[-3 - shared]
    sizes[shared] += 1
    if not (isinstance(given, Tensor) and given.is_floating_point() and given.dim()):
        raise ValueError(f"{name} must be a tensor of scores: got {given}")
    if list(given.shape[-2:]) == sizes and (given.shape[-1] != own or given.dim() >= match.dim()):
        return given
    if given.shape[-1] != own:
        raise ValueError(f"{name} must be [*batch, {own}] or [*batch, {sizes[0]}, {sizes[1]}]: got {list(given.shape)}")
    return given.unsqueeze(shared).expand(*given.shape[:-1], *sizes)
