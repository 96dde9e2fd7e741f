"""New sequences of a model, and how a sequence goes on."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from tailsum.chains.linear_chain import LinearChain
from tailsum.hmm.core import MarkovModel
from tailsum.hmm.transition import row_normaliser
from tailsum.numerics.tensors import finite


class Drawn(NamedTuple):
    """Sequences of observations `[n, *batch, T, *event]`, and the states that said them, `[n, *batch, T]`."""

    data: Shaped[Tensor, "n *batch_T_event"]
    states: Int[Tensor, "n *batch_T"]


def drawn(
    model: MarkovModel, first: Float[Tensor, "B n"], count: int, length: int, generator: torch.Generator | None
) -> Drawn:
    """`count` sequences for each distribution of the first state, given by log-probabilities."""
    potential = model.transition()
    nodes = torch.zeros(len(first), length, model.n_states, dtype=first.dtype, device=first.device)
    nodes[:, :-1] -= finite(row_normaliser(potential))
    nodes[:, 0] += first
    states = LinearChain(nodes, potential).sample((count,), generator=generator)
    return Drawn(said(model, states, generator), states)


def said(
    model: MarkovModel, states: Int[Tensor, "*shape T"], generator: torch.Generator | None
) -> Shaped[Tensor, "*shape_T_event"]:
    """Observations of given paths."""
    emission = model.emission
    if not emission.lags:
        return emission.draw(states, generator)
    steps = list[Tensor]()
    for t in range(states.shape[-1]):
        past = torch.stack(steps[-emission.lags :], -1 - emission.event_dim) if steps else None
        steps.append(emission.draw(states[..., t], generator, past))
    return torch.stack(steps, -1 - emission.event_dim)


def stationary(table: Float[Tensor, "n n"]) -> Float[Tensor, " n"]:
    """The distribution over states that moves with these probabilities leave as it is."""
    n = len(table)
    wide = table.double()
    equations = torch.cat((wide.mT - torch.eye(n, dtype=wide.dtype, device=wide.device), wide.new_ones(1, n)))
    target = torch.cat((wide.new_zeros(n), wide.new_ones(1)))
    found = torch.linalg.lstsq(
        equations, target[:, None], driver="gelsd" if wide.device.type == "cpu" else None
    ).solution[:, 0]
    return (found.clamp(min=0.0) / found.clamp(min=0.0).sum()).to(table.dtype)
