"""Filtering one observation at a time, or one chunk at a time."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Shaped
from numpy.typing import NDArray
from torch import Tensor

from tailsum.chains.forward import forward_messages
from tailsum.chains.linear_chain import LinearChain
from tailsum.hmm.core import MarkovModel
from tailsum.hmm.moves import Moves
from tailsum.hmm.sequences import Data, Sequences, chunk
from tailsum.numerics.tensors import finite

Observation = Shaped[Tensor, "*batch_event"] | NDArray[np.generic] | Sequence[float] | float | int  # of one position


class Online:
    """The distribution of the state as observations come, for one sequence or a batch of them.

    Parameters are read once: make another after a fit. `chance [*batch, N]` is the distribution of the state given all
    observations so far, and `log_likelihood [*batch]` theirs. `state()` and `load` save and restore what it remembers.

    >>> from tailsum.hmm import Categorical, HiddenMarkov
    >>> online = HiddenMarkov(3, Categorical(4)).online()
    >>> for symbol in [0, 3, 1]:
    ...     chance = online.update(torch.tensor(symbol))
    >>> chance.shape, online.predict(2).shape
    (torch.Size([3]), torch.Size([3]))
    """

    def __init__(self, model: MarkovModel, batch_shape: Sequence[int] = ()) -> None:
        if model.emission.lags:
            raise ValueError("emission must not depend on earlier observations: give whole sequences to `filter`")
        with torch.no_grad():
            self.model, self.moves = model, Moves(model.transition)
            self._density = model.emission.fixed()
            self.log_chance: Float[Tensor, "*batch n"] = model.initial.expand(*batch_shape, -1)
        self.log_likelihood = torch.zeros(tuple(batch_shape), dtype=torch.float64, device=model.device)
        self.steps = 0

    @property
    def chance(self) -> Float[Tensor, "*batch n"]:
        """The distribution of the state given all observations so far."""
        return self.log_chance.exp()

    @torch.no_grad()
    def update(self, observation: Observation) -> Float[Tensor, "*batch n"]:
        """The distribution of the state at the next position, given its observation too; NaN or -1 is a missing one.

        After an observation that no state can say, it is zero, and the log-likelihood minus infinity.
        """
        joint = self._joint(observation)
        total = joint.logsumexp(-1, keepdim=True)
        self.log_chance = torch.where(total > -torch.inf, joint - total, -torch.inf)
        self.log_likelihood = self.log_likelihood + total[..., 0]
        self.steps += 1
        return self.chance

    @torch.no_grad()
    def extend(self, data: Data) -> Float[Tensor, "*batch T n"]:
        """The same for a chunk of observations `[*batch, T, *event]` at once, many times faster than one by one."""
        model, shape = self.model, self.log_likelihood.shape
        if isinstance(data, Tensor | np.ndarray) and data.shape[: len(shape)] == shape and data.ndim > len(shape):
            data = data.reshape(max(1, shape.numel()), *data.shape[len(shape) :])
        given = chunk(model.emission, data)
        if len(given.data) != max(1, shape.numel()):
            raise ValueError(f"data must have the batch {list(shape)} of this filter: got {len(given.data)} sequences")
        messages, total = filtered_logs(model, given, self._ahead().reshape(len(given.data), -1))
        self.log_chance = messages[:, -1].log_softmax(-1).nan_to_num_(-torch.inf).reshape(*shape, -1)
        self.log_likelihood = self.log_likelihood + total.reshape(shape)
        self.steps += messages.shape[1]
        return messages.softmax(-1).nan_to_num_(0.0).reshape(*shape, *messages.shape[1:])

    @torch.no_grad()
    def predict(self, steps: int = 1) -> Float[Tensor, "*batch n"]:
        """The distribution of the state so many positions after the last observation."""
        return self.log_predict(steps).exp()

    @torch.no_grad()
    def log_predict(self, steps: int = 1) -> Float[Tensor, "*batch n"]:
        """Its log-probabilities."""
        found = self.log_chance
        for step in range(steps):
            found = self.moves.ahead(found) if self.steps or step else found
        return found

    @torch.no_grad()
    def log_density(self, observation: Observation) -> Float[Tensor, "*batch"]:
        """The log-density of an observation at the next position, given those so far."""
        return self._joint(observation).logsumexp(-1)

    def _joint(self, observation: Observation) -> Tensor:
        ahead = self._ahead()
        seen = torch.as_tensor(observation, device=ahead.device)
        return ahead + self._density(seen.to(ahead.dtype) if seen.is_floating_point() else seen)

    def _ahead(self) -> Tensor:
        return self.moves.ahead(self.log_chance) if self.steps else self.log_chance

    def state(self) -> dict[str, Tensor]:
        """Everything that it remembers: a few numbers for each sequence."""
        steps = torch.tensor(self.steps)
        return {"log_chance": self.log_chance.clone(), "log_likelihood": self.log_likelihood.clone(), "steps": steps}

    def load(self, state: dict[str, Tensor]) -> None:
        """Go on from there."""
        self.log_chance, self.log_likelihood = state["log_chance"].clone(), state["log_likelihood"].clone()
        self.steps = int(state["steps"])


def filtered(model: MarkovModel, given: Sequences) -> Float[Tensor, "B T n"]:
    """The distribution of the state at each position given the observations up to there."""
    chances = filtered_logs(model, given)[0].softmax(-1).nan_to_num_(0.0)
    return chances.masked_fill_(~given.inside[..., None], 0.0)


def filtered_logs(
    model: MarkovModel, given: Sequences, ahead: Float[Tensor, "B n"] | None = None
) -> tuple[Float[Tensor, "B T n"], Float[Tensor, " B"]]:
    """Logarithms of the same but for a constant, and the log-likelihoods.

    `ahead` are log-probabilities of the first state, other than the model's.
    """
    return _logs(*model.chain_and_rows(given, ahead), given)


def _logs(chain: LinearChain, left: Tensor, given: Sequences) -> tuple[Tensor, Tensor]:
    """The same of a chain whose scores of states are less by `left`."""
    nodes, last = chain.node_scores().transpose(0, 1), given.lengths - 1
    pairs = chain.transition.flat(chain.batch_shape)
    messages = forward_messages(nodes.contiguous(), pairs, last)
    return messages.log_mass.transpose(0, 1).to(nodes.dtype) + left, messages.log_sum(pairs, last)


def fixed_lag(model: MarkovModel, given: Sequences, lag: int) -> Float[Tensor, "B T n"]:
    """The distribution of the state at each position, given the observations up to `lag` positions later."""
    chain, left = model.chain_and_rows(given)
    logs, moves = _logs(chain, left, given)[0], Moves(model.transition)
    density = (chain.node_scores() + left).masked_fill(~given.inside[..., None], 0.0)  # the first one is not looked at
    later = torch.zeros_like(logs)
    for step in range(lag, 0, -1):  # all positions at once: what is said so many positions later
        seen = torch.zeros_like(density)
        if step < density.shape[1]:
            seen[:, :-step] = density[:, step:]
        later = moves.back(seen + later)
        later = later - finite(later.amax(-1, keepdim=True))
    return (logs + later).softmax(-1).nan_to_num_(0.0).masked_fill_(~given.inside[..., None], 0.0)
