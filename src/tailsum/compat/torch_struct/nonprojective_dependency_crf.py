"""Dependency trees whose arcs may cross: `log_potentials` as in `DependencyCRF`."""

from typing import Any

from jaxtyping import Float
from torch import Tensor

from tailsum.compat.torch_struct.dependency_crf import DependencyCRF, DepTree
from tailsum.compat.torch_struct.struct import Lengths


class NonProjectiveDepTree(DepTree):
    """Trees whose arcs may cross, with one root."""

    multiroot = False

    def distribution(self, log_potentials: Tensor, lengths: Lengths) -> "NonProjectiveDependencyCRF":
        return NonProjectiveDependencyCRF(log_potentials, lengths, multiroot=self.multiroot)


class MultirootNonProjectiveDepTree(NonProjectiveDepTree):
    """Trees whose arcs may cross, with any number of roots."""

    multiroot = True


class NonProjectiveDependencyCRF(DependencyCRF):
    """A non-projective dependency parser, from `log_potentials [B, N, N]` (head, child), roots on the diagonal.

    torch-struct has its partition and marginals; here every operation is there, and labels.

    >>> import torch
    >>> NonProjectiveDependencyCRF(torch.zeros(1, 4, 4)).count
    tensor([64.])
    """

    projective = False

    def __init__(
        self, log_potentials: Float[Tensor, "batch N N ..."], lengths: Lengths = None,
        args: dict[str, Any] | None = None, multiroot: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(log_potentials, lengths, args, multiroot)
        self.struct = MultirootNonProjectiveDepTree if multiroot else NonProjectiveDepTree


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
