"""Scores of a few pairs of states, the arcs of a graph."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.numerics.arcs import Arcs
from tailsum.numerics.check import as_whole, at_least, check_floating
from tailsum.numerics.rings import PROBABILITY, Ring
from tailsum.scores.base import Scores
from tailsum.scores.potential import Columns, Dense, Potential, Rows, column_scale
from tailsum.scores.structured import Structured, every_pair


class Sparse(Structured):
    """Scores of arcs, `scores [*lead, E]` from state `index[0]` to state `index[1]`; all other pairs are impossible.

    Sums take time and memory in proportion to the arcs. All sequences and steps have the same arcs; their scores may differ.

    >>> circle = Sparse(torch.tensor([[0, 1, 2], [1, 2, 0]]), torch.zeros(3), 3)
    >>> circle.block()
    tensor([[-inf, 0., -inf],
            [-inf, -inf, 0.],
            [0., -inf, -inf]])
    """

    leaves_out = True

    def __init__(
        self, index: Int[Tensor, "2 arcs"], scores: Float[Tensor, "*lead arcs"], n_from: int, n_to: int | None = None
    ) -> None:
        check_floating("scores", scores)
        index = as_whole("index", index, scores.device)
        self.n_from, self.n_to = n_from, n_from if n_to is None else n_to
        at_least(1, n_from=self.n_from, n_to=self.n_to)
        if index.dim() != 2 or len(index) != 2 or not scores.dim() or scores.shape[-1] != index.shape[1]:
            raise ValueError(
                f"index must be [2, E] and scores [*lead, E]: got {list(index.shape)} and {list(scores.shape)}"
            )
        for row, size, end in zip(index, (self.n_from, self.n_to), ("from", "to"), strict=True):
            if index.shape[1] and not 0 <= int(row.min()) <= int(row.max()) < size:
                raise ValueError(
                    f"index must lie between 0 and n_{end}-1 = {size - 1}: got {int(row.min())} to {int(row.max())}"
                )
        with torch.inference_mode(False):  # index tensors are saved for backward passes
            keys, order = (index[1] * self.n_from + index[0]).sort()
            twice = keys[1:][keys[1:] == keys[:-1]]
            if len(twice):
                pair = [int(twice[0]) % self.n_from, int(twice[0]) // self.n_from]
                raise ValueError(f"index must have each arc once: got {pair} twice")
            self.arcs = Arcs(keys, self.n_from, self.n_to)
        self.order: Tensor | None = order  # of the scores, by the state that an arc leads to; None if they are in order
        self._set(scores[..., None, :])

    def _sorted(self) -> "Sparse":
        """The same with the scores in order."""
        order = self.order
        return self if order is None else self._changed(lambda x: x.index_select(-1, order), order=None)

    @property
    def index(self) -> Int[Tensor, "2 arcs"]:
        """The states (from, to) of each arc."""
        return self.arcs.index if self.order is None else self.arcs.index[:, self.order.argsort()]

    @property
    def scores(self) -> Float[Tensor, "*lead arcs"]:
        """The scores of the arcs."""
        return self.tensors[0][..., 0, :]

    def block(self, rows: Rows = None, cols: Columns = None) -> Float[Tensor, "*lead a b"]:
        if rows is None and cols is None:
            return self.columns(0, self.n_to).scores
        here, there = every_pair(self, rows, cols)
        keys, known = there * self.n_from + here, self.arcs.keys
        lead = torch.broadcast_shapes(self.lead, keys.shape[:-2])
        if not len(known):
            return self.scores.new_full((*lead, *keys.shape[-2:]), -torch.inf)
        place = torch.searchsorted(known, keys.contiguous()).clamp(max=len(known) - 1)
        given = place if self.order is None else self.order[place]
        found = self.scores.expand(*lead, -1).gather(-1, given.expand(*lead, -1, -1).flatten(-2))
        return found.unflatten(-1, keys.shape[-2:]).masked_fill(known[place] != keys, -torch.inf)

    def columns(self, start: int, stop: int) -> Dense:
        """A table filled with the arcs, which is many times faster than to look up each of its entries."""
        own, size = self._sorted(), (stop - start) * self.n_from
        place = own.arcs.keys - start * self.n_from
        place = torch.where((place >= 0) & (place < size), place, size).expand(own.scores.shape)
        never = own.scores.new_full((*self.lead, size + 1), -torch.inf)
        return Dense(never.scatter(-1, place, own.scores)[..., :-1].unflatten(-1, (-1, self.n_from)).mT)

    def operator(self) -> Potential:
        own = super().operator()
        return self._sorted() if own is self else own

    def transposed(self) -> "Sparse":
        arcs, places = self.arcs.turned
        places = places if self.order is None else self.order[places]
        turned = {"arcs": arcs, "order": None, "n_from": self.n_to, "n_to": self.n_from}
        return self._changed(lambda x: x.index_select(-1, places), **turned)

    def carry(self, x: Float[Tensor, "*lead r n_from"], ring: Ring) -> Float[Tensor, "*lead r n_to"]:
        own = self._sorted()
        if ring is PROBABILITY:
            return self.arcs.push(own.scores, x)
        here, there = self.arcs.index
        return ring.collected(ring.join(x.index_select(-1, here), own.tensors[0]), there, self.n_to)

    def normalised(self) -> tuple["Sparse", Float[Tensor, "*lead n_to"]]:
        there = self.arcs.keys // self.n_from if self.order is None else self.index[1]
        never = self.scores.new_full((*self.lead, self.n_to), -torch.inf)
        scale = column_scale(never.scatter_reduce(-1, there.expand(self.scores.shape), self.scores.detach(), "amax"))
        ends = scale.index_select(-1, there)[..., None, :]
        return self.map(lambda x: x - ends), scale

    def met(self, x: Float[Tensor, "*lead r n_from"], y: Float[Tensor, "*lead r n_to"]) -> tuple[Tensor]:
        return (self.arcs.meet(x, y)[..., None, :],)

    def same_form(self, other: Scores) -> bool:
        if not isinstance(other, Sparse) or (self.n_from, self.n_to) != (other.n_from, other.n_to):
            return False
        same = other.arcs is self.arcs and (other.order is None) == (self.order is None)
        return same or torch.equal(self.index, other.index)
