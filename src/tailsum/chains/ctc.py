"""Connectionist temporal classification: labellings of T frames that collapse to a target (Graves et al. 2006).

A labelling has one label at each frame, and its score is the sum of `log_probs[t, label at t]`. It collapses to the target
by merging repeated labels and then removing blanks. The sum runs over a lattice of `2S+1` places: a blank, the first
label, a blank, the second label .. a blank. Each frame stays at the place of the frame before, goes to the next place, or
skips a blank between two different labels.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.chains.paths import PathStructure
from tailsum.numerics.check import as_whole, below_infinity, check_broadcast, check_floating, check_scores
from tailsum.numerics.levels import path_sums
from tailsum.numerics.moves import Steps
from tailsum.numerics.reduce import Reduce
from tailsum.numerics.tensors import without_common, working_type
from tailsum.numerics.transforms import every
from tailsum.scores.potential import Dense
from tailsum.structure.check import checked_lengths


class FrameTerms(NamedTuple):
    """Scores of the labels of each frame `[*batch, T, V]`."""

    frames: Dense


class CTC(PathStructure[FrameTerms, Tensor]):
    """A distribution over the labellings of frames that collapse to a target; `-log_partition()` is the CTC loss.

    `log_probs` is `[*batch, T, V]`, normalised or not; `targets` is `[*batch, S]`, none of them `blank`; `lengths` counts
    frames and `target_lengths` labels, which may be none. A configuration is the label of each frame, -1 in the padding.
    Exact sums cost T S: there are no latent states to sketch.

    >>> ctc = CTC(torch.zeros(3, 4), torch.tensor([1, 2]))
    >>> round(ctc.log_partition().exp().item())  # 112, 122, 012, 102, 120
    5
    """

    def __init__(
        self,
        log_probs: Float[Tensor, "*#batch T V"],
        targets: Int[Tensor, "*#batch S"],
        lengths: Int[Tensor, "*#batch"] | Sequence[int] | None = None,
        target_lengths: Int[Tensor, "*#batch"] | Sequence[int] | None = None,
        blank: int = 0,
    ) -> None:
        check_floating("log_probs", log_probs)
        targets = as_whole("targets", targets, log_probs.device)
        if log_probs.dim() < 2 or 0 in log_probs.shape[-2:] or targets.dim() < 1:
            got = f"{list(log_probs.shape)} and {list(targets.shape)}"
            raise ValueError(
                f"log_probs must be [*batch, T, V], T and V at least 1, and targets [*batch, S]: got {got}"
            )
        self.device, self.n_states = log_probs.device, log_probs.shape[-1]
        self.node_shape, longest = log_probs.shape[-2:-1], targets.shape[-1]
        shape = check_broadcast("targets", targets.shape[:-1], log_probs.shape[:-2], "that of log_probs,")
        shape, lengths = checked_lengths(lengths, shape, self.node_shape[0], self.device)
        self.batch_shape, counts = checked_lengths(target_lengths, shape, longest, self.device, "target_lengths", 0)
        self.lengths = None if lengths is None else lengths.expand(self.batch_shape)
        self.target_lengths = torch.full(self.batch_shape, longest, device=self.device) if counts is None else counts
        present = None if counts is None else torch.arange(longest, device=self.device) < counts[..., None]
        if not 0 <= blank < self.n_states:
            raise ValueError(f"blank must lie between 0 and V-1 = {self.n_states - 1}: got {blank}")
        self.log_probs, self.dtype = log_probs, working_type(log_probs)
        wrong = (targets < 0) | (targets >= self.n_states) | (targets == blank)
        wrong = wrong if present is None else wrong & present
        used = self._blanked(log_probs.detach())
        if not every(below_infinity(used) & ~wrong.any()):  # one look at the device for both
            check_scores("log_probs", used)
            raise ValueError(
                f"targets must lie between 0 and V-1 = {self.n_states - 1} and not be blank: got one that is"
            )
        with torch.inference_mode(False):  # index tensors are saved for backward passes
            targets = targets.expand(*self.batch_shape, -1) if present is None else torch.where(present, targets, blank)
            places = F.pad(targets[..., None], (1, 0), value=blank).flatten(-2)
            self.lattice = F.pad(places, (0, 1), value=blank)  # the label of each place, [*batch, 2S+1]
        before = F.pad(self.lattice, (2, 0), value=blank)[..., :-2]
        self.skips = (self.lattice != blank) & (self.lattice != before)  # whether a place may be entered over a blank

    def _blanked(self, log_probs: Tensor) -> Float[Tensor, "*batch T V"]:
        """Zero in the padding."""
        return log_probs if self.lengths is None else torch.where(self.inside()[..., None], log_probs, 0.0)

    def terms(self) -> FrameTerms:
        scores = self._blanked(self.log_probs).expand(*self.batch_shape, -1, -1)
        return FrameTerms(Dense(scores.to(self.dtype)))

    def total(self, terms: FrameTerms, reduce: Reduce) -> Float[Tensor, "*batch"]:
        """A level of the lattice for each frame, with the places of the target."""
        n_places, size = self.lattice.shape[-1], self.batch_shape.numel()
        places = self.lattice.expand(*self.batch_shape, -1)
        labels = places[..., None, :].expand(*self.batch_shape, *self.node_shape, -1)
        scores = terms.frames.scores.gather(-1, labels).reshape(size, *self.node_shape, n_places)
        closed = scores.new_zeros(3, size, n_places)
        closed[2].masked_fill_(~self.skips.expand_as(places).reshape(size, n_places), -math.inf)
        # A step from the first blank enters the first two places.
        steps = Steps([(1, 0), (1, 1), (1, 2)], self.node_shape[0], n_places, closed)
        ends = 2 * self.target_lengths.expand(self.batch_shape).reshape(-1, 1) - torch.arange(2, device=self.device)
        index = steps.at(self.sequence_lengths(), ends.clamp(min=0))
        sums = path_sums(scores.movedim(0, 1)[:, None], steps, index, reduce)
        # With a final blank, or without.
        return reduce(sums.masked_fill(ends < 0, -math.inf), -1).reshape(self.batch_shape)

    def after_batch(self) -> dict[str, int]:
        return {"target_lengths": 0, "lattice": 1, "skips": 1, "log_probs": 2}

    def centred(self, terms: FrameTerms) -> FrameTerms:
        return FrameTerms(terms.frames.map(lambda x: without_common(x, 1)))  # as every frame has one label

    def form(self) -> tuple[object, ...]:
        return tuple(self.lattice.expand(*self.batch_shape, -1).flatten().tolist())
