"""Scores of pairs of states that are near each other."""

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float
from torch import Tensor

from tailsum.numerics.check import check_floating
from tailsum.numerics.rings import Ring
from tailsum.scores.potential import Columns, Rows, column_scale
from tailsum.scores.structured import Structured, every_pair, looked_up


class Banded(Structured):
    """Scores of moves by at most w states up or down; all other pairs are impossible.

    `scores [*lead, 2w+1, N]` has `score(i, i + o)` at `[o + w, i]`, for o = -w .. w; entries of moves that leave `0 .. N-1` are
    not used. Sums take time and memory in proportion to N w.

    >>> left_to_right = Banded(torch.tensor([[-torch.inf] * 5, [0.0] * 5, [0.0] * 5]))  # stay, or move up by one
    >>> left_to_right.block(torch.tensor([3]), None)
    tensor([[-inf, -inf, -inf, 0., 0.]])
    """

    leaves_out = True

    def __init__(self, scores: Float[Tensor, "*lead offsets n"]) -> None:
        check_floating("scores", scores)
        if scores.dim() < 2 or scores.shape[-2] % 2 == 0 or scores.shape[-1] == 0:
            raise ValueError(
                f"scores must be [*lead, 2w+1, N], with an odd number of offsets and a state: got {list(scores.shape)}"
            )
        self.width, self.n_from, self.n_to = scores.shape[-2] // 2, scores.shape[-1], scores.shape[-1]
        self._set(scores)

    @property
    def scores(self) -> Float[Tensor, "*lead offsets n"]:
        """The score of each state with those near it."""
        return self.tensors[0]

    def block(self, rows: Rows = None, cols: Columns = None) -> Float[Tensor, "*lead a b"]:
        here, there = every_pair(self, rows, cols)
        offset = there - here + self.width
        found = looked_up(self.scores, offset.clamp(0, 2 * self.width), here)
        return found.masked_fill((offset < 0) | (offset > 2 * self.width), -torch.inf)

    def transposed(self) -> "Banded":
        turned = torch.stack([_shifted(row, -o, 0.0) for o, row in self._moves()][::-1], -2)
        return self.map(lambda _: turned)

    def carry(self, x: Float[Tensor, "*lead r n"], ring: Ring) -> Float[Tensor, "*lead r n"]:
        return ring.add([_shifted(ring.join(x, row[..., None, :]), -o, ring.zero) for o, row in self._moves()])

    def normalised(self) -> tuple["Banded", Float[Tensor, "*lead n"]]:
        arriving = torch.stack([_shifted(row, -o, -torch.inf) for o, row in self._moves()])
        scale = column_scale(arriving.amax(0))
        ends = torch.stack(
            [_shifted(scale, o, torch.inf) for o in self._offsets()], -2
        )  # what is not used gets no weight
        return self.map(lambda x: x - ends), scale

    def met(self, x: Float[Tensor, "*lead r n"], y: Float[Tensor, "*lead r n"]) -> tuple[Tensor]:
        return (torch.stack([(x * _shifted(y, o, 0.0)).sum(-2) for o in self._offsets()], -2),)

    def _offsets(self) -> range:
        return range(-self.width, self.width + 1)

    def _moves(self) -> list[tuple[int, Tensor]]:
        """Each offset, and the scores of the moves by it."""
        return list(zip(self._offsets(), self.scores.unbind(-2), strict=True))


def _shifted(x: Tensor, offset: int, blank: float) -> Tensor:
    """`x[.., i + offset]` at each i; `blank` where that is no state."""
    n = x.shape[-1]
    if abs(offset) >= n:
        return torch.full_like(x, blank)
    if offset >= 0:
        return F.pad(x[..., offset:], (0, offset), value=blank)
    return F.pad(x[..., :offset], (-offset, 0), value=blank)
