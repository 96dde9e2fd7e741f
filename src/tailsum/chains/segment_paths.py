"""The best segmentations and random ones: by kernels, or else by the scan of `segment_scan` and the walk of `segment_walk`."""

from collections.abc import Callable

import torch
from jaxtyping import Int
from torch import Tensor

from tailsum.chains.segment_scan import entering
from tailsum.chains.segment_scores import SegmentScores
from tailsum.chains.segment_sums import flat_example, flat_scores, from_flat, log_segment_sum
from tailsum.chains.segment_walk import walk_back
from tailsum.chains.segments import Segments
from tailsum.numerics.fused.kernel import Kernel
from tailsum.numerics.noise import drawn_by, most_likely, seed_from
from tailsum.numerics.reduce import highest, log_sum_exp
from tailsum.scores.potential import Potential


def best_segments(segments: SegmentScores, pairs: Potential, batch: torch.Size, lengths: Int[Tensor, " r"]) -> Segments:
    """The segmentation of highest score of each sequence `[*batch, T]`, in local ids; empty where none is possible."""
    inputs = flat_scores(segments, pairs, batch)
    if inputs is None:
        found = torch.stack(_best(segments, pairs, batch, lengths))
    else:
        found = best_walk(*inputs, lengths=lengths)
    return Segments(*found.reshape(3, *batch, segments.length))


def _best(segments: SegmentScores, pairs: Potential, batch: torch.Size, lengths: Int[Tensor, " r"]) -> Segments:
    messages = entering(segments, pairs, batch, highest)
    return Segments(*(x[0] for x in walk_back(segments, pairs, messages, lengths, 1, most_likely)))


def _best_of_flat(*tensors: Tensor, lengths: Int[Tensor, " r"]) -> Int[Tensor, "3 r T"]:
    with torch.no_grad():
        return torch.stack(_best(*from_flat(tensors, lengths), lengths.shape, lengths))


best_walk = Kernel(
    "segment_walks", _best_of_flat, flat_example, sizes=log_segment_sum.sizes, large=log_segment_sum.large
)


def drawer(
    segments: SegmentScores,
    pairs: Potential,
    batch: torch.Size,
    lengths: Int[Tensor, " r"],
    generator: torch.Generator | None,
) -> tuple[Callable[[int], Segments], int]:
    """A function that draws some segmentations `[count, *batch, T]`, and how many numbers each of them takes."""
    inputs = flat_scores(segments, pairs, batch)
    draw = None
    if inputs is not None:
        from tailsum.numerics.fused.segment_walks import sampler  # noqa: PLC0415  (needs Triton)

        draw = sampler(*inputs, lengths=lengths)
    if draw is not None:
        return lambda count: Segments(
            *draw(count, seed_from(generator)).reshape(3, count, *batch, segments.length)
        ), 3 * len(lengths) * segments.length
    messages = entering(segments, pairs, batch, log_sum_exp)
    entries = len(lengths) * min(segments.longest, segments.length) * segments.n_states
    return lambda count: walk_back(segments, pairs, messages, lengths, count, drawn_by(generator)), entries
