"""Filtering one observation at a time, or one chunk at a time."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from tailsum.chains.forward import forward_messages
from tailsum.hmm.core import MarkovModel
from tailsum.hmm.moves import Moves
from tailsum.hmm.sequences import Data, Sequences, chunk


class Online:
    """The distribution of the state as observations come, for one sequence or a batch of them.

    Parameters are read once: make another after a fit. `chance [*batch, N]` is the distribution of the state given all
    observations so far, and `log_likelihood [*batch]` theirs. Both are the whole state: `state()` and `load` save and restore it.

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
            self._initial = model.initial.exp().expand(*batch_shape, -1)
            self._lowest = torch.finfo(self._initial.dtype).min
        self.chance: Float[Tensor, "*batch n"] = self._initial
        self.log_likelihood = torch.zeros(tuple(batch_shape), dtype=torch.float64, device=model.device)
        self.steps = 0

    @torch.no_grad()
    def update(self, observation: Shaped[Tensor, "*batch_event"]) -> Float[Tensor, "*batch n"]:
        """The distribution of the state at the next position, given its observation too; NaN or -1 is a missing one.

        After an observation that no state can say, it is zero, and the log-likelihood minus infinity.
        """
        density = self._density(observation)
        highest = density.amax(-1, keepdim=True).clamp_(min=self._lowest)
        mass = self._ahead().mul(density.sub_(highest).exp_())
        total = mass.sum(-1, keepdim=True)
        self.chance = mass.div_(total.clamp(min=torch.finfo(mass.dtype).tiny))
        self.log_likelihood = self.log_likelihood + (total.log_().add_(highest))[..., 0]
        self.steps += 1
        return self.chance

    @torch.no_grad()
    def extend(self, data: Data) -> Float[Tensor, "*batch T n"]:
        """The same for a chunk of observations `[*batch, T, *event]` at once, many times faster than one by one."""
        model, shape = self.model, self.log_likelihood.shape
        given = chunk(model.emission, data)
        if len(given.data) != max(1, shape.numel()):
            raise ValueError(f"data must have the batch {list(shape)} of this filter: got {len(given.data)} sequences")
        ahead = self._ahead().log().reshape(len(given.data), -1)
        chances, total = filtered(model, given, ahead)
        self.chance = chances[:, -1].reshape(*shape, -1)
        self.log_likelihood = self.log_likelihood + total.reshape(shape)
        self.steps += chances.shape[1]
        return chances.reshape(*shape, *chances.shape[1:])

    @torch.no_grad()
    def predict(self, steps: int = 1) -> Float[Tensor, "*batch n"]:
        """The distribution of the state so many positions after the last observation."""
        chance = self.chance
        for step in range(steps):
            chance = self.moves.ahead(chance) if self.steps or step else chance
        return chance

    def log_density(self, observation: Shaped[Tensor, "*batch_event"]) -> Float[Tensor, "*batch"]:
        """The log-density of an observation at the next position, given those so far."""
        return (self._ahead().log() + self._density(observation)).logsumexp(-1)

    def _ahead(self) -> Tensor:
        return self.moves.ahead(self.chance) if self.steps else self.chance

    def state(self) -> dict[str, Tensor]:
        """Everything that it remembers: a few numbers for each sequence."""
        steps = torch.tensor(self.steps)
        return {"chance": self.chance.clone(), "log_likelihood": self.log_likelihood.clone(), "steps": steps}

    def load(self, state: dict[str, Tensor]) -> None:
        """Go on from there."""
        self.chance, self.log_likelihood = state["chance"].clone(), state["log_likelihood"].clone()
        self.steps = int(state["steps"])


def filtered(
    model: MarkovModel, given: Sequences, ahead: Float[Tensor, "B n"] | None = None
) -> tuple[Float[Tensor, "B T n"], Float[Tensor, " B"]]:
    """The distribution of the state at each position given the observations up to there, and the log-likelihoods.

    `ahead` are log-probabilities of the first state, other than the model's.
    """
    chain, left = model.chain_and_rows(given, ahead)
    nodes, last = chain.node_scores().transpose(0, 1), given.lengths - 1
    pairs = chain.transition.flat(chain.batch_shape)
    messages = forward_messages(nodes.contiguous(), pairs, last)
    chances = (messages.log_mass.transpose(0, 1) + left).softmax(-1).nan_to_num_(0.0)
    return chances.masked_fill_(~given.inside[..., None], 0.0).to(nodes.dtype), messages.log_sum(pairs, last)


def fixed_lag(model: MarkovModel, given: Sequences, lag: int) -> Float[Tensor, "B T n"]:
    """The distribution of the state at each position, given the observations up to `lag` positions later."""
    chances, moves = filtered(model, given)[0], Moves(model.transition)
    density = model.emission(given.data)
    density = (density - density.amax(-1, keepdim=True)).exp().masked_fill(~given.inside[..., None], 1.0)
    later = torch.ones_like(chances)
    for step in range(lag, 0, -1):  # all positions at once: what is said so many positions later
        seen = torch.ones_like(density)
        if step < density.shape[1]:
            seen[:, :-step] = density[:, step:]
        later = moves.back(seen * later)
        later = later / later.amax(-1, keepdim=True)
    mass = chances * later
    return mass / mass.sum(-1, keepdim=True).clamp(min=torch.finfo(mass.dtype).tiny)
