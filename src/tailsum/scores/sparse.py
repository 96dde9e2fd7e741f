"""Scores of a few pairs of states, the arcs of a graph."""

import warnings

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.numerics.check import as_whole, check_floating
from tailsum.numerics.rings import PROBABILITY, Ring
from tailsum.scores.base import Scores
from tailsum.scores.potential import Columns, Rows, column_scale
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

    absent = -torch.inf  # the score of the other pairs

    def __init__(
        self, index: Int[Tensor, "2 arcs"], scores: Float[Tensor, "*lead arcs"], n_from: int, n_to: int | None = None
    ) -> None:
        check_floating("scores", scores)
        index = as_whole("index", index, scores.device)
        self.n_from, self.n_to = n_from, n_from if n_to is None else n_to
        if index.dim() != 2 or len(index) != 2 or not scores.dim() or scores.shape[-1] != index.shape[1]:
            raise ValueError(
                f"index must be [2, E] and scores [*lead, E]: got {list(index.shape)} and {list(scores.shape)}"
            )
        for row, size, end in zip(index, (self.n_from, self.n_to), ("from", "to"), strict=True):
            if index.shape[1] and not 0 <= int(row.min()) <= int(row.max()) < size:
                raise ValueError(
                    f"index must lie between 0 and n_{end}-1 = {size - 1}: got {int(row.min())} to {int(row.max())}"
                )
        self._by_column(index)
        if index.shape[1] and bool((self.keys[1:] == self.keys[:-1]).any()):
            twice = int(self.keys[:-1][self.keys[1:] == self.keys[:-1]][0])
            raise ValueError(f"index must have each arc once: got {[twice % n_from, twice // n_from]} twice")
        self._set(scores[..., None, :])

    def _by_column(self, index: Tensor) -> None:
        """Find the order of the arcs by the state that they lead to, and where the arcs to each state begin."""
        self.index = index
        self.keys, self._order = (index[1] * self.n_from + index[0]).sort()
        self.given: Tensor | None = None  # the place of each arc, where `sorted` has moved them
        self._first = torch.searchsorted(self.keys, torch.arange(self.n_to, device=index.device) * self.n_from)

    def sorted(self) -> "Sparse":
        """The same with the arcs in the order of `keys`."""
        order = self._order
        if order is None:
            return self
        new = self.map(lambda x: x[..., order])
        new.index, new.given, new._order = self.index[:, order], order.argsort(), None  # noqa: SLF001
        return new

    @property
    def scores(self) -> Float[Tensor, "*lead arcs"]:
        """The scores of the arcs."""
        return self.tensors[0][..., 0, :]

    def block(self, rows: Rows = None, cols: Columns = None) -> Float[Tensor, "*lead a b"]:
        here, there = every_pair(self, rows, cols)
        keys = there * self.n_from + here
        if not len(self.keys):
            return self.tensors[0].new_full(torch.broadcast_shapes((*self.lead, 1, 1), keys.shape), self.absent)
        sorted_place = torch.searchsorted(self.keys, keys.contiguous()).clamp(max=len(self.keys) - 1)
        place = sorted_place if self._order is None else self._order[sorted_place]
        lead = torch.broadcast_shapes(self.lead, keys.shape[:-2])
        size = keys.shape[-2:].numel()
        found = self.scores.expand(*lead, -1).gather(-1, place.expand(*lead, -1, -1).reshape(*lead, size))
        return found.unflatten(-1, keys.shape[-2:]).masked_fill(self.keys[sorted_place] != keys, self.absent)

    def transposed(self) -> "Sparse":
        new = self.map(lambda x: x)
        new.n_from, new.n_to = self.n_to, self.n_from
        new._by_column(self.index.flip(0))  # noqa: SLF001
        new = new.sorted()
        new.given = None
        return new

    def carry(self, x: Float[Tensor, "*lead r n_from"], ring: Ring) -> Float[Tensor, "*lead r n_to"]:
        here, there = self.index
        if ring is PROBABILITY and self._order is None and not torch.is_grad_enabled() and len(here):
            return self._bags(x)
        return ring.collected(ring.join(x.index_select(-1, here), self.tensors[0]), there, self.n_to)

    def _bags(self, x: Tensor) -> Tensor:
        """Sums of weighted rows in one call; much faster, but without derivatives."""
        lead, tables = self.lead, self.lead.numel()
        rows = x.reshape(tables, -1, self.n_from).mT.reshape(tables * self.n_from, -1)
        place, first = self.index[0], self._first
        if tables > 1:
            shift = torch.arange(tables, device=x.device)[:, None]
            place, first = ((a + shift * size).flatten() for a, size in ((place, self.n_from), (first, len(place))))
        sums = F.embedding_bag(place, rows, first, mode="sum", per_sample_weights=self.tensors[0].reshape(-1))
        return sums.unflatten(0, (tables, -1)).mT.reshape(*lead, -1, self.n_to)

    def normalised(self) -> tuple["Sparse", Float[Tensor, "*lead n_to"]]:
        there, scores = self.index[1], self.scores
        never = scores.new_full((*self.lead, self.n_to), -torch.inf)
        scale = column_scale(never.scatter_reduce(-1, there.expand(scores.shape), scores.detach(), "amax"))
        ends = scale.index_select(-1, there)[..., None, :]
        return self.map(lambda x: x - ends), scale

    def prepared(self) -> tuple["Sparse", Float[Tensor, "*lead n_to"]]:
        weights, scale = super().prepared()
        return weights.sorted(), scale

    def correlated(self, x: Tensor, y: Tensor) -> tuple[Tensor | None, ...]:
        slopes, given = self._correlated(x, y), self.given
        return slopes if given is None else tuple(None if x is None else x[..., given] for x in slopes)

    def _correlated(self, x: Tensor, y: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled() or self.lead.numel() != 1 or not len(self.keys):
            return super().correlated(x, y)
        with warnings.catch_warnings():  # that sparse matrices of torch are new
            warnings.simplefilter("ignore")
            starts = F.pad(self._first, (0, 1), value=len(self.keys))
            ones = torch.sparse_csr_tensor(starts, self.index[0], self.scores.flatten(), (self.n_to, self.n_from))
            flat = y.reshape(-1, self.n_to).T.contiguous(), x.reshape(-1, self.n_from)
            sums = torch.sparse.sampled_addmm(ones, *flat, beta=0.0).values()
        return (self.tensors[0] * sums,)

    def same_form(self, other: Scores) -> bool:
        return isinstance(other, Sparse) and torch.equal(self.index, other.index) and self.n_from == other.n_from

    def plus(self, other: Scores) -> Scores:
        total = super().plus(other)
        return (
            total.filled(self.absent + other.absent)
            if isinstance(total, Sparse) and isinstance(other, Sparse)
            else total
        )

    def finite(self) -> "Sparse":
        return super().finite().filled(0.0 if self.absent == -torch.inf else self.absent)

    def forbidden(self, dtype: torch.dtype) -> "Sparse":
        return super().forbidden(dtype).filled(1.0 if self.absent == -torch.inf else 0.0)

    def filled(self, absent: float) -> "Sparse":
        """The same arcs, with another score of all other pairs."""
        new = self.map(lambda x: x)
        new.absent = absent
        return new
