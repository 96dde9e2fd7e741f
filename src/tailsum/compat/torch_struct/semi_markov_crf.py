"""Semi-Markov chains: `log_potentials[n, k, z', z]` scores a segment of k positions from state z at n to state z' at n+k."""

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Bool, Float, Int, Num
from torch import Tensor

from tailsum.chains.segments import Segments
from tailsum.compat.torch_struct.boundary_states import BoundaryStates
from tailsum.compat.torch_struct.distribution import StructDistribution
from tailsum.compat.torch_struct.semirings.recursion import chosen, neutral
from tailsum.compat.torch_struct.struct import Lengths, Struct, added, check_labels, inside, lengths_of
from tailsum.structure.base import Structure


class SemiMarkov(Struct):
    """Segmentations. The short form is `[B, N]`, the state where a segment starts and -1 elsewhere; `extra` is `(C, K)`."""

    def distribution(self, log_potentials: Tensor, lengths: Lengths) -> "SemiMarkovCRF":
        return SemiMarkovCRF(log_potentials, lengths)

    def recursion(self, parts: Num[Tensor, "size B M K C C"], lengths: Int[Tensor, " B"]) -> Num[Tensor, "size B"]:
        """From boundary to boundary: each is reached from the boundaries up to K-1 positions before it."""
        size, batch, steps, longest, states, _ = parts.shape
        _, one = neutral(self.semiring, parts, 3)
        begun = [one.expand(size, batch, states)]
        for n in range(1, steps + 1):
            ways = [
                self.semiring.mul(parts[:, :, n - k, k], begun[n - k][..., None, :])
                for k in range(1, min(longest - 1, n) + 1)
            ]
            begun.append(self.semiring.sum(torch.cat(ways, -1)))
        return self.semiring.sum(chosen(begun, lengths - 1))

    @staticmethod
    def hsmm(
        init_z_1: Float[Tensor, "*B C"], transition_z_to_z: Float[Tensor, "C C"], transition_z_to_l: Float[Tensor, "C K"],
        emission_n_l_z: Float[Tensor, "B N K C"],
    ) -> Float[Tensor, "B N K C C"]:  # fmt: skip
        """Log-potentials of a hidden semi-Markov model: z' follows z, lasts k positions and emits from position n on.

        `init_z_1` scores a state before the first. The transition is indexed by (from, to), unlike the log-potentials.
        """
        batch, _, longest, size = emission_n_l_z.shape
        tables = {
            "transition_z_to_z": (transition_z_to_z, (size, size)),
            "transition_z_to_l": (transition_z_to_l, (size, longest)),
        }
        for name, (table, shape) in tables.items():
            if table.shape != shape:
                raise ValueError(
                    f"{name} must be {list(shape)}, as emission_n_l_z [B, N, K, C] says: got {list(table.shape)}"
                )
        if init_z_1.shape not in ((size,), (batch, size)):
            raise ValueError(f"init_z_1 must be {[size]} or {[batch, size]}: got {list(init_z_1.shape)}")
        segments = (emission_n_l_z + transition_z_to_l.mT)[..., None] + transition_z_to_z.mT
        first = init_z_1.expand(batch, size)[:, None, None, None, :]
        return torch.cat((segments[:, :1] + first, segments[:, 1:]), 1)

    @staticmethod
    def to_parts(  # pyright: ignore[reportIncompatibleMethodOverride]  (extra is needed)
        sequence: Int[Tensor, "*batch N"], extra: tuple[int, int], lengths: Lengths = None
    ) -> Int[Tensor, "*batch M K C C"]:
        """The segments; the last segment leads to the state of the last position within `lengths`.

        >>> SemiMarkov.to_parts(torch.tensor([[1, -1, 0]]), (2, 3)).nonzero().tolist()  # sequence, start, k, to, from
        [[0, 0, 2, 0, 1]]
        """
        size, longest = extra
        position = torch.arange(sequence.shape[-1], device=sequence.device)
        counts = lengths_of(sequence, lengths)
        states = torch.where(inside(len(position), counts), sequence, -1)
        check_labels("sequence", states, -1, size - 1)
        check_labels("sequence[.., 0]", states[..., 0], 0, size - 1)
        if lengths is not None:  # without them, -1 at the end is padding
            last = states.gather(-1, counts[..., None] - 1)
            check_labels("sequence[.., lengths - 1], where the last segment ends,", last, 0, size - 1)
        # The last start before each position, and how far it is.
        begun = torch.where(states >= 0, position, -1).cummax(-1).values[..., :-1]
        after, before = states[..., 1:], states.gather(-1, begun)
        used = after >= 0
        duration = torch.where(used, position[1:] - begun, 0)
        check_labels("the durations in sequence", duration, 0, longest - 1)
        place = ((begun * longest + duration) * size + after) * size + before
        return added(torch.where(used, place, 0), used.long(), (len(position) - 1, longest, size, size))

    @staticmethod
    def from_parts(event: Tensor) -> tuple[Int[Tensor, "*batch N"], tuple[int, int]]:
        """The state where a segment starts, -1 elsewhere, and `(C, K)`."""
        *batch, steps, longest, size, _ = event.shape
        states = torch.full((*batch, steps + 1), -1, device=event.device)
        *rows, start, duration, to, before = event.nonzero(as_tuple=True)
        states[(*rows, start)] = before
        states[(*rows, start + duration)] = to
        return states, (size, longest)


class SemiMarkovCRF(StructDistribution):
    """A segmental conditional random field, from `log_potentials [B, N-1, K, C, C]` (start, k, to, from), k below K.

    Segments of k = 0 positions do not exist: their log-potentials are ignored.

    >>> SemiMarkovCRF(torch.zeros(1, 4, 3, 1, 1)).count  # 4 as a sum of ones and twos
    tensor([5.])
    """

    struct = SemiMarkov
    form = "[B, N-1, K, C, C], K at least 2"

    @staticmethod
    def _fits(event: torch.Size) -> bool:
        return len(event) == 4 and event[1] > 1 and event[2] == event[3] > 0

    def _longest(self) -> int:
        return self.event_shape[0] + 1

    def _usable(self) -> Bool[Tensor, "*batch M K 1 1"]:
        start, k = (torch.arange(size, device=self.log_potentials.device) for size in self.event_shape[:2])
        within = start[:, None] + k < self._positions()[..., None, None]
        return (within & (k > 0))[..., None, None]

    def _build(self, scores: tuple[Tensor, ...], lengths: Lengths) -> Structure:
        return BoundaryStates(scores[0], lengths)

    def _marginals(self, model: Structure) -> Float[Tensor, "*batch M K C C"]:
        assert isinstance(model, BoundaryStates)
        return F.pad(model.edge_marginals().mT, (0, 0, 0, 0, 1, 0))

    def _event(self, model: Structure, configuration: Segments) -> Tensor:
        starts, durations, states = (x[..., :-1] for x in configuration)
        after, to = configuration.starts[..., 1:], configuration.states[..., 1:]
        _, longest, size, _ = self.event_shape
        place = ((starts * longest + durations) * size + to) * size + states
        return added(torch.where(after > 0, place, 0), (after > 0).to(model.dtype), self.event_shape)
