"""Chains to measure estimators on: the paper's recipe and proposal (its Table 2, Table 3 and Table 4), and a harder, peaked suite.

The paper's chains are short and nearly flat. Its three levels differ in how many steps of Adam lower the entropy of
`softmax(words . states)`: the more steps, the longer the tail of the distribution in comparison with its head.
"""

import math
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tailsum import Factored, LinearChain, Local, Propose

Level = Literal["dense", "intermediate", "long-tail"]
ADAM_STEPS: dict[Level, int] = {"dense": 10, "intermediate": 30, "long-tail": 50}

# (standard deviation of transition scores, of emission scores)
HARD_SETTINGS = ((1.0, 1.0), (1.0, 3.0), (3.0, 1.0), (3.0, 3.0), (5.0, 3.0))


class PaperChain(NamedTuple):
    """A chain of the paper's recipe with the embeddings it was made from."""

    chain: LinearChain
    states: Float[Tensor, "N d"]
    words: Float[Tensor, "T d"]


def paper_chain(
    n_states: int = 2000,
    length: int = 10,
    level: Level = "dense",
    size: int = 50,
    generator: torch.Generator | None = None,
) -> PaperChain:
    """A chain as in the paper's Tables 2 to 4: uniform embeddings, scores scaled to a range of 10 around their mean."""
    states = torch.rand(n_states, size, generator=generator)
    words = torch.rand(length, size, generator=generator)
    lower_entropy(states, words, ADAM_STEPS[level])
    pair_scale, pair_shift = _range_of_ten(*_extent(states))
    ones = torch.ones(n_states, 1)
    transition = Factored(torch.cat((states * pair_scale, ones * pair_shift), -1), torch.cat((states, ones), -1))
    emission = words @ states.T
    scale, shift = _range_of_ten(emission.mean(-1), emission.amin(-1), emission.amax(-1))
    context = torch.cat((words * scale[:, None], shift[:, None]), -1)
    chain = LinearChain(Factored(context, torch.cat((states, ones), -1)), transition)
    return PaperChain(chain, states, words)


def paper_proposal(states: Float[Tensor, "N d"], softmax: bool = True) -> Propose:
    """The paper's proposal for `paper_chain`: local plus global, from the embeddings before scores were scaled."""
    prior = global_proposal(states, softmax)
    return lambda model: torch.logaddexp(Local()(model), prior(model)) - math.log(2)


def global_proposal(states: Float[Tensor, "N d"], softmax: bool = True) -> Propose:
    """The part of the paper's proposal that is the same at every position.

    The authors' experiments take the softmax of the embeddings' L1 norms; the paper's formula divides by their sum.
    """
    norms = states.abs().sum(-1)
    log_global = norms.log_softmax(-1) if softmax else (norms / norms.sum()).log()
    return lambda model: log_global.expand(*model.batch_shape, *model.node_shape, -1)


def hard_chain(
    n_states: int = 2000,
    transition: float = 3.0,
    emission: float = 3.0,
    length: int = 40,
    size: int = 64,
    generator: torch.Generator | None = None,
) -> LinearChain:
    """A peaked chain: Gaussian embeddings, scores of the given standard deviations."""
    left, right = torch.randn(2, n_states, size, generator=generator)
    words = torch.randn(length, size, generator=generator)
    return LinearChain(
        Factored(words * (emission / math.sqrt(size)), left), Factored(left * (transition / math.sqrt(size)), right)
    )


def lower_entropy(states: Tensor, words: Tensor, steps: int) -> None:
    """Some steps of Adam, in place, that lower the mean entropy of the emissions."""
    with torch.enable_grad():
        optimiser = torch.optim.Adam([states.requires_grad_(), words.requires_grad_()], lr=1e-4)
        for _ in range(steps):
            log_p = (words @ states.T).log_softmax(-1)
            entropy = -(log_p.exp() * log_p).sum(-1).mean()
            optimiser.zero_grad()
            entropy.backward()
            optimiser.step()
    states.requires_grad_(False)
    words.requires_grad_(False)


def _extent(states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, minimum and maximum of all inner products, a block of rows at a time."""
    blocks = [block @ states.T for block in states.split(1024)]
    mean = torch.stack([block.double().sum() for block in blocks]).sum() / len(states) ** 2
    low, high = (torch.stack([f(block) for block in blocks]) for f in (torch.amin, torch.amax))
    return mean.to(states.dtype), low.min(), high.max()


def _range_of_ten(mean: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Scale and shift that turn x into `10 (x - mean) / (high - low)`."""
    scale = 10 / (high - low)
    return scale, -scale * mean
