"""Potentials: scores between the states of two neighbouring nodes, as a table, as factors, or as a function.

A potential represents scores `[*lead, n_from, n_to]`. `lead` broadcasts against the model's `[*batch, steps]`: `()` is
shared by all, `(steps,)` varies with time, `(*batch, 1)` with the sequence. Scores of single nodes are potentials with
`n_from = 1` and `lead = (*batch, T)`.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tailsum.numerics.check import check_device, check_floating, check_scores, shape_or_type
from tailsum.numerics.reduce import LogProduct, Reduce, log_sum_exp
from tailsum.numerics.rings import Ring
from tailsum.numerics.stream import Parts, in_tiles, streamed
from tailsum.numerics.tensors import as_values, at_step, finite, flattened, take, without_common
from tailsum.numerics.tiles import fits_budget, tile_rows, tile_size
from tailsum.scores.base import Scores
from tailsum.scores.products import Products
from tailsum.scores.table import Table

Rows = Int[Tensor, "*#lead a"] | None  # state ids; None means every state
This = TypeVar("This", bound="Potential")
Columns = Int[Tensor, "*#lead b"] | None


class Potential(Scores):
    """Scores of pairs of states: an operator that sums and maximises over them.

    A subclass defines `block`, `map`, `transposed` and `columns`. Then sums go by a table. One that multiplies without a
    table of all pairs is a `Structured`.
    """

    arity = 2  # how many states are scored together
    trailing = 2  # how many dimensions its tensors have after `lead`
    always_finite = False  # whether no score can be minus infinity
    numbers_per_score = 1  # that are read to compute one
    time_per_score = 1  # in units of the time of an entry of a table
    whole = True  # whether this process has the scores of all pairs, and messages of all states
    in_slices = False  # whether each of its tensors has a row for each state, so that ranks can have slices of it
    by_parts = True  # whether sums of values over paths go by tiles of scores (`parts`)
    lead: torch.Size
    n_from: int
    n_to: int

    @property
    def after_batch(self) -> int:
        """The last dimension of `lead`, usually the steps, comes after the batch."""
        return self.trailing + 1

    @property
    def node_sizes(self) -> tuple[int, ...]:
        """How many states each of the nodes has."""
        return self.n_from, self.n_to

    @property
    def table_bytes(self) -> int:
        """The size of the table of all scores."""
        return self.lead.numel() * self.n_from * self.n_to * self.tensors[0].dtype.itemsize

    @property
    def device(self) -> torch.device:
        """Where state ids are."""
        return self.tensors[0].device

    def check(self, name: str) -> None:
        """A ValueError unless every tensor holds scores. Override it where the tensors are something else."""
        for tensor in self.tensors:
            check_scores(name, tensor)

    def check_tensors(self, name: str, device: torch.device) -> None:
        """A ValueError unless the tensors have the right type, and are on the device."""
        for tensor in self.tensors:
            check_device(name, tensor, device)
            check_floating(name, tensor)

    def on(self, device: torch.device) -> "Potential":
        """The potential for state ids on `device`."""
        return self

    @abstractmethod
    def map(self: This, change: Callable[[Tensor], Tensor]) -> This: ...

    def to(self: This, dtype: torch.dtype) -> This:
        """The potential with scores of the given dtype."""
        return self.map(lambda x: x.to(dtype))

    @abstractmethod
    def block(self, rows: Rows = None, cols: Columns = None) -> Float[Tensor, "*lead a b"]:
        """Scores of all given rows with all given columns."""

    def at_step(self: This, t: int) -> This:
        """The potential of step t, without the last dimension of `lead`."""
        return self.map(lambda x: at_step(x, self.trailing, t))

    def at(self, i: Int[Tensor, "*#lead"], j: Int[Tensor, "*#lead"]) -> Float[Tensor, "*lead"]:
        """Scores of single pairs of states."""
        return self.block(i[..., None], j[..., None])[..., 0, 0]

    def gather(self, rows: Rows, cols: Columns) -> "Potential":
        """The potential restricted to some states."""
        return Dense(self.block(rows, cols))

    def tabled(self) -> "Dense":
        return Dense(self.block())

    def evaluated(self) -> "Potential":
        return self

    def centred(self) -> "Potential":
        return self

    def blank_outside(self: This, inside: Bool[Tensor, "*#batch_steps"]) -> This:
        """The potential with zeros where no sequence is `inside [*batch, *steps]`."""

        def blank(x: Tensor) -> Tensor:
            lead = x.shape[: -self.trailing]
            if math.prod(lead) == 0 or not lead:
                return x
            # Shared scores are used if one sequence uses them.
            unused = ~inside if lead == inside.shape else inside.long().sum_to_size(lead) == 0
            return x.masked_fill(unused.reshape(*lead, *(1,) * self.trailing), 0)

        return self.map(blank)

    @abstractmethod
    def transposed(self) -> "Potential":
        """From and to exchanged."""

    @abstractmethod
    def columns(self, start: int, stop: int) -> "Potential":
        """The potential to the states `start .. stop-1`."""

    def zeros(self: This) -> This:
        """The score zero for each pair, in the same form."""
        return self.map(lambda x: x.new_zeros(()).expand(x.shape))

    # Arithmetic. Flat potentials have the leading dimensions [G, S], of tables that sequences and steps share (`Products`).

    def operator(self) -> "Potential":
        """The same scores in the form that sums use: a table, unless a subclass does without."""
        return self.tabled()

    def flat(self, batch_shape: torch.Size) -> "Potential":
        """The `operator` as `[G, S, ...]`: G is 1 where the batch shares the scores, and S where the steps do."""
        own = self.operator()
        return own.map(lambda x: flattened(x.expand(*own.lead, -1, -1), 2, batch_shape))

    def highest(self, x: Tensor) -> Tensor:
        """The maximum of messages over the states, the last dimension; without gradients."""
        return x.amax(-1)

    def log_sum(self, x: Tensor) -> Tensor:
        """The log of the sum of exponentials over the states, of messages whose highest is zero."""
        return log_sum_exp(x, -1)

    def products(self) -> Products:
        """Products with the exponentials of a flat potential."""
        return Table(self)

    @property
    def for_kernels(self) -> tuple[Tensor, ...] | None:
        """A table or two factors that fit the tiles of kernels; None if there are none."""
        return None

    def within(self, room: int) -> "Potential":
        """A table, if it fits the table budget `room` times; else the scores as they are."""
        return self.tabled() if fits_budget(room * self.table_bytes) else self

    def in_rows(self) -> "Potential":
        """The `operator` in a form that can be cut into rows (`parts`): a table, unless it has such a form itself."""
        own = self.operator()
        return own if own.by_parts else own.tabled()

    def parts(self) -> Parts:
        """The tensors: those with a row for each state that is left, and those that every row needs."""
        return Parts(self.tensors)

    def of_parts(self, parts: Parts) -> tuple[Tensor, ...]:
        """The inverse of `parts`."""
        return parts.rows + parts.whole

    def scores_of(self, parts: Parts) -> Tensor:
        """The scores of some rows."""
        return parts.rows[0]

    def slopes(self, of_scores: Tensor, parts: Parts) -> Parts:
        """The gradient in some parts, from the gradient in their scores."""
        return Parts((of_scores,))

    def backwards(self) -> "Potential":
        """The transposed `operator`, without copies where that is possible."""
        return self.transposed().operator()

    def common_part(self) -> Tensor:
        """A number for each table that may be subtracted from its scores, so that they keep their digits: `[*lead]`."""
        return self.tensors[0].new_zeros(self.lead)

    def into(self, values: Tensor, reduce: Reduce, common: Tensor | None = None) -> Tensor:
        """`reduce_i(values [*lead, R, i] + score(i, j))`, `[*lead, R, M]`, in tiles of the states j.

        A number `common [*lead]` is subtracted from all scores first.
        """
        columns = self.backwards()
        rows, whole = columns.parts()

        def tile(parts: Parts) -> Parts:
            here, (values, *rest) = parts
            scores = columns.scores_of(Parts(here, tuple(rest)))
            scores = scores if common is None else scores - common[..., None, None]
            return Parts((reduce(scores[..., :, None, :] + values[..., None, :, :], -1),))

        chunk = tile_rows(values.numel(), values.device)
        return streamed(tile, Parts(rows, (values, *whole)), chunk, 1).rows[0].mT

    def log_product(self, values: Tensor, reduce: Reduce, common: Tensor | None = None) -> Tensor:
        """The same as `into`, for the sum by a matrix product of exponentials in each tile."""
        columns = self.backwards()
        rows, whole = columns.parts()

        def tile(parts: Parts) -> Parts:
            here, (values, *rest) = parts
            scores = columns.scores_of(Parts(here, tuple(rest))).mT
            scores = scores if common is None else scores - common[..., None, None]
            return Parts((LogProduct(scores, reduce)(values).mT,))

        lead = torch.broadcast_shapes(values.shape[:-2], self.lead)
        chunk = tile_rows(lead.numel() * values.shape[-1], values.device)
        return streamed(tile, Parts(rows, (values, *whole)), chunk, 1).rows[0].mT

    # Scores of single nodes, from one state to N, which users give without the dimension of size 1.

    def of_nodes(self) -> "Potential | None":
        """The potential for scores of nodes that a user gave in this form; None if this form is for pairs only."""
        return None

    def as_given(self) -> "Potential":
        """Scores of nodes in the shape in which the user gave them, as errors report them."""
        return self

    @torch.no_grad()
    def message(self, index: Tensor | None, value: Tensor) -> Tensor:
        """`logsumexp_m(value_m + score(index_m, j))` for every j: `[*batch, N]` from index and value `[*batch, M]`.

        Without an index, `value` has all states.
        """
        return column_sums(lambda *cut: self.columns(*cut).block(index) + value[..., None], self.n_to, value)


def column_sums(scores: Callable[[int, int], Tensor], size: int, value: Tensor) -> Tensor:
    """`logsumexp` over the rows of `scores(start, stop) [*batch, M, n]`, of columns that are few enough for a few MB."""

    def tile(start: int, stop: int) -> Parts:
        part = scores(start, stop)
        highest = part.amax(-2, keepdim=True)
        part.sub_(finite(highest))
        if (
            part.device.type == "cpu"
        ):  # where numbers below the range of float32, which add nothing, are many times slower
            part.clamp_(min=-80.0)
        return Parts((part.exp_().sum(-2).log_().add_(highest[..., 0, :])[..., None],))

    return in_tiles(tile, size, tile_rows(value.numel(), value.device)).rows[0][..., 0]


def column_scale(highest: Float[Tensor, "*lead n_to"]) -> Float[Tensor, "*lead n_to"]:
    """The highest score of each column, as a constant; for columns without a possible score, that of the others or zero."""
    highest = highest.detach()
    top = highest.amax(-1, keepdim=True).nan_to_num_(neginf=0.0)
    return torch.where(highest > -torch.inf, highest, top)


class Dense(Potential):
    """A table of scores `[*lead, n_from, n_to]` (from, to).

    >>> Dense(torch.zeros(3, 3)).block(torch.tensor([0, 1]), None).shape
    torch.Size([2, 3])
    """

    in_slices = True

    def __init__(self, scores: Float[Tensor, "*lead n_from n_to"]) -> None:
        if not isinstance(scores, Tensor) or scores.dim() < 2:
            raise ValueError(f"scores must be a tensor [*lead, n_from, n_to]: got {shape_or_type(scores)}")
        self.scores, self.tensors = scores, (scores,)
        self.lead, (self.n_from, self.n_to) = scores.shape[:-2], scores.shape[-2:]

    def map(self, change: Callable[[Tensor], Tensor]) -> "Dense":
        return Dense(change(self.scores))

    def as_given(self) -> "Dense":
        return self.map(lambda x: x.squeeze(-2))

    def tabled(self) -> "Dense":
        return self

    def operator(self) -> "Dense":
        return self

    def within(self, room: int) -> "Dense":
        return self

    @property
    def for_kernels(self) -> tuple[Tensor, ...]:
        return self.tensors

    @torch.no_grad()
    def message(self, index: Tensor | None, value: Tensor) -> Tensor:
        if value.numel() * self.n_to > 4 * tile_size(value.device):
            return super().message(index, value)
        scores = self.block(index) + value[..., None]  # rows of a table are contiguous: one look-up serves all tiles
        return column_sums(lambda start, stop: scores[..., start:stop], self.n_to, value)

    def carry(self, x: Float[Tensor, "*lead r n_from"], ring: Ring) -> Float[Tensor, "*lead r n_to"]:
        """Messages times the table, in the arithmetic of the ring."""
        return ring.product(x, self.scores)

    def normalised(self) -> tuple["Dense", Float[Tensor, "*lead n_to"]]:
        """The scores less a constant for each column, and these constants."""
        scale = column_scale(self.scores.amax(-2))
        return Dense(self.scores - scale[..., None, :]), scale

    def common_part(self) -> Tensor:
        return as_values(self.scores.amax((-2, -1)))

    def backwards(self) -> "Dense":
        return Dense(self.scores.mT)

    def centred(self) -> "Dense":
        """A copy if it fits the table budget, else the scores as they are."""
        return Dense(without_common(self.scores, 2)) if self._copy_fits else self

    @property
    def _copy_fits(self) -> bool:
        return fits_budget(self.scores.numel() * self.scores.element_size())

    def block(self, rows: Rows = None, cols: Columns = None) -> Float[Tensor, "*lead a b"]:
        if cols is None:
            return self.scores if rows is None else take(self.scores, rows)
        if rows is not None and not self.scores.is_contiguous() and self.scores.mT.is_contiguous():
            return Dense(self.scores.mT).block(cols, rows).mT  # flattened, a transposed table would be copied
        if rows is None and not self.lead:
            columns = self.scores.index_select(-1, cols.flatten()).unflatten(-1, cols.shape)
            return columns.movedim(0, -2)
        if rows is None:
            lead = torch.broadcast_shapes(self.lead, cols.shape[:-1])
            index = cols[..., None, :].expand(*lead, self.n_from, -1)
            return self.scores.expand(*lead, -1, -1).gather(-1, index)
        flat = rows[..., :, None] * self.n_to + cols[..., None, :]
        return take(self.scores.flatten(-2)[..., None], flat.flatten(-2))[..., 0].unflatten(-1, flat.shape[-2:])

    def transposed(self) -> "Dense":
        """A copy, whose rows are read faster, if it fits the table budget."""
        return Dense(self.scores.mT.contiguous() if self._copy_fits else self.scores.mT)

    def columns(self, start: int, stop: int) -> "Dense":
        return Dense(self.scores[..., start:stop])
