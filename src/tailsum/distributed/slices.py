"""The arguments of a sharded chain on one rank: checked, and in a form that ranks can compare."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tailsum.distributed.fingerprint import Contents
from tailsum.distributed.shards import Shards
from tailsum.numerics.check import check_broadcast, check_device, check_floating
from tailsum.numerics.tensors import working_type
from tailsum.scores.arguments import as_potential
from tailsum.scores.potential import Potential
from tailsum.structure.check import check_nodes, check_potential, checked_lengths, node_potential


class Slices:
    """Scores of this rank's n states. If they are invalid, `error` holds the error, for all ranks to raise together."""

    size, length = 0, 0
    device, dtype = torch.device("cpu"), torch.float32
    batch_shape = lead = torch.Size()  # lead: the transition's leading dimensions, with its steps
    lengths: Tensor | None = None

    def __init__(self, emission: object, transition: object, lengths: Tensor | Sequence[int] | None) -> None:
        self.error: Exception | None = None
        self.form: dict[str, object] = {}
        try:
            self._set(emission, transition, lengths)
        except Exception as wrong:  # noqa: BLE001  (all ranks raise it)
            self.error = wrong

    def _set(self, emission: object, transition: object, lengths: Tensor | Sequence[int] | None) -> None:
        nodes = node_potential("emission", emission, "[*batch, T, n]")  # pyright: ignore[reportArgumentType]
        pairs = as_potential(transition)
        if pairs is None or not pairs.in_slices:
            raise ValueError(f"transition must be a table [n, N], Dense or Factored: got {transition}")
        self._by_column = bool(pairs.parts().whole)  # whether columns are in slices too, as those of factors
        *batch, self.length = nodes.lead
        self.size, self.device = nodes.n_to, nodes.tensors[0].device
        if self.length < 1:
            raise ValueError("emission must have at least one position: got none")
        columns = f"{self.size} rows of left and of right" if self._by_column else f"{self.size} rows"
        if pairs.n_from != self.size or (self._by_column and pairs.n_to != self.size):
            raise ValueError(
                f"transition must have {columns}, as emission has {self.size} states on this rank: got {pairs}"
            )
        if pairs.lead and pairs.lead[-1] not in (1, self.length - 1):
            raise ValueError(f"transition must have 1 or {self.length - 1} steps in dimension -3: got {pairs.lead[-1]}")
        for name, potential in (("emission", nodes), ("transition", pairs)):
            for tensor in potential.tensors:
                check_device(name, tensor, self.device)
                check_floating(name, tensor)
        shape = check_broadcast("transition", pairs.lead[:-1], torch.Size(batch), "emission's")
        self.batch_shape, self.lengths = checked_lengths(lengths, shape, self.length, self.device)
        self._nodes, self._pairs, self.lead = nodes, pairs, pairs.lead
        blanked = self._blanked(nodes.map(torch.detach), 0)
        check_nodes("emission", blanked)
        check_potential("transition", self._blanked(pairs.map(torch.detach), 1))
        self.dtype = working_type(*nodes.tensors, *pairs.tensors)
        self.form = {
            "the batch shape": list(self.batch_shape),
            "the number of positions": self.length,
            "lengths": None if self.lengths is None else self.lengths.tolist(),
            "the dtype of the scores": self.dtype,
            "the kind of emission": type(nodes).__name__,
            "the kind of transition": type(pairs).__name__,
            "the leading dimensions of transition": list(pairs.lead),
            "the number of columns": pairs.tensors[0].shape[-1],
            "what requires gradients": [x.requires_grad for x in (*nodes.tensors, *pairs.tensors)],
        }
        (first,), of_states = blanked.parts()
        if of_states:  # every rank has the same context
            self.form["the context of emission"] = Contents.of(first)

    def check_columns(self, shards: Shards) -> None:
        """Check that there is at least one state on all ranks, and a table column for each."""
        if not shards.n_states:
            raise ValueError("emission must have at least one state on some rank: got none")
        if not self._by_column and self._pairs.n_to != shards.n_states:
            raise ValueError(
                f"transition must have a column for each of the {shards.n_states} states of all ranks: "
                f"got {self._pairs.n_to}"
            )

    def _blanked(self, scores: Potential, first: int) -> Potential:
        """Scores of the positions from `first` on, zero in the padding."""
        if self.lengths is None:
            return scores
        inside = torch.arange(first, self.length, device=self.device) < self.lengths[..., None]
        return scores.blank_outside(inside)

    def emission(self) -> Potential:
        """Scores of this rank's states, as a potential from one state to n; minus infinity in place of finite masks."""
        return self._ready(self._nodes, 0)

    def transition(self) -> Potential:
        """Scores of pairs from this rank's states."""
        return self._ready(self._pairs, 1)

    def _ready(self, scores: Potential, first: int) -> Potential:
        return self._blanked(scores, first).to(self.dtype).unmasked()
