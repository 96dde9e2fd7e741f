"""Alignments of two sequences, of N and of M positions: global alignment (Needleman & Wunsch 1970), edit distance.

An alignment is a path through a grid from cell (0, 0) to cell (N, M). A *match* pairs position i of the first sequence
with position j of the other and goes from (i, j) to (i+1, j+1), a *delete* skips position i and goes to (i+1, j), an
*insert* skips position j and goes to (i, j+1). Its score is the sum over its moves.
"""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tailsum.chains.paths import PathStructure
from tailsum.numerics.check import below_infinity, check_broadcast, check_device, check_floating, check_scores
from tailsum.numerics.levels import path_sums
from tailsum.numerics.moves import Steps
from tailsum.numerics.reduce import Reduce
from tailsum.numerics.tensors import working_type
from tailsum.numerics.transforms import every
from tailsum.scores.potential import Dense
from tailsum.structure.check import checked_lengths


class MoveTerms(NamedTuple):
    """Scores of the moves into each cell, `[*batch, N+1, M+1, 3]`: match, delete, insert."""

    moves: Dense


class Alignment(PathStructure[MoveTerms, Tensor]):
    """A distribution over the alignments of two sequences. Exact sums cost N M: there are no latent states to sketch.

    `match` is `[*batch, N, M]`. `delete` is `[*batch, N]`, or `[*batch, N, M+1]` where it depends on both positions (and has
    as many dimensions as `match`, should N be M+1); `insert` is `[*batch, M]` or `[*batch, N+1, M]`. `lengths` counts
    positions of the first sequence, `other_lengths` of the other, which may have none.

    A configuration is a grid `[*batch, N+1, M+1]` with the move into each cell of the path, 0 for a match, 1 for a delete
    and 2 for an insert, and -1 elsewhere: `path[..., 1:, 1:] == 0` marks the matched pairs of positions.

    >>> different = torch.tensor([[a != b for b in "sitting"] for a in "kitten"])
    >>> edits = Alignment(-different.float(), -torch.ones(6), -torch.ones(7))
    >>> edits.score(edits.argmax())
    tensor(-3.)
    """

    def __init__(
        self,
        match: Float[Tensor, "*#batch N M"],
        delete: Float[Tensor, "*#batch_N"],
        insert: Float[Tensor, "*#batch_M"],
        lengths: Int[Tensor, "*#batch"] | Sequence[int] | None = None,
        other_lengths: Int[Tensor, "*#batch"] | Sequence[int] | None = None,
    ) -> None:
        check_floating("match", match)
        if match.dim() < 2 or 0 in match.shape[-2:]:
            raise ValueError(f"match must be [*batch, N, M], N and M at least 1: got {list(match.shape)}")
        self.device, (n, m) = match.device, match.shape[-2:]
        self.node_shape, self.n_states = torch.Size((n + 1, m + 1)), 3
        tables = {
            "match": match,
            "delete": _by_cell("delete", delete, match, -1),
            "insert": _by_cell("insert", insert, match, -2),
        }
        shape = torch.Size()
        for name, x in tables.items():
            check_device(name, x, self.device)
            shape = check_broadcast(name, x.shape[:-2], shape, "that of the scores before it,")
        shape, rows = checked_lengths(lengths, shape, n, self.device)
        self.batch_shape, columns = checked_lengths(other_lengths, shape, m, self.device, "other_lengths", 0)
        self.lengths = None if rows is None else rows.expand(self.batch_shape) + 1
        self.columns = None if columns is None else columns.expand(self.batch_shape) + 1
        self.tables, self.dtype = tuple(tables.values()), working_type(*tables.values())
        used = self._used({"match": match, "delete": delete, "insert": insert})
        if not every(functools.reduce(torch.logical_and, map(below_infinity, used.values()))):  # one look at the device
            for name, scores in used.items():
                check_scores(name, scores)

    def _used(self, given: dict[str, Tensor]) -> dict[str, Tensor]:
        """The scores as they were given, zero in the padding."""
        cells, used = self._cells(), dict[str, Tensor]()
        for (name, scores), table, shared in zip(given.items(), self.tables, (None, -1, -2), strict=True):
            used[name] = scores.detach()
            if cells is not None:
                inside = cells[..., -table.shape[-2] :, -table.shape[-1] :]
                inside = inside if scores is table else inside.any(shared)
                used[name] = used[name].masked_fill(inside.long().sum_to_size(scores.shape) == 0, 0.0)
        return used

    def _cells(self) -> Bool[Tensor, "*batch N_plus_1 M_plus_1"] | None:
        """Which cells are not padding; None if all are."""
        if self.lengths is None and self.columns is None:
            return None
        inside = torch.arange(self.node_shape[1], device=self.device) < self._columns().reshape(*self.batch_shape, 1, 1)
        return inside & self.inside()[..., None]

    def _columns(self) -> Int[Tensor, " B"]:
        """The columns of each grid, the batch flattened."""
        if self.columns is None:
            return torch.full((self.batch_shape.numel(),), self.node_shape[1], device=self.device)
        return self.columns.expand(self.batch_shape).reshape(-1)

    def terms(self) -> MoveTerms:
        cells, edges = self._cells(), ((1, 0, 1, 0), (0, 0, 1, 0), (1, 0, 0, 0))
        tables = [F.pad(x, edge, value=-math.inf) for x, edge in zip(self.tables, edges, strict=True)]
        lead = torch.Size((*self.batch_shape, *self.node_shape))
        moves = torch.stack([x.expand(lead) for x in tables], -1)
        moves = moves if cells is None else torch.where(cells[..., None], moves, 0.0)
        return MoveTerms(Dense(moves.to(self.dtype)))

    def total(self, terms: MoveTerms, reduce: Reduce) -> Float[Tensor, "*batch"]:
        """A level of the lattice for each diagonal, with the cells (i, d - i); moves come from the two diagonals before."""
        n, m = self.node_shape
        moves = terms.moves.scores.reshape(self.batch_shape.numel(), n, m, 3).movedim(-1, 0)
        # With n cells after each row of m, one less in a row moves each row one further than the row before.
        skewed = F.pad(moves, (0, n), value=-math.inf).flatten(-2)[..., : n * (n + m - 1)].unflatten(-1, (n, n + m - 1))
        scores = skewed[..., 1:].movedim(-1, 0).contiguous()
        steps = Steps([(2, 1), (1, 1), (1, 0)], n + m - 2, n)
        row = self.sequence_lengths() - 1
        ends = steps.at(row + self._columns() - 1, row[:, None])
        return path_sums(scores, steps, ends, reduce).reshape(self.batch_shape)

    def marginals(self) -> Float[Tensor, "*batch N M"]:
        """The probability that two positions are matched."""
        return super().marginals()[..., 1:, 1:, 0]

    def gap_marginals(self) -> tuple[Float[Tensor, "*batch N M_plus_1"], Float[Tensor, "*batch N_plus_1 M"]]:
        """The probabilities of the deletes and of the inserts at each cell."""
        moves = super().marginals()
        return moves[..., 1:, :, 1], moves[..., 1:, 2]

    def exclusions(self, demanded: Sequence[Bool[Tensor, "..."]]) -> list[Bool[Tensor, "..."]]:
        """The moves that neither lead to a demanded move nor follow it: a path without them contains it."""
        (chosen,) = demanded
        heads, moves = chosen.any(-1).long(), chosen.long().unbind(-1)
        steps = (1, 1), (1, 0), (0, 1)  # of a match, a delete and an insert, by rows and columns
        tails = torch.zeros_like(heads)
        for move, (rows, columns) in zip(moves, steps, strict=True):
            tails = tails + F.pad(move[..., rows:, columns:], (0, columns, 0, rows))
        # How many demanded moves start at each cell or later, and how many end there or earlier.
        follow = tails.flip(-2, -1).cumsum(-2).cumsum(-1).flip(-2, -1)
        lead = heads.cumsum(-2).cumsum(-1)
        total = heads.sum((-2, -1), keepdim=True)
        exclusions = []
        for move, (rows, columns) in zip(moves, steps, strict=True):
            before = F.pad(lead, (columns, 0, rows, 0))[..., : lead.shape[-2], : lead.shape[-1]]
            exclusions.append(follow + before + move < total)
        return [torch.stack(exclusions, -1)]

    def after_batch(self) -> dict[str, int]:
        return {"columns": 0, "tables": 2}

    def form(self) -> tuple[object, ...]:
        return tuple(self._columns().tolist())


def _by_cell(name: str, scores: Float[Tensor, "..."], match: Float[Tensor, "*batch N M"], shared: int) -> Tensor:
    """Scores of a move at each cell; those given for one sequence only are repeated along the dimension `shared`."""
    check_floating(name, scores)
    sizes, size = list(match.shape[-2:]), match.shape[-3 - shared]
    sizes[shared] += 1
    if list(scores.shape[-2:]) == sizes and (scores.shape[-1] != size or scores.dim() >= match.dim()):
        return scores
    if scores.shape[-1:] != (size,):
        raise ValueError(
            f"{name} must be [*batch, {size}] or [*batch, {sizes[0]}, {sizes[1]}]: got {list(scores.shape)}"
        )
    return scores.unsqueeze(shared).expand(*scores.shape[:-1], *sizes)
