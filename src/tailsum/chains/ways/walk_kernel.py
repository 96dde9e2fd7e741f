"""Random paths by a kernel, one program for each. Chosen on a GPU, for a table or factors that fit the tiles of kernels."""

import torch
from torch import Tensor

from tailsum.numerics.noise import seed_from
from tailsum.scores.potential import Potential


def walk_by_kernel(
    log_mass: Tensor, pairs: Potential, last: Tensor, count: int, generator: torch.Generator | None
) -> Tensor:
    """`count` random paths `[count, B, T]` back from the positions `last [B]`, guided by the messages `log_mass [T, B, N]`."""
    from tailsum.numerics.fused.paths import walk  # noqa: PLC0415
    from tailsum.numerics.fused.scores import Pairs  # noqa: PLC0415

    return walk(log_mass.contiguous(), Pairs(pairs.tensors), last, count, seed_from(generator))
