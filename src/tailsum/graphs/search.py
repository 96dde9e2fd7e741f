"""The best configuration of a graph by messages: exact on a forest; with loops, the best that a local search finds.

With loops max-product messages may not converge, or decode to a configuration that a change of a few states improves. So
several configurations are decoded, from the messages of the maximum and of the sum, and improved until no move improves
any of them. Results do not depend on the global random state.

A move frees a set of variables that contains no loop and holds all others fixed: messages then find the best states of
the whole set. The moves of a cover include every change of one variable, or of two that share a factor.
"""

import functools
import itertools
import math
from collections.abc import Sequence
from random import Random

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from tailsum.graphs.factor_scores import FactorGroups, Scopes
from tailsum.graphs.layers import Plan
from tailsum.graphs.monitor import Passing
from tailsum.graphs.solver import Solver
from tailsum.numerics.noise import drawn_by, most_likely
from tailsum.numerics.reduce import highest, log_sum_exp
from tailsum.numerics.tiles import tile_size

_STARTS = 8
_COVERS = 6
_LARGEST_COVER = 16
_ITERATIONS = 30  # messages need not converge to be decoded; those of a move, on a forest, converge in a few


@torch.no_grad()
def best_states(
    unary: Tensor, factors: FactorGroups, variables: Sequence[Tensor], plan: Plan, passing: Passing
) -> Int[Tensor, "B V"]:
    """The best states found for `unary [B, V, N]` and the flat scores of factors; -1 throughout where none is possible."""
    first = Solver(unary, factors, variables, plan, passing, highest).decode(1, most_likely)
    if plan.forest or not len(unary):
        return first[0]
    few = passing._replace(iterations=min(_ITERATIONS, passing.iterations), warn=False)
    search = _Search(factors, variables, plan, few)
    size = sum(len(v) * unary.shape[-1] ** v.shape[1] for v in variables)  # scores of all joint states of all factors
    starts = max(2, min(_STARTS, tile_size(unary.device) // max(1, size)))
    together = max(1, 4 * tile_size(unary.device) // (starts * size))
    slices = (slice(start, start + together) for start in range(0, len(unary), together))
    return torch.cat([search(rows, unary[rows], first[:, rows], starts) for rows in slices])


class _Search:
    """Searches a few rows of the batch at a time."""

    def __init__(self, factors: FactorGroups, variables: Sequence[Tensor], plan: Plan, passing: Passing) -> None:
        self.factors, self.variables, self.plan, self.passing = factors, variables, plan, passing
        self.scopes = tuple(tuple(scope) for v in variables for scope in v.tolist())

    def _of(self, rows: slice, times: int) -> FactorGroups:
        """The scores of some rows, each `times` times."""
        return self.factors.map(lambda x: x if len(x) == 1 else x[rows].repeat_interleave(times, 0))

    def __call__(self, rows: slice, unary: Tensor, first: Tensor, starts: int) -> Tensor:
        """The best states `[b, V]` from `first [1, b, V]` and others."""
        generator = torch.Generator(unary.device).manual_seed(0)
        sums = Solver(unary, self._of(rows, 1), self.variables, self.plan, self.passing, log_sum_exp)
        start = [first, sums.decode(1, most_likely)]
        if starts > 2:
            start.append(sums.decode(starts - 2, drawn_by(generator)))
        states = torch.cat(start).transpose(0, 1).flatten(0, 1)  # [b * starts, V]
        states, score = self._improved(unary.repeat_interleave(starts, 0), self._of(rows, starts), states)
        states, score = states.unflatten(0, (-1, starts)), score.unflatten(0, (-1, starts))
        place = score.argmax(1, keepdim=True)
        best = states.take_along_dim(place[..., None], 1)[:, 0]
        return torch.where(score.take_along_dim(place, 1) > -math.inf, best, -1)

    def _improved(self, unary: Tensor, factors: FactorGroups, states: Tensor) -> tuple[Tensor, Tensor]:
        """Configurations `[R, V]`, each improved until no move helps, and their scores `[R]`."""
        score = self._solver(unary, factors).score(states[None])[0]
        states = states.clamp(min=0)
        for seed in range(_COVERS):
            helped = False
            for free in cover(self.scopes, unary.shape[1], seed).to(unary.device):
                held = torch.arange(unary.shape[-1], device=unary.device) != states[..., None]
                solver = self._solver(unary.masked_fill(held & ~free[:, None], -math.inf), factors)
                moved = solver.decode(1, most_likely)
                after = self._solver(unary, factors).score(moved)[0]
                better = after > score + 1e-9 * score.abs().nan_to_num(posinf=0.0)  # not by rounding alone
                states, score = torch.where(better[:, None], moved[0], states), torch.where(better, after, score)
                helped |= bool(better.any())
            if not helped:
                break
        return states, score

    def _solver(self, unary: Tensor, factors: FactorGroups) -> Solver:
        return Solver(unary, factors, self.variables, self.plan, self.passing._replace(damping=0.0), highest)


@functools.lru_cache(maxsize=64)
def cover(scopes: Scopes, n_nodes: int, seed: int) -> Bool[Tensor, "moves V"]:
    """Random sets; each pair of variables that share a factor is in one of them, except for some pairs of dense graphs."""
    random = Random(seed)
    factors: list[list[int]] = [[] for _ in range(n_nodes)]
    for f, scope in enumerate(scopes):
        for node in scope:
            factors[node].append(n_nodes + f)
    missing = {pair for scope in scopes for pair in itertools.combinations(scope, 2)}
    moves: list[list[bool]] = []
    while (missing or not moves) and len(moves) < _LARGEST_COVER:
        pairs = random.sample(sorted(missing), len(missing))
        rest = random.sample(range(n_nodes), n_nodes)
        free = _forest([*pairs, *((node,) for node in rest)], factors, n_nodes + len(scopes))
        moves.append(free)
        missing = {(u, v) for u, v in missing if not (free[u] and free[v])}
    with torch.inference_mode(False):
        return torch.tensor(moves)


def _forest(candidates: Sequence[tuple[int, ...]], factors: list[list[int]], size: int) -> list[bool]:
    """Which variables are in a set: candidates in order, except for those that would close a loop."""
    parent, free = list(range(size)), [False] * len(factors)

    def root(x: int) -> int:
        while parent[x] != x:
            parent[x] = parent[parent[x]]
            x = parent[x]
        return x

    for node in itertools.chain(*candidates):
        roots = [root(f) for f in factors[node]]
        if not free[node] and len(set(roots)) == len(roots):
            free[node] = True
            for other in roots:
                parent[other] = node
    return free
