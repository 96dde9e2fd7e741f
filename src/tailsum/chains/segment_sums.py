"""Sums over all segmentations: by a kernel, with a table of the scores of pairs, or else by the scan of `segment_scan`."""

import math

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from tailsum.chains.durations import Durations
from tailsum.chains.segment_scan import entering, reduced
from tailsum.chains.segment_scores import SegmentScores
from tailsum.chains.segment_table import SegmentTable
from tailsum.chains.segment_walk import endings, places_in_batch
from tailsum.numerics.fused.kernel import Example, Kernel
from tailsum.numerics.kernels import fused
from tailsum.numerics.reduce import Reduce, log_sum_exp
from tailsum.scores.potential import Dense, Potential


def total_score(
    segments: SegmentScores, pairs: Potential, batch: torch.Size, lengths: Int[Tensor, " r"], reduce: Reduce
) -> Float64[Tensor, " r"]:
    """The scores of all segmentations of each sequence, the batch flattened, reduced to one number."""
    inputs = flat_scores(segments, pairs, batch) if reduce is log_sum_exp else None
    if inputs is None:
        return _scanned(segments, pairs, batch, lengths, reduce)
    return log_segment_sum(*inputs, lengths=lengths)


def _scanned(
    segments: SegmentScores, pairs: Potential, batch: torch.Size, lengths: Int[Tensor, " r"], reduce: Reduce
) -> Float64[Tensor, " r"]:
    messages = entering(segments, pairs, batch, reduce)
    scores = endings(segments, messages, places_in_batch(batch, lengths.device), lengths, final=True)
    return reduced(scores, segments.tensors[0].dtype, reduce)


def flat_scores(segments: SegmentScores, pairs: Potential, batch: torch.Size) -> tuple[Tensor, ...] | None:
    """What kernels take: tensors of scores of segments, and a table `[#B, #T-1, #D, N, N]` of those of pairs. None if none does.

    Of `Durations` there are three, `[B, T, N]`, `[#B, D, N]` and that of the last segment; else one, `[B, T, D, N]`.
    """
    if not fused(*segments.tensors, *pairs.tensors):
        return None
    operator = pairs.operator()
    pairs = operator.within(3) if operator.by_parts else operator
    if not isinstance(pairs, Dense) or not isinstance(segments, SegmentTable | Durations):
        return None
    scores = pairs.scores if pairs.lead else pairs.scores[None, None]
    own = segments.tensors if isinstance(segments, SegmentTable) else (*segments.tensors[:2], segments.last)
    sizes = (segments.after_batch, *[2] * (len(own) - 1), 4)
    return tuple(_flat(x, size, batch) for x, size in zip((*own, scores), sizes, strict=True))


def _flat(x: Tensor, trailing: int, batch: torch.Size) -> Tensor:
    """`[*#batch, ..]`, with this many dimensions after the batch, as `[B, ..]`, or `[1, ..]` if all sequences share it."""
    lead, rest = x.shape[:-trailing], x.shape[-trailing:]
    if len(lead) == len(batch) == 1:
        return x
    return x.reshape(1, *rest) if lead.numel() == 1 else x.expand(*batch, *rest).reshape(batch.numel(), *rest)


def from_flat(tensors: tuple[Tensor, ...], lengths: Int[Tensor, " r"]) -> tuple[SegmentScores, Potential]:
    """The inverse of `flat_scores`, for one dimension of batch."""
    own, pairs = tensors[:-1], tensors[-1]
    segments = SegmentTable(*own) if len(own) == 1 else Durations(*own, lengths=lengths)
    return segments, Dense(pairs[0, 0, 0] if pairs.shape[:3].numel() == 1 else pairs)


def _log_sum(*tensors: Tensor, lengths: Int[Tensor, " r"]) -> Float64[Tensor, " r"]:
    return _scanned(*from_flat(tensors, lengths), lengths.shape, lengths, log_sum_exp)


_FORMS = ("table", "by boundary", "of each sequence", "by duration", "durations")


def flat_example(batch: int, length: int, longest: int, n: int, form: int) -> Example:
    """Random scores of one of the forms that kernels tell apart, for tests of these."""
    name, lengths = _FORMS[form], torch.randint(1, length + 1, (batch,))
    steps, own = max(1, length - 1), torch.randn(batch, length, longest, n)
    lead = {"by boundary": (1, steps, 1), "of each sequence": (batch, steps, 1), "by duration": (1, steps, longest)}
    pairs = torch.randn(*lead.get(name, (1, 1, 1)), n, n)
    if name == "durations":
        pairs.diagonal(dim1=-2, dim2=-1).fill_(-math.inf)  # two segments of one state in a row could change places
        return Example((torch.randn(batch, length, n), *torch.randn(2, 1, longest, n), pairs), {"lengths": lengths})
    return Example((own, pairs), {"lengths": lengths})


log_segment_sum = Kernel(
    "segments",
    _log_sum,
    flat_example,
    sizes=(
        *({"batch": 2, "length": 4, "longest": 3, "n": 3, "form": form} for form in range(len(_FORMS))),
        {"batch": 2, "length": 2, "longest": 5, "n": 1, "form": 0},
    ),
    large={"batch": 16, "length": 200, "longest": 16, "n": 20, "form": 0},
)
