"""Scores of pairs of states that are pairs themselves, with scores that add up."""

import torch
from jaxtyping import Float
from torch import Tensor

from tailsum.numerics.check import check_floating, shape_or_type
from tailsum.numerics.rings import Ring
from tailsum.scores.potential import Columns, Dense, Potential, Rows
from tailsum.scores.structured import Structured, joint_lead


class Kronecker(Structured):
    """Scores `first(i1, j1) + second(i2, j2)` of states `i = i1 n2 + i2`: two chains that move independently side by side.

    `first` and `second` are tables `[*lead, n, n]`, or structured potentials such as `Banded` or another `Kronecker`. Sums take time
    in proportion to N (n1 + n2) instead of N squared.

    >>> grid = Kronecker(torch.zeros(3, 3), torch.ones(4, 4))
    >>> grid.n_from, grid.at(torch.tensor(5), torch.tensor(11)).item()
    (12, 1.0)
    """

    def __init__(
        self, first: Float[Tensor, "*#lead n1 m1"] | Potential, second: Float[Tensor, "*#lead n2 m2"] | Potential
    ) -> None:
        self.first, self.second = _part("first", first), _part("second", second)
        self.n_from = self.first.n_from * self.second.n_from
        self.n_to = self.first.n_to * self.second.n_to
        self.lead = joint_lead("first and second", self.first.lead, self.second.lead)
        self.tensors = self.first.tensors + self.second.tensors
        self.leaves_out = any(isinstance(x, Structured) and x.leaves_out for x in (self.first, self.second))

    def _set(self, *tensors: Tensor) -> None:
        count = len(self.first.tensors)
        self.first, self.second = self.first.with_tensors(tensors[:count]), self.second.with_tensors(tensors[count:])
        super()._set(*tensors)

    def block(self, rows: Rows = None, cols: Columns = None) -> Float[Tensor, "*lead a b"]:
        if rows is None and cols is None:
            first, second = self.first.block(), self.second.block()
            return (first[..., :, None, :, None] + second[..., None, :, None, :]).flatten(-4, -3).flatten(-2)
        n, m = self.second.n_from, self.second.n_to
        device = self.tensors[0].device
        rows = torch.arange(self.n_from, device=device) if rows is None else rows
        cols = torch.arange(self.n_to, device=device) if cols is None else cols
        return self.first.block(rows // n, cols // m) + self.second.block(rows % n, cols % m)

    def transposed(self) -> "Kronecker":
        return self._of(self.first.transposed(), self.second.transposed())

    def carry(self, x: Float[Tensor, "*lead r n_from"], ring: Ring) -> Float[Tensor, "*lead r n_to"]:
        rows, lead = x.shape[-2], x.shape[:-2]
        x = x.reshape(*lead, rows * self.first.n_from, self.second.n_from)
        x = self.second.carry(x, ring).unflatten(-2, (rows, self.first.n_from)).mT
        x = self.first.carry(x.flatten(-3, -2), ring).unflatten(-2, (rows, self.second.n_to)).mT
        return x.flatten(-2)

    def normalised(self) -> tuple["Kronecker", Float[Tensor, "*lead n_to"]]:
        (first, top), (second, other) = self.first.normalised(), self.second.normalised()
        return self._of(first, second), (top[..., :, None] + other[..., None, :]).flatten(-2)

    def same_form(self, other: object) -> bool:
        if not isinstance(other, Kronecker):
            return False
        return all(
            type(a) is type(b) and (a.same_form(b) if isinstance(a, Structured) else a.n_from == b.n_from)
            for a, b in ((self.first, other.first), (self.second, other.second))
        )

    def _of(self, first: Dense | Structured, second: Dense | Structured) -> "Kronecker":
        new = object.__new__(Kronecker)
        vars(new).update(vars(self) | {"first": first, "second": second, "n_from": first.n_from * second.n_from})
        new.n_to, new.tensors = first.n_to * second.n_to, first.tensors + second.tensors
        return new


def _part(name: str, scores: Tensor | Potential) -> Dense | Structured:
    if isinstance(scores, Tensor) and scores.dim() > 1:
        scores = Dense(scores)
    if not isinstance(scores, Potential) or scores.trailing != 2:
        raise ValueError(
            f"{name} must be a tensor [*lead, n, n] or a potential of tensors: got {shape_or_type(scores)}"
        )
    for x in scores.tensors:
        check_floating(name, x)
    return scores if isinstance(scores, Dense | Structured) else scores.tabled()
