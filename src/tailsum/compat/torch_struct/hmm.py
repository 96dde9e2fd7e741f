"""Hidden Markov models, as the chain of states given the observations."""

import math
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.distributions.utils import lazy_property

from tailsum.chains import linear_chain
from tailsum.compat.torch_struct.linear_chain_crf import LinearChain, LinearChainCRF
from tailsum.compat.torch_struct.struct import Lengths, check_labels
from tailsum.numerics.check import check_scores, check_whole
from tailsum.numerics.tensors import unmasked
from tailsum.structure.base import Structure


class HMM(LinearChainCRF):
    """The posterior of a hidden Markov model's states; `partition` is the log-likelihood of the observations.

    `transition [C, C]` holds log p(z'|z) at `[z', z]`, `emission [V, C]` log p(x|z), `init [C]` log p(z). All steps share the
    transition: `log_potentials [B, N-1, C, C]` are computed on first use.

    >>> half = torch.tensor(0.5).log()
    >>> HMM(half.expand(2, 2), half.expand(2, 2), half.expand(2), torch.tensor([[0, 1, 1]])).partition.exp()
    tensor([0.1250])
    """

    def __init__(
        self, transition: Float[Tensor, "C C"], emission: Float[Tensor, "V C"], init: Float[Tensor, " C"],
        observations: Int[Tensor, "batch N"], lengths: Lengths = None, validate_args: bool | None = False,
    ) -> None:  # fmt: skip
        named = {"transition": transition, "emission": emission, "init": init}
        for name, x in named.items():
            check_scores(name, x)
        size = emission.shape[-1]
        if transition.shape != (size, size) or init.shape != (size,) or emission.dim() != 2:
            got = [list(x.shape) for x in named.values()]
            raise ValueError(f"transition, emission and init must be [C, C], [V, C] and [C]: got {got}")
        observations = check_whole("observations", observations)
        if observations.dim() != 2 or 0 in observations.shape[1:]:
            raise ValueError(f"observations must be [B, N], N at least 1: got {list(observations.shape)}")
        self.transition, self.emission, self.init = transition, emission, init
        self.args: dict[str, Any] = {}
        batch, length = observations.shape
        self._begin(torch.Size((batch,)), torch.Size((length - 1, size, size)), lengths)
        inside = self._inside()
        check_labels("observations", torch.where(inside, observations, 0), 0, len(emission) - 1)
        self.observations = torch.where(inside, observations, 0)

    @lazy_property
    def log_potentials(self) -> Float[Tensor, "*batch M C C"]:  # pyright: ignore[reportIncompatibleVariableOverride]  (computed on first use)
        """The scores of all pairs at each step, as for a `LinearChainCRF`."""
        return LinearChain.hmm(self.transition, self.emission, self.init, self.observations)

    def _tensors(self) -> tuple[Tensor, ...]:
        return self.init, self.emission, self.transition

    def _build(self, scores: tuple[Tensor, ...], lengths: Lengths) -> Structure:
        init, emission, transition = scores
        nodes = emission[self.observations]
        nodes = torch.cat((nodes[..., :1, :] + init, nodes[..., 1:, :]), -2)
        return linear_chain.LinearChain(nodes, transition.mT, lengths)

    def _count(self) -> Float[Tensor, "*batch"]:
        init, emission, transition = ((unmasked(x.detach()) > -math.inf).double() for x in self._scores())
        seen, inside = emission[self.observations], self._inside()[..., None]
        paths = seen[..., 0, :] * init
        for n in range(1, self._longest()):
            paths = torch.where(inside[..., n, :], seen[..., n, :] * (paths @ transition.mT), paths)
        return paths.sum(-1).to(self._scores()[0].dtype)

    def _expanded(self, shape: torch.Size) -> dict[str, Any]:
        return {"observations": self.observations.expand(*shape, -1)}
