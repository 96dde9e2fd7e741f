"""Rules as a table."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.numerics.check import check_tensor
from tailsum.numerics.reduce import LogProduct, Reduce
from tailsum.numerics.tensors import take, without_common
from tailsum.scores.potential import Dense, Potential
from tailsum.trees.rules.pair_sweep import Role
from tailsum.trees.rules.whole_rule import Ids, Kind, Scores, WholeRule


class DenseRule(WholeRule):
    """A table of scores `[*lead, N, N+P, N+P]` (head, left, right)."""

    trailing = 3

    def __init__(self, scores: Float[Tensor, "*lead N C C"]) -> None:
        check_tensor("scores", scores)
        if scores.dim() < 3 or scores.shape[-2] != scores.shape[-1] or 0 in scores.shape[-3:]:
            raise ValueError(f"scores of rules must be [*lead, N, N+P, N+P]: got {list(scores.shape)}")
        self.scores, self.tensors = scores, (scores,)
        self.n_heads, self.n_children = scores.shape[-3:-1]
        self._products: dict[tuple[Kind, Reduce], LogProduct] = {}

    def map(self, change: Callable[[Tensor], Tensor]) -> "DenseRule":
        return DenseRule(change(self.scores))

    def tabled(self) -> "DenseRule":
        return self

    def centred(self) -> "DenseRule":
        return self.map(lambda x: without_common(x, 3))

    def block(self) -> Float[Tensor, "*lead N C C"]:
        """The whole table."""
        return self.scores

    def at(self, head: Ids, left: Ids, right: Ids) -> Scores:
        flat = (head * self.n_children + left) * self.n_children + right
        return take(self.scores.flatten(-3)[..., None], flat)[..., 0]

    def between(
        self, head: Int[Tensor, "G *lead a"], left: Int[Tensor, "G *lead b"], right: Int[Tensor, "G *lead c"]
    ) -> Float[Tensor, "G *lead a b c"]:
        triples = (head[..., :, None, None], left[..., None, :, None], right[..., None, None, :])
        shape = torch.broadcast_shapes(*(x.shape for x in triples))
        return self.at(*(x.expand(shape).reshape(len(head), -1) for x in triples)).reshape(shape)

    def fan(self, role: Role, first: Int[Tensor, "G m"], second: Int[Tensor, "G m"], rest: slice) -> Potential:
        order = {"head": (1, 2, 0), "left": (0, 2, 1), "right": (0, 1, 2)}[role]
        table = self.scores.movedim([-3 + i for i in order], [-3, -2, -1])[..., rest]
        rows = first * table.shape[-2] + second
        return Dense(take(table.flatten(-3, -2), rows))

    def rows(self, batch: Int[Tensor, " r"], head: Int[Tensor, " r"]) -> Float[Tensor, "r C C"]:
        return self.scores[batch if len(self.scores) > 1 else torch.zeros_like(batch), head]

    def contract_pairs(self, pairs: Float[Tensor, "G r pair"], kind: Kind, reduce: Reduce) -> Float[Tensor, "G r N"]:
        if (kind, reduce) not in self._products:
            part = self.scores[..., self.children(kind[0]), self.children(kind[1])]
            self._products[kind, reduce] = LogProduct(part.flatten(-2).mT, reduce)
        return self._products[kind, reduce](pairs)
