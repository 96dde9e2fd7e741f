"""A log-space message from a few states of a node to all states of its neighbour."""

import torch
from torch import Tensor

from tailsum.numerics.stream import Parts, in_tiles
from tailsum.numerics.table import tile_rows, tile_size
from tailsum.numerics.tensors import finite
from tailsum.scores.factored import Factored
from tailsum.scores.gated import Gated
from tailsum.scores.potential import Dense, Potential


@torch.no_grad()
def message(potential: Potential, index: Tensor | None, value: Tensor) -> Tensor:
    """`logsumexp_m(value_m + score(index_m, j))` for every j: `[*batch, N]` from index and value `[*batch, M]`.

    Without an index, `value` has all states. Tiled over j, so that only a few MB of scores exist at a time.
    """
    rows = index
    if isinstance(potential, Factored | Gated):  # the values are one more factor, so that the product adds them
        values = Factored(value[..., None], value.new_ones(potential.n_to, 1))
        potential, rows = potential.gather(index, None).side_by_side(values), None
    elif isinstance(potential, Dense) and value.numel() * potential.n_to <= 4 * tile_size(value.device):
        # Rows of a table are contiguous, so one look-up serves all tiles.
        rows, potential = None, Dense(potential.block(index) + value[..., None])

    def tile(start: int, stop: int) -> Parts:
        scores = potential.columns(start, stop).block(rows)
        if rows is not None:
            scores = scores + value[..., None]
        highest = scores.amax(-2, keepdim=True)
        # Numbers below the range of float32 add nothing, and are many times slower on a CPU.
        scores.sub_(finite(highest)).clamp_(min=-80.0)
        return Parts((scores.exp_().sum(-2).log_().add_(highest[..., 0, :])[..., None],))

    return in_tiles(tile, potential.n_to, tile_rows(value.numel(), value.device)).rows[0][..., 0]
