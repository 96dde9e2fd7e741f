"""Proposals: how much each state matters at each node, as `log_q [*batch, *node, N]`, unnormalised.

A proposal is any function from a model to `log_q`. Sums over a sketch are unbiased as long as no state of positive
probability has minus infinity; their variance is lower the closer q is to the marginals. No gradients are recorded.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from tailsum.numerics.check import at_least
from tailsum.sketch.model import Model, Propose
from tailsum.sketch.neighbours import Neighbours
from tailsum.sketch.selection import Selection, Subset
from tailsum.sketch.sweep import Sweep


class Proposal(ABC):
    """How much each state matters at each node."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    @abstractmethod
    def __call__(self, model: Model) -> Float[Tensor, "*batch_node n"]:
        """`log_q`, unnormalised."""

    def choose(self, model: Model, selection: Selection, generator: torch.Generator | None) -> Subset:
        """Select at every node independently."""
        return selection(self(model), generator)


class Uniform(Proposal):
    """The same for every state that is not forbidden."""

    @torch.no_grad()
    def __call__(self, model: Model) -> Float[Tensor, "*batch_node n"]:
        scores = model.node_scores()
        return torch.zeros_like(scores).masked_fill_(scores == -math.inf, -math.inf)


class Local(Proposal):
    """The softmax of the scores of single nodes, which ignores their neighbours."""

    @torch.no_grad()
    def __call__(self, model: Model) -> Float[Tensor, "*batch_node n"]:
        scores = model.node_scores()
        return scores.log_softmax(-1).masked_fill(scores == -math.inf, -math.inf)


@dataclass(frozen=True)
class Global(Proposal):
    """The L1 norms of the state embeddings over their sum: a large norm tends to give large inner products.

    `softmax=True` takes the softmax of the norms instead, as the paper's authors did in their experiments.
    """

    softmax: bool = False

    @torch.no_grad()
    def __call__(self, model: Model) -> Float[Tensor, "*batch_node n"]:
        norms, forbidden = model.state_norms(), model.node_scores() == -math.inf
        # A state with a zero embedding must stay possible.
        norms = norms.clamp(min=max(1e-30, 1e-3 * norms.mean().item()))
        log_q = (norms if self.softmax else norms.log()).masked_fill(forbidden, -math.inf)
        return log_q.log_softmax(-1).masked_fill(forbidden, -math.inf)


@dataclass(frozen=True)
class LocalGlobal(Proposal):
    """The paper's proposal (its Section 4, Eq. 34): the mean of `Local` and `Global`."""

    softmax: bool = False

    def __call__(self, model: Model) -> Float[Tensor, "*batch_node n"]:
        return torch.logaddexp(Local()(model), Global(self.softmax)(model)) - math.log(2)


@dataclass(frozen=True)
class Lookahead(Proposal):
    """Approximate marginals, from messages of a few landmark states to all states of neighbouring nodes (default).

    On a chain, a backward sweep selects landmarks at each node and sends their messages to all N states of the previous
    node; then `rounds` times, a forward sweep guided by it and a backward sweep guided by that. Trees have inside and
    outside sweeps instead, graphs walks from the last layer to the first. Each round has four times the landmarks of
    the one before, so all early rounds together cost less than the last. If `sequential`, one more sweep then selects
    the states to keep, each node given the states kept so far, so that errors do not multiply. Otherwise every node is
    selected independently: cheaper for large K, and less accurate.

    `neighbours`, on chains: each state also gets an exact message from itself and from this many partners, those with
    the highest pair scores. Landmarks alone miss states whose mass comes from a few particular partners: on sticky or
    peaked chains of 30,000 states and more, sums would be too low by many nats. Making the lists takes N^2 products, as
    much as one step of exact inference; to make them once for many sketches, pass `Neighbours(transition)`. Without
    given lists, each state has only itself if scores differ by step or sequence, and beyond 262,144 states (32,768 for a
    function of pairs). 0: landmarks only.

    `landmarks` is the number at each node in the last round. Defaults: 192 and no further rounds on chains with lists of
    neighbours; else one round, and 512 on chains, graphs and segmentations, 64 on grammars and dependency trees.

    Cost on a chain: nodes x N x (landmarks + neighbours + K) in tiles of a few MB, and N^2 products for the lists.
    """

    landmarks: int | None = None
    rounds: int | None = None
    sequential: bool = True
    neighbours: int | Neighbours = 32

    def __post_init__(self) -> None:
        if self.landmarks is not None:
            at_least(1, landmarks=self.landmarks)
        if self.rounds is not None:
            at_least(0, rounds=self.rounds)
        if not isinstance(self.neighbours, Neighbours):
            at_least(0, neighbours=self.neighbours)

    @torch.no_grad()
    def __call__(self, model: Model) -> Float[Tensor, "*batch_node n"]:
        sweep, landmarks = self._swept(model, None)
        return sweep.log_q(landmarks, None)

    @torch.no_grad()
    def choose(self, model: Model, selection: Selection, generator: torch.Generator | None) -> Subset:
        sweep, landmarks = self._swept(model, generator)
        if self.sequential:
            return sweep.sequence(selection, generator)
        return selection(sweep.log_q(landmarks, generator), generator)

    def listed(self, model: Model) -> "Lookahead":
        """The same with the lists of neighbours that it would make for this model: many sketches then share them."""
        lists = self._sweep(model).lists
        return self if lists is None else replace(self, neighbours=lists)

    def _sweep(self, model: Model) -> Sweep:
        sweep = model.sweep()
        if self.neighbours:
            sweep.set_neighbours(self.neighbours, self.landmarks or sweep.landmarks)
        return sweep

    def _swept(self, model: Model, generator: torch.Generator | None) -> tuple[Sweep, int]:
        sweep = self._sweep(model)
        landmarks = self.landmarks or sweep.landmarks
        for later in range(sweep.rounds if self.rounds is None else self.rounds, -1, -1):
            sweep.look(max(1, landmarks >> 2 * later), generator)
        return sweep, landmarks


@dataclass(frozen=True)
class Custom(Proposal):
    """A user's function, whose result is checked."""

    function: Propose

    def __repr__(self) -> str:
        return f"Custom({getattr(self.function, '__name__', type(self.function).__name__)})"

    @torch.no_grad()
    def __call__(self, model: Model) -> Float[Tensor, "*batch_node n"]:
        log_q = self.function(model)
        if not isinstance(log_q, Tensor):
            raise ValueError(f"proposal must give a tensor log_q: got {type(log_q).__name__}")
        shape = (*model.batch_shape, *model.node_shape, model.n_states)
        if log_q.shape != shape or not log_q.is_floating_point() or log_q.device != model.device:
            raise ValueError(
                f"proposal must give floating-point log_q {list(shape)} on {model.device}: "
                f"got {log_q.dtype} {list(log_q.shape)} on {log_q.device}"
            )
        if not (log_q < math.inf).all():
            raise ValueError("proposal gave a log_q that is NaN or +inf: it must be finite, or -inf for never")
        return log_q.to(model.dtype)


def proposal_from(proposal: Propose) -> Proposal:
    """A `Proposal` as it is; any other function wrapped in `Custom`."""
    if isinstance(proposal, Proposal):
        return proposal
    if not callable(proposal) or isinstance(proposal, type):
        raise ValueError(f"proposal must be a proposal or a function from a model to log_q: got {proposal!r}")
    return Custom(proposal)
