"""Exact sums and maxima on a graph with loops: variables are summed out one by one (variable elimination).

Summing out a variable joins all its scores in a table over it and its neighbours, which are then neighbours of each
other. A good order keeps all tables small; the best one is hard to find, so `elimination_order` is greedy. Offsets are
kept out of the tables, where they would cost digits, and added in float64.
"""

import functools
import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.graphs.factor_scores import FactorGroups, Scopes
from tailsum.numerics.noise import Choose
from tailsum.numerics.reduce import Reduce
from tailsum.numerics.stream import Parts, streamed
from tailsum.numerics.tensors import finite

LIMIT = 1 << 22  # entries of all tables together
_FEW_NODES = 500
Table = tuple[tuple[int, ...], Tensor]  # the variables of a table, and its scores [b, n_1, .., n_r]


class Bucket(NamedTuple):
    """A variable to be summed out, and its neighbours at that time: all are summed out later."""

    node: int
    scope: tuple[int, ...]


@functools.lru_cache(maxsize=64)
def elimination_order(scopes: Scopes, sizes: tuple[int, ...]) -> tuple[Bucket, ...] | None:
    """An order whose tables have at most `LIMIT` entries together; None if neither of two greedy orders is so good.

    `sizes` are the numbers of states. Variables with one state are left out: they join nothing.
    """

    def weight(node: int, near: dict[int, set[int]]) -> int:
        return math.prod((sizes[node], *(sizes[other] for other in near[node])))

    def fill(node: int, near: dict[int, set[int]]) -> int:
        """How many pairs of neighbours become neighbours of each other."""
        return sum(len(near[node] - near[other]) - 1 for other in near[node]) // 2

    if math.prod(sizes[node] for node in max(scopes, key=len, default=())) > LIMIT:
        return None
    order = _greedy(scopes, sizes, weight)
    if order is None and len(sizes) <= _FEW_NODES:  # slower, and often better
        order = _greedy(scopes, sizes, fill)
    return order


Cost = Callable[[int, dict[int, set[int]]], int]


def _greedy(scopes: Scopes, sizes: tuple[int, ...], cost: Cost) -> tuple[Bucket, ...] | None:
    """The order in which the next variable always has the lowest cost; None if it needs too many entries."""
    near: dict[int, set[int]] = {node: set() for node, size in enumerate(sizes) if size > 1}
    for scope in scopes:
        wide = [node for node in scope if node in near]
        for node in wide:
            near[node].update(other for other in wide if other != node)
    latest = {node: cost(node, near) for node in near}
    heap = [(value, node) for node, value in latest.items()]
    heapq.heapify(heap)
    buckets, entries = list[Bucket](), 0
    while heap:
        value, node = heapq.heappop(heap)
        if latest.get(node) != value:  # out of date
            continue
        del latest[node]
        scope = near.pop(node)
        buckets.append(Bucket(node, tuple(sorted(scope))))
        entries += math.prod((sizes[node], *(sizes[other] for other in scope)))
        if entries > LIMIT:
            return None
        for other in scope:
            near[other] |= scope
            near[other] -= {node, other}
        for other in {x for y in scope for x in near[y]} | scope:
            value = cost(other, near)
            if value != latest[other]:
                latest[other] = value
                heapq.heappush(heap, (value, other))
    return tuple(buckets)


class Elimination:
    """Sums over the variables in a given order, from `unary [B, V, N]` and the flat scores of the factors."""

    def __init__(
        self,
        unary: Float[Tensor, "B V n"],
        factors: FactorGroups,
        variables: Sequence[Int[Tensor, "_ _"]],
        buckets: Sequence[Bucket],
        sizes: Sequence[int],
        reduce: Reduce,
    ) -> None:
        self.scopes, self.factors = [v.tolist() for v in variables], factors
        self.params = (unary, *factors.tensors)
        self.buckets, self.sizes, self.reduce = buckets, sizes, reduce
        self.place = {bucket.node: i for i, bucket in enumerate(buckets)}
        entries = sum(math.prod(sizes[v] for v in (bucket.node, *bucket.scope)) for bucket in buckets)
        self.together = max(1, LIMIT // max(1, entries))  # instances whose tables are kept at once

    def total(self) -> Float[Tensor, " B"]:
        """The reduction of the scores of all configurations, in float64."""
        if len(self.params[0]) <= self.together:
            return self._sum(self.params)[0]
        separate = [len(p) > 1 for p in self.params]  # the batch shares the others
        shapes = [p.shape[1:] for p in self.params]

        def tile(parts: Parts) -> Parts:
            rows, whole = iter(parts.rows), iter(parts.whole)
            kinds = zip(separate, shapes, strict=True)
            params = [next(rows).unflatten(-1, shape) if row else next(whole) for row, shape in kinds]
            return Parts((self._sum(params)[0][:, None],))

        rows = tuple(p.flatten(1) for p in self.params if len(p) > 1)
        whole = tuple(p for p in self.params if len(p) == 1)
        return streamed(tile, Parts(rows, whole), self.together, 1).rows[0][:, 0]

    @torch.no_grad()
    def decode(self, count: int, choose: Choose) -> Int[Tensor, "count B V"]:
        """Configurations, with states from `choose(logits [.., n])`; -1 throughout where none is possible."""
        pieces = []
        for start in range(0, max(1, len(self.params[0])), self.together):
            rows = slice(start, start + self.together)
            total, joints = self._sum([p if len(p) == 1 else p[rows] for p in self.params])
            pieces.append(self._decoded(total, joints, count, choose))
        return torch.cat(pieces, 1)

    def _decoded(self, total: Tensor, joints: list[Tensor], count: int, choose: Choose) -> Tensor:
        rows = torch.arange(len(total), device=total.device)
        states = torch.zeros(count, len(total), len(self.sizes), dtype=torch.long, device=total.device)
        for (node, scope), joint in zip(reversed(self.buckets), reversed(joints), strict=True):
            place = torch.zeros_like(states[..., 0])  # flat index of the states chosen before, row-major
            for other in scope:
                place = place * self.sizes[other] + states[..., other]
            states[..., node] = choose(joint.unsqueeze(1).flatten(1, -2)[rows, place])
        return torch.where((total > -math.inf)[:, None], states, -1)

    def _sum(self, params: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """The reduction `[B]`, and for each bucket the table `[B, *scope, node]` that was reduced."""
        total = torch.zeros(len(params[0]), dtype=torch.float64, device=params[0].device)
        waiting: list[list[Table]] = [[] for _ in self.buckets]
        joints: list[Tensor] = []

        def put(scope: tuple[int, ...], table: Tensor) -> None:
            """Put a table into the bucket of the variable that is summed out first; add a constant to the total."""
            nonlocal total
            if not scope:
                total = total + table.double()
                return
            top = finite(table.detach().flatten(1).amax(-1))
            total = total + top.double()
            table = table - top.reshape(-1, *(1,) * len(scope))
            waiting[min(self.place[v] for v in scope)].append((scope, table))

        for scope, table in self._tables(params):
            put(scope, table)
        for bucket, tables in zip(self.buckets, waiting, strict=True):
            joints.append(self._joint((*bucket.scope, bucket.node), tables))
            put(bucket.scope, self.reduce(joints[-1], -1))
        return total.masked_fill(total == -math.inf, -math.inf), joints  # the gradient of nothing is zero

    def _tables(self, params: Sequence[Tensor]) -> Iterator[Table]:
        """All scores, without the variables that have one state."""
        unary, *rest = params
        for node, size in enumerate(self.sizes):
            yield self._narrow((node,), unary[:, node, :size])
        for scopes, table in zip(self.scopes, self.factors.with_tensors(rest).tabled().tensors, strict=True):
            each = table.unbind(1)
            for f, scope in enumerate(scopes):
                yield self._narrow(tuple(scope), each[f if len(each) > 1 else 0])

    def _narrow(self, scope: tuple[int, ...], table: Tensor) -> Table:
        for axis, node in enumerate(scope):  # padded where variables have different numbers of states
            table = table.narrow(1 + axis, 0, self.sizes[node])
        wide = tuple(node for node in scope if self.sizes[node] > 1)
        return wide, table.reshape(len(table), *(self.sizes[node] for node in wide))

    def _joint(self, scope: tuple[int, ...], tables: list[Table]) -> Tensor:
        """The sum of tables over the variables of `scope`, in this order."""
        joint: Tensor | None = None
        for variables, table in sorted(tables, key=lambda x: len(x[0])):
            axes = sorted(range(len(variables)), key=lambda axis: scope.index(variables[axis]))
            shape = [self.sizes[node] if node in variables else 1 for node in scope]
            aligned = table.permute(0, *(1 + axis for axis in axes)).reshape(len(table), *shape)
            joint = aligned if joint is None else joint + aligned
        assert joint is not None  # every variable has scores of its own
        return joint
