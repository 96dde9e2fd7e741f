"""Dependency trees whose arcs may cross: `log_potentials` as in `DependencyCRF`."""

from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int, Num
from torch import Tensor

from tailsum.compat.torch_struct.dependency_crf import DependencyCRF, DepTree
from tailsum.compat.torch_struct.semirings.plain import StdSemiring
from tailsum.compat.torch_struct.struct import Lengths


class NonProjectiveDepTree(DepTree):
    """Trees whose arcs may cross, with one root."""

    multiroot = False

    def distribution(self, log_potentials: Tensor, lengths: Lengths) -> "NonProjectiveDependencyCRF":
        return NonProjectiveDependencyCRF(log_potentials, lengths, multiroot=self.multiroot)

    def recursion(self, parts: Num[Tensor, "1 B N N ..."], lengths: Int[Tensor, " B"]) -> Num[Tensor, "1 B"]:
        """A determinant, by the matrix-tree theorem; for weights only."""
        if self.semiring is not StdSemiring:
            raise NotImplementedError(f"trees whose arcs may cross have no recursion for a {self.semiring.__name__}")
        arcs = (parts.sum(-1) if parts.dim() == 5 else parts)[0].double()
        word = torch.arange(arcs.shape[-1], device=arcs.device)
        roots, arcs = arcs.diagonal(0, 1, 2), arcs.masked_fill(word == word[:, None], 0.0)
        padding = (word >= lengths[:, None]).double()  # a factor of one each
        laplacian = torch.diag_embed(arcs.sum(1) + padding) - arcs
        if self.multiroot:
            laplacian = laplacian + torch.diag_embed(roots)
        else:  # Koo et al. 2007
            laplacian = torch.cat((roots[:, None], laplacian[:, 1:]), 1)
        total = determinant(laplacian)
        return (total if parts.is_floating_point() else total.round()).to(parts.dtype)[None]


def determinant(matrix: Float[Tensor, "B N N"]) -> Float[Tensor, " B"]:
    """The determinant. Up to 12 rows, by sums and products (Bird 2011), exact for whole numbers; more rows would lose digits.

    >>> determinant(torch.tensor([[[2.0, 1.0], [3.0, 5.0]]]))
    tensor([7.])
    """
    size = matrix.shape[-1]
    if size > 12:
        return torch.linalg.det(matrix)
    product = matrix
    for _ in range(size - 1):
        diagonal = product.diagonal(0, 1, 2)
        below = diagonal.sum(-1, keepdim=True) - diagonal.cumsum(-1)
        product = (product.triu(1) - torch.diag_embed(below)) @ matrix
    return product[:, 0, 0] * (-1) ** (size - 1)


class MultirootNonProjectiveDepTree(NonProjectiveDepTree):
    """Trees whose arcs may cross, with any number of roots."""

    multiroot = True


class NonProjectiveDependencyCRF(DependencyCRF):
    """A non-projective dependency parser, from `log_potentials [B, N, N]` (head, child), roots on the diagonal.

    torch-struct computes only its partition and marginals; this class has every operation, and labels.

    >>> import torch
    >>> NonProjectiveDependencyCRF(torch.zeros(1, 4, 4)).count
    tensor([64.])
    """

    projective = False
    programs: ClassVar = {True: MultirootNonProjectiveDepTree, False: NonProjectiveDepTree}

    def __init__(
        self, log_potentials: Float[Tensor, "batch N N ..."], lengths: Lengths = None,
        args: dict[str, Any] | None = None, multiroot: bool = False, validate_args: bool | None = False,
    ) -> None:  # fmt: skip
        super().__init__(log_potentials, lengths, args, multiroot)


def deptree_part(
    arc_scores: Float[Tensor, "batch N N"], multi_root: bool, lengths: Lengths = None, eps: float = 0.0
) -> Float[Tensor, " batch"]:
    """The log-partition of non-projective trees; `eps`, added to every weight in torch-struct, is not needed and ignored."""
    return NonProjectiveDependencyCRF(arc_scores, lengths, multiroot=multi_root).partition


def deptree_nonproj(
    arc_scores: Float[Tensor, "batch N N"], multi_root: bool, lengths: Lengths = None, eps: float = 0.0
) -> Float[Tensor, "batch N N"]:
    """The marginals of the arcs of non-projective trees; `eps` is ignored."""
    return NonProjectiveDependencyCRF(arc_scores, lengths, multiroot=multi_root).marginals
