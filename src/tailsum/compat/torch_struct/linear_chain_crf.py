"""Linear chains: `log_potentials[n, z', z]` scores state z' at position n+1 after state z at position n.

The state that a step leads to comes first, and the one that it comes from second.
"""

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Bool, Float, Int, Num
from torch import Tensor

from tailsum.chains import linear_chain
from tailsum.compat.torch_struct.distribution import StructDistribution
from tailsum.compat.torch_struct.semirings.recursion import neutral
from tailsum.compat.torch_struct.struct import Lengths, Struct, check_labels, lengths_of
from tailsum.numerics.check import check_temperature
from tailsum.structure.base import Structure


class LinearChain(Struct):
    """Chains. Their short form is the state of each position, `[B, N]`; `extra` is the number of states, C."""

    def distribution(self, log_potentials: Tensor, lengths: Lengths) -> "LinearChainCRF":
        return LinearChainCRF(log_potentials, lengths)

    def recursion(self, parts: Num[Tensor, "size B M C C"], lengths: Int[Tensor, " B"]) -> Num[Tensor, "size B"]:
        """Products of tables of pairs: of neighbours at first, then of neighbouring products."""
        zero, one = neutral(self.semiring, parts, 5)
        nothing = torch.where(torch.eye(parts.shape[-1], dtype=torch.bool, device=parts.device), one, zero)
        inside = _inside(parts.shape[2] + 1, lengths)[:, 1:, None, None]
        steps = torch.where(inside, parts, nothing) if parts.shape[2] else nothing.expand(-1, len(lengths), -1, -1, -1)
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
        inside = _inside(sequence.shape[-1], lengths_of(sequence, lengths))
        check_labels("sequence", torch.where(inside, sequence, 0), 0, extra - 1)
        states = F.one_hot(torch.where(inside, sequence, 0), extra) * inside[..., None]
        return states[..., 1:, :, None] * states[..., :-1, None, :]

    @staticmethod
    def from_parts(event: Float[Tensor, "*batch M C C"] | Int[Tensor, "*batch M C C"]) -> tuple[Tensor, int]:
        """The state of each position, zero where no pair says it, and the number of states."""
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
        return (seen[..., 1:, :, None] + transition + first) if observations.shape[-1] > 1 else _no_steps(seen)


class LinearChainCRF(StructDistribution):
    """A linear-chain conditional random field over C states, from `log_potentials [B, N-1, C, C]` (step, to, from).

    >>> chain = LinearChainCRF(torch.zeros(2, 4, 3, 3), lengths=[5, 2])
    >>> chain.count  # 3 states at 5 and at 2 positions
    tensor([243.,   9.])
    """

    struct = LinearChain
    form, part_dims = "[B, N-1, C, C]", 3

    @staticmethod
    def _fits(event: torch.Size) -> bool:
        return event[-1] == event[-2] > 0

    def _longest(self) -> int:
        return self.event_shape[0] + 1

    def _usable(self) -> Bool[Tensor, "*batch M 1 1"]:
        return _inside(self._longest(), self._positions())[..., 1:, None, None]

    def _build(self, scores: tuple[Tensor, ...], lengths: Lengths) -> Structure:
        (pairs,) = scores
        nodes = pairs.new_zeros(self._longest(), self.event_shape[-1])
        return linear_chain.LinearChain(nodes, pairs.mT, lengths)

    def _marginals(self, model: Structure) -> Float[Tensor, "*batch M C C"]:
        assert isinstance(model, linear_chain.LinearChain)
        pairs = model.pair_marginals()
        if model.kept is not None:
            size, states = self.event_shape[-1], model.states
            place = (states[..., :-1, :, None] * size + states[..., 1:, None, :]).flatten(-2)
            whole = pairs.new_zeros(*place.shape[:-1], size * size)
            pairs = whole.scatter_add(-1, place, pairs.flatten(-2)).unflatten(-1, (size, size))
        return pairs.mT

    def _event(self, model: Structure, configuration: Int[Tensor, "*sample_batch N"]) -> Tensor:
        size, used = self.event_shape[-1], configuration[..., 1:] >= 0
        place = configuration[..., 1:] * size + configuration[..., :-1]
        event = torch.zeros(*used.shape, size * size, dtype=model.dtype, device=used.device)
        event.scatter_(-1, place.clamp(min=0)[..., None], used[..., None].to(event.dtype))
        return event.unflatten(-1, (size, size))

    def gumbel_crf(self, temperature: float = 1.0) -> Float[Tensor, "*batch M C C"]:
        """An exact sample that passes gradients on to a relaxed one, by Gumbel noise in the backward pass (Fu et al. 2020)."""
        check_temperature(temperature)
        with torch.enable_grad():
            model = self.model
            sample = model.rsample(temperature)
            soft = model.scatter(sample.weights)
            hard = F.one_hot(sample.hard.clamp(min=0), soft.shape[-1]) * (sample.hard >= 0)[..., None]
            states = hard + (soft - soft.detach())  # in this order, so that nothing is rounded
            return states[..., 1:, :, None] * states[..., :-1, None, :]


def _inside(longest: int, lengths: Int[Tensor, "*batch"]) -> Bool[Tensor, "*batch N"]:
    """Which positions are not padding."""
    return torch.arange(longest, device=lengths.device) < lengths[..., None]


def _no_steps(states: Float[Tensor, "*batch N C"]) -> Float[Tensor, "*batch 0 C C"]:
    return states.new_zeros(*states.shape[:-2], 0, states.shape[-1], states.shape[-1])
