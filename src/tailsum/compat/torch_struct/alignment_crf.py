"""Alignments of two sequences: paths from cell (0, 0) of a grid to cell (N-1, M-1), one step at a time.

`log_potentials[i, j, op]` scores that the path enters cell (i, j): from (i, j-1) by op 0, from (i-1, j-1) by op 1, and from
(i-1, j) by op 2. The first cell is entered by op 1. With `lengths`, a path ends in the row of its length, last column.
"""

import math

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Bool, Float, Int, Num
from torch import Tensor

from tailsum.chains import alignment
from tailsum.compat.torch_struct.distribution import StructDistribution
from tailsum.compat.torch_struct.semirings.recursion import chosen, neutral
from tailsum.compat.torch_struct.struct import Lengths, Struct
from tailsum.numerics.check import at_least
from tailsum.structure.base import Structure

_OPS = [2, 0, 1]  # insert, match and delete among the moves of a tailsum alignment


class Alignment(Struct):
    """Alignments. An event says by which op each cell is entered; there is no shorter form."""

    def distribution(self, log_potentials: Tensor, lengths: Lengths) -> "AlignmentCRF":
        return AlignmentCRF(log_potentials, lengths=lengths)

    def recursion(self, parts: Num[Tensor, "size B N M 3"], lengths: Int[Tensor, " B"]) -> Num[Tensor, "size B"]:
        """Cells by diagonal, `[size, B, N]` by row: cell (i, d-i) is entered from diagonals d-1 and d-2."""
        rows, columns = parts.shape[2:4]
        zero, _ = neutral(self.semiring, parts, 5)
        row = torch.arange(rows, device=parts.device)
        column = torch.arange(rows + columns - 1, device=parts.device)[:, None] - row
        here = ((column >= 0) & (column < columns))[..., None]
        ways = torch.where(here, parts[:, :, row, column.clamp(0, columns - 1)], zero)
        none = zero[..., 0, 0].expand(parts.shape[:3])
        below = lambda cells: torch.cat((none[..., :1], cells[..., :-1]), -1)  # noqa: E731
        before, cells = none, torch.where(row == 0, ways[:, :, 0, :, 1], none)
        diagonals = [cells]
        for d in range(1, len(column)):
            entered = torch.stack((cells, below(before), below(cells)), -1)
            before, cells = cells, self.semiring.sum(self.semiring.mul(ways[:, :, d], entered))
            diagonals.append(cells)
        return chosen(chosen(diagonals, lengths + columns - 2).unbind(-1), lengths - 1)


class AlignmentCRF(StructDistribution):
    """A distribution over alignments, from `log_potentials [B, N, M, 3]`. With `max_gap`, cells with a larger |i - j| are forbidden.

    >>> AlignmentCRF(torch.zeros(1, 3, 3, 3)).count  # a Delannoy number
    tensor([13.])
    """

    struct = Alignment
    form = "[B, N, M, 3]"

    def __init__(
        self, log_potentials: Float[Tensor, "batch N M 3"], local: bool = False, lengths: Lengths = None,
        max_gap: int | None = None, validate_args: bool | None = False,
    ) -> None:  # fmt: skip
        if local:
            raise NotImplementedError(
                "local alignments are not here: torch-struct 0.5 takes local=True and aligns globally all the same. "
                "Leave local out to get what it computed"
            )
        if max_gap is not None:
            at_least(0, max_gap=max_gap)
        self.local, self.max_gap = local, max_gap
        super().__init__(log_potentials, lengths)

    @staticmethod
    def _fits(event: torch.Size) -> bool:
        return len(event) == 3 and event[-1] == 3 and 0 not in event

    def _usable(self) -> Bool[Tensor, "*batch N M 1"]:
        return self._inside()[..., None, None].expand(*self.batch_shape, -1, self.event_shape[1], 1)

    def _scores(self) -> tuple[Tensor, ...]:
        (ops,) = super()._scores()
        if self.max_gap is None:
            return (ops,)
        row, column = (torch.arange(size, device=ops.device) for size in self.event_shape[:2])
        return (ops.masked_fill(((row[:, None] - column).abs() > self.max_gap)[..., None], -math.inf),)

    def _build(self, scores: tuple[Tensor, ...], lengths: Lengths) -> Structure:
        (ops,) = scores
        across, both, down = ops.unbind(-1)
        # One more row and column before the grid: paths start in their corner, and only the first cell is entered from there.
        delete, insert = F.pad(down, (1, 0), value=-math.inf), F.pad(across, (0, 0, 1, 0), value=-math.inf)
        return alignment.Alignment(both, delete, insert, lengths)

    def _marginals(self, model: Structure) -> Float[Tensor, "*batch N M 3"]:
        return model.term_gradients(0)[0][..., 1:, 1:, _OPS]

    def _event(self, model: Structure, configuration: Int[Tensor, "*sample_batch N1 M1"]) -> Tensor:
        return super()._event(model, configuration)[..., 1:, 1:, _OPS]
