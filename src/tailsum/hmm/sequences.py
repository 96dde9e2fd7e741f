"""Data as users have it, as one padded batch: one sequence, a batch, a list of sequences, or a column with lengths."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int, Shaped
from numpy.typing import NDArray
from torch import Tensor, nn

from tailsum.hmm.emission import Emission

Data = Tensor | NDArray[np.generic] | Sequence[Tensor] | Sequence[NDArray[np.generic]] | Sequence[Sequence[float]]
Lengths = Int[Tensor, "*batch"] | Sequence[int] | None


class Sequences(NamedTuple):
    """Observations `[B, T, *event]` of B sequences and their lengths; what lies after the end of a sequence is missing."""

    data: Shaped[Tensor, "B T *event"]
    lengths: Int[Tensor, " B"]
    inputs: Shaped[Tensor, "B T *features"] | None = None
    states: Int[Tensor, "B T"] | None = None  # those known, -1 elsewhere

    @property
    def inside(self) -> Bool[Tensor, "B T"]:
        """Which positions belong to a sequence."""
        return torch.arange(self.data.shape[1], device=self.data.device) < self.lengths[:, None]

    def chunks(self, size: int | None, generator: torch.Generator | None = None) -> "Iterator[Sequences]":
        """Batches of so many sequences, each as long as its longest; in random order if there is a generator."""
        if size is None or size >= len(self.data):
            yield self
            return
        order = self.lengths.argsort() if generator is None else torch.randperm(len(self.data), generator=generator)
        for few in order.to(self.data.device).split(size):
            longest = int(self.lengths[few].max())
            yield Sequences(
                *(None if x is None else x[few] if x.dim() == 1 else x[few, :longest] for x in self)  # pyright: ignore[reportArgumentType]
            )


def sequences(
    emission: Emission, data: Data, lengths: Lengths = None, inputs: Data | None = None, states: Data | None = None
) -> Sequences:
    """One padded batch from the data of a user.

    `data` is one sequence `[T, *event]`, a batch `[B, T, *event]` with `lengths` or without, a list of sequences, or sequences
    one after the other, `[sum of lengths, *event]`, with their lengths. Inputs and known states have the same form.
    """
    found, batch = _padded("data", data, emission.event_dim, lengths)
    batch = emission.checked(batch)
    found = found.to(batch.device)
    more = list[Tensor | None]()
    for name, x, event in (("inputs", inputs, 1), ("states", states, 0)):
        if x is None:
            more.append(None)
            continue
        other, padded = _padded(name, x, event, lengths)
        if padded.shape[:2] != batch.shape[:2] or not torch.equal(other.to(found.device), found):
            raise ValueError(
                f"{name} must have the sequences of data, {list(batch.shape[:2])}: got {list(padded.shape[:2])}"
            )
        more.append(padded.to(batch.device))
    result = Sequences(batch, found, *more)
    known = result.states
    if known is not None and known.numel() and not -1 <= int(known.min()) <= int(known.max()) < emission.n_states:
        raise ValueError(
            f"states must lie between 0 and {emission.n_states - 1}, or be -1 where unknown: got {int(known.min())} to {int(known.max())}"
        )
    outside = ~result.inside.reshape(*batch.shape[:2], *(1,) * emission.event_dim)
    return result._replace(data=torch.where(outside, emission.blank(batch), batch))


def chunk(emission: Emission, data: Data) -> Sequences:
    """One sequence `[L, *event]`, or a batch of equal lengths `[B, L, *event]`, of any length."""
    if not isinstance(data, Tensor | np.ndarray) and len({len(x) for x in data if np.ndim(x)}) > 1:
        raise ValueError("chunks must hold parts of one length of all sequences: got several lengths")
    x = torch.as_tensor(data)  # pyright: ignore[reportArgumentType]
    x = x[None] if x.dim() == emission.event_dim + 1 else x
    return sequences(emission, x, [x.shape[1]] * len(x) if x.dim() > 1 else None)


def _padded(name: str, given: Data, event: int, lengths: Lengths) -> tuple[Tensor, Tensor]:
    """The lengths `[B]` of the sequences, and the sequences `[B, T, *event]`."""
    known = None if lengths is None else torch.as_tensor(lengths).flatten()
    if not isinstance(given, Tensor | np.ndarray) and _is_nested(given, event):
        rows = [torch.as_tensor(x) for x in given]
        if any(x.dim() != event + 1 for x in rows):
            raise ValueError(
                f"{name} must be sequences [T{', d' * event}]: got {sorted({x.dim() for x in rows})} dimensions"
            )
        found = [len(x) for x in rows]
        if known is not None and known.tolist() != found:
            raise ValueError(f"lengths must be those of the sequences in the list, {found}: got {known.tolist()}")
        return torch.tensor(found), nn.utils.rnn.pad_sequence(rows, batch_first=True)
    x = torch.as_tensor(given)  # pyright: ignore[reportArgumentType]
    if event == 0 and x.dim() == 2 and x.shape[1] == 1 < len(x):
        if known is None or int(known.sum()) != len(x):
            raise ValueError(
                f"{name} must be [T] for one sequence, or a column with the lengths of its sequences: got {list(x.shape)}"
            )
        x = x[:, 0]
    if x.dim() == event + 1 and known is not None and known.numel() and int(known.sum()) == len(x) and len(x) > 0:
        return known, nn.utils.rnn.pad_sequence(list(x.split(known.tolist())), batch_first=True)
    if x.dim() not in {event + 1, event + 2}:
        raise ValueError(f"{name} must be [T{', d' * event}] or [B, T{', d' * event}]: got {list(x.shape)}")
    x = x[None] if x.dim() == event + 1 else x
    known = torch.full((len(x),), x.shape[1]) if known is None else known
    if known.shape != (len(x),) or (len(known) and not 1 <= int(known.min()) <= int(known.max()) <= x.shape[1]):
        raise ValueError(
            f"lengths must be one number from 1 to {x.shape[1]} for each of {len(x)} sequences, or add up to the length "
            f"of one: got {known.tolist()}"
        )
    return known, x


def _is_nested(given: Any, event: int) -> bool:
    """Whether a list holds sequences, rather than the observations of one."""
    return len(given) > 0 and all(np.ndim(x) > event for x in given)
