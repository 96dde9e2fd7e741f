"""The scores of pairs of successive segments in a semi-Markov model.

They are for the states of two segments at the boundary between them, `[*lead, N, N]` (from, to), `lead` broadcast against
`[*batch, T-1]`; those of `ByDuration`, `[*lead, D, N, N]`, depend also on the duration of the segment before the boundary.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tailsum.chains.segments import Segments
from tailsum.numerics.check import shape_or_type
from tailsum.scores.arguments import as_potential
from tailsum.scores.potential import Potential
from tailsum.structure.check import check_lead


class ByDuration:
    """Scores of pairs of states that depend on the duration of the first segment: a `transition` for `SemiMarkov`.

    `scores[.., d-1, i, j]` is for a segment of state j that follows a segment of state i and d positions. They are a tensor
    `[*lead, D, N, N]` or a potential whose leading dimensions end with D; those before it broadcast against `[*batch, T-1]`.

    >>> from tailsum import SemiMarkov
    >>> never_twice = torch.zeros(2, 1, 1)
    >>> never_twice[0] = -torch.inf  # nothing follows a segment of one position
    >>> model = SemiMarkov(torch.zeros(4, 2, 1), ByDuration(never_twice))
    >>> model.topk(9).configurations.durations.tolist()
    [[2, 2, 0, 0]]
    """

    def __init__(self, scores: Float[Tensor, "*lead D N N"] | Potential) -> None:
        pairs = as_potential(scores)
        if pairs is None or not pairs.lead:
            a_table = pairs is not scores
            got = shape_or_type(scores) if pairs is None or a_table else f"{pairs}, which has no leading dimensions"
            raise ValueError(
                f"scores must be a tensor [*lead, D, N, N] or a potential whose leading dimensions end with D: got {got}"
            )
        self.scores = pairs

    def __repr__(self) -> str:
        return f"ByDuration({self.scores})"


def pair_scores(
    transition: object, n_states: int, length: int, longest: int, device: torch.device
) -> tuple[Potential, torch.Size, bool]:
    """The scores, their batch shape, and whether they are by duration; a ValueError if their shapes do not fit."""
    if not isinstance(transition, ByDuration):
        pairs = check_lead("transition", transition, n_states, (length - 1,), device, "segment")  # pyright: ignore[reportArgumentType]
        return pairs, pairs.lead[:-1], False
    pairs = check_lead("transition", transition.scores, n_states, (longest,), device, "segment", "durations")
    steps = pairs.lead[:-1]
    if steps and steps[-1] not in (1, length - 1):
        raise ValueError(f"transition must have 1 or {length - 1} steps in dimension -4: got {steps[-1]}")
    return pairs, steps[:-1], True


def blanked(pairs: Potential, inside: Bool[Tensor, "*batch T"], longest: int, by_duration: bool) -> Potential:
    """Zeros where no sequence uses the scores: after its end, or for a segment that would start before its beginning."""
    used = inside[..., 1:]
    if by_duration:
        boundary = torch.arange(1, inside.shape[-1], device=inside.device)[:, None]
        used = used[..., None] & (torch.arange(longest, device=inside.device) < boundary)
    return pairs.blank_outside(used)


def with_durations(pairs: Potential, by_duration: bool) -> Potential:
    """The scores with leading dimensions `[*batch, T-1 or 1, D or 1]`, or none if all boundaries share them."""
    last = pairs.trailing
    if by_duration:
        pairs = pairs.map(lambda x: x[None] if x.dim() == last + 1 else x)
    else:
        pairs = pairs.map(lambda x: x.unsqueeze(-last - 1) if x.dim() > last else x)
    return pairs.unmasked()


def score_of_pairs(pairs: Potential, configuration: Segments) -> Float[Tensor, "*sample_batch"]:
    """The sum of the scores at the boundaries of each configuration, in float64."""
    begins = configuration.begins()
    labels = configuration.labels().clamp(min=0)[..., None]
    scores = pairs.at(labels[..., :-1, :], labels[..., 1:, :])  # [.., T-1, D or 1]
    if scores.shape[-1] > 1:
        lasting = configuration.durations.gather(-1, (begins.long().cumsum(-1) - 1).clamp(min=0))[..., :-1, None]
        scores = scores.gather(-1, (lasting - 1).clamp(min=0))
    return torch.where(begins[..., 1:], scores[..., 0].double(), 0.0).sum(-1)
