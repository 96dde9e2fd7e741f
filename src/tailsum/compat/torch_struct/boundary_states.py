"""Segmentations with a state at each boundary, which torch-struct calls a semi-Markov model.

`edges[n, k, z', z]` scores an edge of k positions from boundary n with state z to boundary n+k with state z'. As a tailsum
`SemiMarkov`, the boundaries are the positions: a segment has the state of the boundary where it starts and covers the k
positions before the next boundary, and its duration scores the transition. The last boundary is a segment of one position.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.chains.segment_pairs import ByDuration
from tailsum.chains.segment_table import by_end
from tailsum.chains.semi_markov import SemiMarkov
from tailsum.compat.torch_struct.struct import over_all_states
from tailsum.structure.check import checked_lengths


class BoundaryStates(SemiMarkov):
    """A `SemiMarkov` model whose transitions depend on the duration of the segment before, from `edges [*batch, N-1, K, C, C]`."""

    def __init__(
        self, edges: Float[Tensor, "*batch M K C C"], lengths: Int[Tensor, "*batch"] | Sequence[int] | None
    ) -> None:
        *batch, steps, longest, size, _ = edges.shape
        counts = checked_lengths(lengths, torch.Size(batch), steps + 1, edges.device)[1]
        last = (torch.tensor(steps, device=edges.device) if counts is None else counts - 1)[..., None, None]
        start, more = (torch.arange(count, device=edges.device) for count in (steps + 1, longest - 1))
        reaches = (start[:, None] + more == last) & (start[:, None] < last)
        segments = edges.new_zeros(*batch, steps + 1, longest - 1, size).masked_fill(reaches[..., None], -math.inf)
        # Scores of edges beyond the last boundary may be anything.
        usable = (start[:-1, None] + more + 1 <= last)[..., None, None]
        inner = torch.where(usable, edges[..., 1:, :, :], 0.0).flatten(-2)
        super().__init__(segments, ByDuration(by_end(inner).unflatten(-1, (size, size)).mT), lengths)

    def edge_marginals(self) -> Float[Tensor, "*batch M D C C"]:
        """The probability of each edge by its start, its duration less one, and its states (from, to), over all states."""
        (pairs,) = self.term_gradients(1)
        if self.kept is not None:
            # Where an edge to each boundary but the first starts, by its duration less one.
            boundary = torch.arange(self.node_shape[0] - 1, device=self.device)[:, None]
            start = (boundary - torch.arange(self.longest, device=self.device)).clamp(min=0)
            early, late = self.states[..., start, :], self.states[..., 1:, None, :]
            pairs = over_all_states(pairs, early, late, self.whole.n_states)
        begun, more = (torch.arange(count, device=self.device) for count in (self.node_shape[0] - 1, self.longest))
        ends = begun[:, None] + more
        inside = (ends < len(begun))[..., None, None]
        return torch.where(inside, pairs[..., ends.clamp(max=len(begun) - 1), more, :, :], 0.0) if len(begun) else pairs
