"""Rules scored by a function."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.numerics.tiles import fits_budget, tile_size
from tailsum.scores.potential import Dense, Potential
from tailsum.scores.scored import check_result
from tailsum.sketch.sweep import Sweep
from tailsum.trees.rules.dense import DenseRule
from tailsum.trees.rules.pair_sweep import PairSweep
from tailsum.trees.rules.whole_rule import WholeRule


class ScoredRule(WholeRule):
    """Rules scored by any differentiable function of three index tensors, for instance a network over embeddings.

    `function(head, left, right)` takes tensors of ids that broadcast together (heads `0 .. N-1`, children `0 .. N+P-1`) and
    returns one score for each triple. Exact inference evaluates all of them, a sketch those of the states it keeps.

    >>> states = torch.randn(50, 8)
    >>> rule = ScoredRule(lambda a, b, c: -(states[a] - states[b] * states[c]).square().sum(-1), 20, 30)
    >>> rule.block().shape
    torch.Size([20, 50, 50])
    """

    trailing, tensors = 0, ()

    def __init__(
        self,
        function: Callable[[Tensor, Tensor, Tensor], Tensor],
        n_heads: int,
        n_leaves: int,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> None:
        if not callable(function):
            raise ValueError(f"function must be callable with three index tensors: got {type(function).__name__}")
        if not isinstance(n_heads, int) or not isinstance(n_leaves, int) or n_heads < 1 or n_leaves < 1:
            raise ValueError(f"n_heads and n_leaves must be at least 1: got {n_heads} and {n_leaves}")
        self.function, self.n_heads, self.n_children = function, n_heads, n_heads + n_leaves
        self.dtype, self.device = dtype, device  # of the scores, and of the state ids: set by the model

    def __repr__(self) -> str:
        name = getattr(self.function, "__name__", type(self.function).__name__)
        return f"ScoredRule({name}, {self.n_heads}, {self.n_children - self.n_heads})"

    def map(self, change: Callable[[Tensor], Tensor]) -> "ScoredRule":
        return self

    def tabled(self) -> DenseRule:
        return DenseRule(self.block())

    def evaluated(self) -> DenseRule:
        return self.tabled()

    def to(self, dtype: torch.dtype, device: torch.device) -> "ScoredRule":
        return ScoredRule(self.function, self.n_heads, self.n_children - self.n_heads, dtype, device)

    def block(self) -> Float[Tensor, "N C C"]:
        """The whole table."""
        heads, children = (torch.arange(n, device=self.device) for n in (self.n_heads, self.n_children))
        return self.between(heads, children, children)

    def sweep(self, spans: Float[Tensor, "B T T n"], length: Int[Tensor, " B"], batch: torch.Size) -> Sweep:
        """By exact messages where evaluating all rules, once, takes no longer than messages from pairs."""
        entries = self.n_heads * self.n_children**2
        from_pairs = PairSweep.evaluations(spans.shape[1], spans.shape[-1]) * len(spans)
        if entries > from_pairs or not fits_budget(2 * entries * spans.element_size()):
            return super().sweep(spans, length, batch)
        heads, children = (torch.arange(n, device=self.device) for n in (self.n_heads, self.n_children))
        chunk = max(1, tile_size(spans.device) // self.n_children**2)
        table = torch.cat([self.between(part, children, children) for part in heads.split(chunk)])
        return DenseRule(table[None]).sweep(spans, length, batch)

    def between(
        self, head: Int[Tensor, "*#lead a"], left: Int[Tensor, "*#lead b"], right: Int[Tensor, "*#lead c"]
    ) -> Float[Tensor, "*lead a b c"]:
        return self.at(head[..., :, None, None], left[..., None, :, None], right[..., None, None, :])

    def fan(self, role: int, first: Int[Tensor, "G m"], second: Int[Tensor, "G m"], rest: slice) -> Potential:
        triple = [first[..., None], second[..., None]]
        triple.insert(role, torch.arange(self.n_children, device=first.device)[rest])
        return Dense(self.at(*triple))

    def at(
        self, head: Int[Tensor, "*#shape"], left: Int[Tensor, "*#shape"], right: Int[Tensor, "*#shape"]
    ) -> Float[Tensor, "*shape"]:
        """Scores of triples of states, by one call of the function; a ValueError if its result is invalid."""
        scores = self.function(head, left, right)
        check_result(scores, torch.broadcast_shapes(head.shape, left.shape, right.shape), "triple")
        return scores if self.dtype is None else scores.to(self.dtype)
