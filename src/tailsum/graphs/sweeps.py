"""Iterations of messages on a graph: by kernels where all factors have two variables and not too many states, else stage by stage."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tailsum.graphs.factor_scores import Group
from tailsum.graphs.factors import Factors, PairFactors, TableFactors
from tailsum.graphs.layers import Plan, plan
from tailsum.graphs.propagate import Propagation
from tailsum.graphs.wiring import wired
from tailsum.numerics.fixed_point import Iterated
from tailsum.numerics.fused.kernel import Example, Kernel
from tailsum.numerics.kernels import fused
from tailsum.numerics.reduce import Reduce, highest, log_sum_exp
from tailsum.numerics.tiles import fits_budget
from tailsum.scores.potential import Dense

if TYPE_CHECKING:
    from tailsum.numerics.fused import messages as launched

_MOST_STATES = 1024
_MOST_NEIGHBOURS = 64  # all other messages to a variable are read for each message from it


def iteration(
    plan: Plan, unary: Tensor, groups: Sequence[Group], damping: float, reduce: Reduce, *, hard: bool
) -> Callable[[Tensor], Tensor]:
    """One iteration of the messages `[B, Z]`, for scores `[B, V, N]` and the flat scores of groups of factors."""
    taken = reduce is log_sum_exp or (reduce is highest and not torch.is_grad_enabled())
    if taken and _by_kernels(plan, unary, groups):
        return _Sweep(plan, unary, [group.block() for group in groups], damping, reduce, hard)
    return _by_stages(plan, unary, groups, damping, reduce, hard=hard).step


def _by_stages(
    plan: Plan, unary: Tensor, groups: Sequence[Group], damping: float, reduce: Reduce, *, hard: bool
) -> Propagation:
    keep = fits_budget(sum(group.table_bytes for group in groups if group.arity == 2))
    shared: dict[tuple[int, tuple[int, ...]], Factors] = {}  # where all factors of a group share a table
    factors = list[Factors]()
    for block in plan.blocks:
        key, group = (block.group, block.axes), groups[block.group]
        of_block = (
            shared[key] if key in shared else all_factors(of_factors(group, block.factors), reduce, block.axes, keep)
        )
        if group.lead[1] == 1:
            shared[key] = of_block
        factors.append(of_block)
    return Propagation(plan, unary, factors, damping=damping, hard=hard)


def all_factors(group: Group, reduce: Reduce, axes: tuple[int, ...] | None = None, keep: bool | None = None) -> Factors:
    """All factors of a group, with the axes of their tables in the given order."""
    axes = tuple(range(group.arity)) if axes is None else axes
    if len(axes) > 2:
        return TableFactors(group.scores.permute(0, 1, *(2 + a for a in axes)), reduce)
    return PairFactors(group if axes == (0, 1) else group.backwards(), reduce, keep)


def of_factors(group: Group, factors: Tensor) -> Group:
    """The scores of factors in ascending order; as many factors as the group has are all of them."""
    return group if group.lead[1] in (1, len(factors)) else group.map(lambda x: x.index_select(1, factors))


def _by_kernels(plan: Plan, unary: Tensor, groups: Sequence[Group]) -> bool:
    """Whether there are kernels for such a graph, and they are faster."""
    tensors = [x for group in groups for x in group.tensors]
    if not fused(unary, *tensors) or not unary.numel() or not plan.blocks:
        return False
    n = unary.shape[-1]
    if n > _MOST_STATES or any(group.arity > 2 for group in groups):
        return False
    return wired(plan).most <= _MOST_NEIGHBOURS and fits_budget(5 * sum(group.table_bytes for group in groups))


def _reference(
    messages: Tensor, unary: Tensor, *tables: Tensor, plan: Plan, damping: float, reduce: Reduce, hard: bool, **_: Any
) -> Tensor:
    groups = [Dense(table) for table in tables]
    return _by_stages(plan, unary, groups, damping, reduce, hard=hard).step(messages)


def _example(batch: int, size: int, states: int, own: int) -> Example:
    """A wheel: a loop, and a variable in its middle; with tables that factors share, or of their `own`."""
    edges = [(v, 1 + v % (size - 1)) for v in range(1, size)] + [(0, v) for v in range(2, size)]
    found = plan([torch.tensor(edges)], size, "flooding" if own else "sweep", torch.device("cpu"))
    table = torch.randn(batch if own else 1, len(edges) if own else 1, states, states)
    start, unary = 0.3 * torch.randn(batch, 2 * len(edges) * states), torch.randn(batch, size, states)
    settings = {"plan": found, "wiring": wired(found), "damping": 0.25, "reduce": log_sum_exp, "hard": True}
    return Example((start, unary, table), settings)


_iterated = Kernel(
    "messages",
    _reference,
    _example,
    sizes=({"batch": 1, "size": 4, "states": 3, "own": 0}, {"batch": 2, "size": 4, "states": 5, "own": 1}),
    large={"batch": 8, "size": 100, "states": 100, "own": 0},
)


class _Sweep:
    """One iteration by kernels, or many: `Steps` and `Invertible` of `numerics.fixed_point`."""

    def __init__(
        self, plan: Plan, unary: Tensor, tables: Sequence[Tensor], damping: float, reduce: Reduce, hard: bool
    ) -> None:
        self.inputs = (unary, *tables)
        self.settings = {"plan": plan, "wiring": wired(plan), "damping": damping, "reduce": reduce, "hard": hard}

    def __call__(self, z: Tensor) -> Tensor:
        return _iterated(z, *self.inputs, **self.settings)

    @cached_property
    def launched(self) -> "launched.Sweeps":
        unary, *tables = (x.detach() for x in self.inputs)
        found: Any = _iterated.launches
        return found.Sweeps(unary, tables, self.settings["wiring"], self.settings["damping"])

    def repeated(self, z: Tensor, limit: int, tolerance: float) -> tuple[Tensor, Iterated]:
        swept = self.launched.pass_on(z, limit, tolerance, highest=self.settings["reduce"] is highest, keep=False)
        return swept.messages.flatten(1), Iterated(swept.iterations, swept.change)

    def pulled(self, z: Tensor, grad: Tensor) -> "_Pull":
        return _Pull(self.launched, z, grad)


class _Pull:
    """The step `w -> grad + J' w`, J the derivative of one iteration at the messages z: `Steps`."""

    def __init__(self, launched: "launched.Sweeps", z: Tensor, grad: Tensor) -> None:
        self.launched, self.z, self.grad = launched, z, grad
        self.swept = launched.pass_on(z, 1, 0.0, highest=False, keep=True)

    def __call__(self, w: Tensor) -> Tensor:
        return self.repeated(w, 1, 0.0)[0]

    def repeated(self, w: Tensor, limit: int, tolerance: float) -> tuple[Tensor, Iterated]:
        found = self.launched.pull(self.grad, w, self.z, self.swept, limit, tolerance)
        return found.weight.flatten(1), Iterated(found.iterations, found.change)
