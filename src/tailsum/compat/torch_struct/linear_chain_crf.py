"""Linear chains: `log_potentials[n, z', z]` scores state z' at position n+1 after state z at position n.

The first index is the state that a step leads to, and the second the state that it comes from.
"""

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Bool, Float, Int, Num
from torch import Tensor

from tailsum.chains import linear_chain
from tailsum.compat.torch_struct.distribution import StructDistribution
from tailsum.compat.torch_struct.semirings.recursion import neutral
from tailsum.compat.torch_struct.struct import Lengths, Struct, added, inside, one_hot, over_all_states
from tailsum.numerics.check import check_temperature
from tailsum.structure.base import Structure


class LinearChain(Struct):
    """Chains. The short form is the state of each position, `[B, N]`; `extra` is the number of states, C."""

    def distribution(self, log_potentials: Tensor, lengths: Lengths) -> "LinearChainCRF":
        return LinearChainCRF(log_potentials, lengths)

    def recursion(self, parts: Num[Tensor, "size B M C C"], lengths: Int[Tensor, " B"]) -> Num[Tensor, "size B"]:
        """Products of the tables of neighbouring steps, then of neighbouring products, and so on."""
        zero, one = neutral(self.semiring, parts, 5)
        nothing = torch.where(torch.eye(parts.shape[-1], dtype=torch.bool, device=parts.device), one, zero)
        used = inside(parts.shape[2] + 1, lengths)[:, 1:, None, None]
        steps = torch.where(used, parts, nothing) if parts.shape[2] else nothing.expand(-1, len(lengths), -1, -1, -1)
        while steps.shape[2] > 1:
            pairs = self.semiring.matmul(steps[:, :, 1::2], steps[:, :, :-1:2])
            steps = torch.cat((pairs, steps[:, :, 2 * pairs.shape[2] :]), 2)
        return self.semiring.sum(self.semiring.sum(steps[:, :, 0]))

    @staticmethod
    def to_parts(sequence: Int[Tensor, "*batch N"], extra: int, lengths: Lengths = None) -> Int[Tensor, "*batch M C C"]:  # pyright: ignore[reportIncompatibleMethodOverride]  (extra is needed)
        """The pairs of neighbouring states.

        >>> LinearChain.to_parts(torch.tensor([[0, 1, 1]]), 2)[0].nonzero().tolist()  # step, to, from
        [[0, 1, 0], [1, 1, 1]]
        """
        states = one_hot(sequence, extra, lengths)
        return states[..., 1:, :, None] * states[..., :-1, None, :]

    @staticmethod
    def from_parts(event: Float[Tensor, "*batch M C C"] | Int[Tensor, "*batch M C C"]) -> tuple[Tensor, int]:
        """The state of each position, zero where it is in no pair, and the number of states."""
        used = event != 0
        first = (
            used[..., :1, :, :].any(-2) if event.shape[-3] else used.new_zeros(*event.shape[:-3], 1, event.shape[-1])
        )
        return torch.cat((first, used.any(-1)), -2).long().argmax(-1), event.shape[-1]

    @staticmethod
    def hmm(
        transition: Float[Tensor, "C C"], emission: Float[Tensor, "V C"], init: Float[Tensor, " C"],
        observations: Int[Tensor, "*batch N"],
    ) -> Float[Tensor, "*batch M C C"]:  # fmt: skip
        """Log-potentials of a hidden Markov model, `transition[z', z]` from state z to z'."""
        seen = emission[observations]
        first = F.pad((seen[..., 0, :] + init)[..., None, None, :], (0, 0, 0, 0, 0, observations.shape[-1] - 2))
        if observations.shape[-1] == 1:
            return seen.new_zeros(*seen.shape[:-2], 0, *transition.shape)
        return seen[..., 1:, :, None] + transition + first


class LinearChainCRF(StructDistribution):
    """A linear-chain conditional random field over C states, from `log_potentials [B, N-1, C, C]` (step, to, from).

    >>> chain = LinearChainCRF(torch.zeros(2, 4, 3, 3), lengths=[5, 2])
    >>> chain.count  # 3 states at 5 and at 2 positions
    tensor([243.,   9.])
    """

    struct = LinearChain
    form = "[B, N-1, C, C]"

    @staticmethod
    def _fits(event: torch.Size) -> bool:
        return len(event) == 3 and event[-1] == event[-2] > 0

    def _longest(self) -> int:
        return self.event_shape[0] + 1

    def _usable(self) -> Bool[Tensor, "*batch M 1 1"]:
        return self._inside()[..., 1:, None, None]

    def _build(self, scores: tuple[Tensor, ...], lengths: Lengths) -> Structure:
        (pairs,) = scores
        nodes = pairs.new_zeros(self._longest(), self.event_shape[-1])
        return linear_chain.LinearChain(nodes, pairs.mT, lengths)

    def _marginals(self, model: Structure) -> Float[Tensor, "*batch M C C"]:
        assert isinstance(model, linear_chain.LinearChain)
        pairs = model.pair_marginals()
        if model.kept is not None:
            pairs = over_all_states(pairs, model.states[..., :-1, :], model.states[..., 1:, :], self.event_shape[-1])
        return pairs.mT

    def _event(self, model: Structure, configuration: Int[Tensor, "*sample_batch N"]) -> Tensor:
        size, used = self.event_shape[-1], configuration[..., 1:] >= 0
        place = (configuration[..., 1:] * size + configuration[..., :-1]).clamp(min=0)
        return added(place[..., None], used[..., None].to(model.dtype), (size, size))

    def gumbel_crf(self, temperature: float = 1.0) -> Float[Tensor, "*batch M C C"]:
        """An exact sample with the gradient of a relaxed one, by Gumbel noise in the backward pass (Fu et al. 2020)."""
        check_temperature(temperature)
        with torch.enable_grad():
            model = self.model
            sample = model.rsample(temperature)
            soft = model.scatter(sample.weights)
            hard = F.one_hot(sample.hard.clamp(min=0), soft.shape[-1]) * (sample.hard >= 0)[..., None]
            states = hard + (soft - soft.detach())  # in this order, so that nothing is rounded
            return states[..., 1:, :, None] * states[..., :-1, None, :]
