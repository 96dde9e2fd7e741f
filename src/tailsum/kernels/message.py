"""One log-space message from a few states of a node to all states of its neighbour."""

import torch
from torch import Tensor

from tailsum.kernels.forward import log_sum_exp
from tailsum.kernels.table import tile_rows
from tailsum.potential import Dense, Potential


@torch.no_grad()
def message(potential: Potential, index: Tensor, value: Tensor) -> Tensor:
    """`logsumexp_m(value_m + score(index_m, j))` for every j: `[*batch, N]` from index and value `[*batch, M]`.

    Tiled over j so that no more than a few MB of scores exist at a time.
    """
    rows: Tensor | None = index
    if isinstance(potential, Dense):  # whole rows of a table lie together: one look-up serves all tiles
        potential, rows = potential.gather(index, None), None
    chunk = tile_rows(value.numel())
    tiles = [
        log_sum_exp(potential.columns(start, min(start + chunk, potential.n_to)).block(rows) + value[..., None], -2)
        for start in range(0, potential.n_to, chunk)
    ]
    return torch.cat(tiles, -1)
