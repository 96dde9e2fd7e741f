"""Hidden Markov models: a `LinearChain` from log-probabilities and observations."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tailsum.chains.linear_chain import LinearChain
from tailsum.numerics.check import as_whole, check_broadcast, check_device, check_floating, check_scores
from tailsum.numerics.tensors import working_type
from tailsum.numerics.tiles import tile_rows
from tailsum.numerics.transforms import some, values_of
from tailsum.scores.arguments import as_potential
from tailsum.scores.potential import Dense, Potential
from tailsum.scores.scored import Scored

ENTRIES = 1 << 24  # how many scores of a transition are checked


class HMM(LinearChain):
    """The posterior of a hidden Markov model's states: `log_partition()` is the log-likelihood of the observations.

    `initial [N]`, `transition [N, N]` (from, to) and `emission [N, V]` hold log-probabilities (minus infinity for never),
    `observations [*batch, T]` symbols `0 .. V-1`, or -1 where nothing was observed. Each of the three may have batch
    dimensions before these, for parameters of each sequence; a transition that varies with time is a potential, such as
    `Dense(scores [*batch, T-1, N, N])`. Probabilities must sum to one to 1e-4, or to 1e-2 in half precision; of a large
    `Factored` or `Scored` transition, some rows are checked.

    >>> half = torch.tensor(0.5).log()
    >>> model = HMM(half.expand(2), half.expand(2, 2), half.expand(2, 2), torch.tensor([0, 1, -1]))
    >>> round(model.log_partition().exp().item(), 3)  # two observations, one missing
    0.25
    """

    def __init__(
        self,
        initial: Float[Tensor, "*#batch N"],
        transition: Float[Tensor, "*#batch N N"] | Potential,
        emission: Float[Tensor, "*#batch N V"],
        observations: Int[Tensor | np.ndarray, "*#batch T"] | Sequence[int] | Sequence[Sequence[int]],
        lengths: Int[Tensor, "*#batch"] | Sequence[int] | None = None,
    ) -> None:
        check_floating("initial", initial)
        check_floating("emission", emission)
        if initial.dim() < 1 or emission.dim() < 2 or emission.shape[-2] != initial.shape[-1]:
            raise ValueError(
                f"initial must be [*batch, N] and emission [*batch, N, V]: "
                f"got {list(initial.shape)} and {list(emission.shape)}"
            )
        observations = as_whole("observations", observations, emission.device)
        if observations.dim() < 1:
            raise ValueError(f"observations must be [*batch, T]: got {list(observations.shape)}")
        check_device("initial", initial, emission.device)
        tables = [initial, emission]
        if isinstance(transition, Tensor) and transition.dim() == 2 and transition.device == emission.device:
            tables.append(transition)
        checked = _sum_to_one(*tables)
        if not checked:
            check_log_probabilities("initial", initial)
            check_log_probabilities("emission", emission)
        batch = check_broadcast("initial", initial.shape[:-1], observations.shape[:-1], "that of observations,")
        batch = check_broadcast("emission", emission.shape[:-2], batch, "that of initial and observations,")
        if isinstance(transition, Tensor) and transition.dim() > 2:
            batch = check_broadcast("transition", transition.shape[:-2], batch, "that of the other arguments,")
            transition = Dense(transition[..., None, :, :])
        pairs = as_potential(transition)
        tensors = () if pairs is None else pairs.tensors
        if lengths is not None:  # the padding may hold anything
            lengths = as_whole("lengths", lengths, observations.device)
            check_broadcast("lengths", lengths.shape, batch, "that of observations,")
            positions = torch.arange(observations.shape[-1], device=observations.device)
            observations = torch.where(positions < lengths[..., None], observations, -1)
        low, high = torch.stack(values_of(observations).aminmax()).tolist() if observations.numel() else (0, 0)
        if low < -1 or high >= emission.shape[-1]:
            raise ValueError(
                f"observations must lie between 0 and V-1 = {emission.shape[-1] - 1}, or be -1 for missing: "
                f"got {low} to {high}"
            )
        dtype = working_type(*tensors, emission, initial)
        known = checked and len(tables) == 3
        self._set(_observed(initial, emission, observations, dtype), transition, lengths, dtype, checked=known)
        if not known:
            check_transition(self.transition, _tolerance(*tensors), self.inside()[..., 1:])


def _observed(initial: Tensor, emission: Tensor, observations: Tensor, dtype: torch.dtype) -> Scored:
    """Node scores looked up by the observations: a sketch looks up only those of its states.

    The context of a position is one number, `row + rows * first`. `row` is that of the emission tables, from one; zero means
    none, where nothing was observed. `first` is that of the initial probabilities, from one; zero means none, after the first
    position. So zero, which fills the padding, means no score.
    """
    symbols, leads = emission.shape[-1], (initial.shape[:-1], emission.shape[:-2])
    shape = torch.broadcast_shapes(observations.shape, *((*lead, 1) for lead in leads))
    which = [
        torch.arange(math.prod(lead), device=observations.device).reshape(*lead, 1) if lead else 0 for lead in leads
    ]
    row = observations + 1
    if leads[1]:
        row = torch.where(row > 0, row + symbols * which[1], 0)
    context = row if row.shape == shape else row.expand(shape).contiguous()
    context[..., :1].add_((1 + symbols * math.prod(leads[1])) * (1 + which[0]))
    flat = (
        initial.flatten(0, -2) if leads[0] else initial[None],
        emission.flatten(0, -3) if leads[1] else emission[None],
    )
    return Scored(_Observed(*flat, dtype), 1, initial.shape[-1], context[..., None])


@dataclass(frozen=True, eq=False)
class _Observed:
    """Scores of states by what was observed; a class, so that models can be pickled."""

    initial: Tensor  # [P, N]
    emission: Tensor  # [E, N, V]
    dtype: torch.dtype

    def __call__(self, _: Tensor, j: Tensor, context: Tensor) -> Tensor:
        all_states, (tables, n, symbols) = j.dim() == 2, self.emission.shape
        count = 1 + tables * symbols
        if all_states and len(self.initial) == 1 and count <= context.numel():
            rows = F.pad(self.emission.mT.reshape(-1, n), (0, 0, 1, 0))
            return F.embedding(context[..., 0, 0], torch.cat((rows, rows + self.initial)).to(self.dtype))
        seen, first = (context % count)[..., 0], (context // count)[..., 0]
        row, start = (seen - 1).clamp(min=0), (first - 1).clamp(min=0)
        if all_states:  # rows of the transposed table: one look-up is many times faster
            scores = F.embedding(row[..., 0], self.emission.mT.reshape(-1, n))
            initial = F.embedding(start[..., 0], self.initial)
        else:
            scores, initial = self.emission[row // symbols, j, row % symbols], self.initial[start, j]
        started = torch.where(first > 0, initial, 0.0)
        return torch.where(seen > 0, scores, 0.0).to(self.dtype) + started.to(self.dtype)


def _sum_to_one(*tables: Tensor) -> bool:
    """Whether all tables of log-probabilities sum to one, by one look at the device; if not, the checks say where."""
    if not all(x.is_floating_point() and 0 < x.numel() <= ENTRIES for x in tables):
        return False
    sums = torch.cat([values_of(x).detach().to(working_type(x)).exp().sum(-1).flatten() for x in tables])
    return (sums - 1.0).abs().amax().item() < 0.99 * min(map(_tolerance, tables))


def check_log_probabilities(name: str, tensor: Float[Tensor, "*lead n"]) -> None:
    """A ValueError unless the log-probabilities sum to one along the last dimension."""
    check_scores(name, tensor)
    _check_sums(name, tensor.detach(), _tolerance(tensor))


@torch.no_grad()
def check_transition(pairs: Potential, tolerance: float, used: Bool[Tensor, "*#batch_steps"]) -> None:
    """A ValueError unless a potential's log-probabilities sum to one in the steps that some sequence has `used`.

    Of more than `ENTRIES` scores, only rows at equal distances are checked, so that these have about `ENTRIES` scores.
    """
    lead, n, device = pairs.lead, pairs.n_from, used.device
    if lead.numel() == 0:  # a single position
        return
    skipped = (used.long().sum_to_size(lead) == 0)[..., None, None] if lead else torch.zeros((), device=device).bool()
    rows = torch.arange(0, n, max(1, lead.numel() * n * pairs.n_to // ENTRIES), device=device)
    for few in rows.split(tile_rows(lead.numel() * pairs.n_to, device)):
        scores = pairs.block(few).masked_fill(skipped, -math.log(pairs.n_to))
        _check_sums("transition", scores, tolerance)


def _tolerance(*tensors: Tensor) -> float:
    """How far the logarithm of a sum of probabilities may be from zero."""
    return 1e-2 if any(x.dtype in (torch.float16, torch.bfloat16) for x in tensors) else 1e-4


def _check_sums(name: str, log_probabilities: Tensor, tolerance: float) -> None:
    total = log_probabilities.to(working_type(log_probabilities)).logsumexp(-1)
    wrong = ~(total.abs() <= tolerance)
    if some(wrong):
        raise ValueError(
            f"{name} must hold log-probabilities that sum to one along the last dimension (for scores, use LinearChain): "
            f"got a sum of {values_of(total)[values_of(wrong)][0].exp().item():.6g}"
        )
