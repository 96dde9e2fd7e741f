"""Linear chains: `score(x) = sum_t emission[t, x_t] + sum_t transition[t, x_t, x_{t+1}]`.

Positions are numbered `0 .. T-1`, states `0 .. N-1`; transition t goes from position t to position t+1, (from, to).
Sequences of a batch may have different `lengths`; what stands in the padding counts nowhere, and samples and best
paths hold zeros there.
"""

import copy
import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float, Int
from torch import Tensor
from torch.distributions.kl import register_kl

from tailsum.check import check_broadcast, check_device, check_lengths, check_potential, check_subset, check_whole
from tailsum.kernels.best import best_messages
from tailsum.kernels.forward import Forward, final_log_sum, forward
from tailsum.kernels.table import tile_rows
from tailsum.potential import Dense, Factored, Potential, Scored
from tailsum.select import Subset, at_least
from tailsum.structure import Structure
from tailsum.sweep import ChainSweep


class Paths(NamedTuple):
    """The best paths, best first, and their scores (minus infinity where there are fewer paths than asked for)."""

    states: Int[Tensor, "k *batch T"]
    scores: Float[Tensor, "k *batch"]


class RelaxedSample(NamedTuple):
    """A differentiable sample: at each position, weights (they sum to one) on the model's states.

    `states` are the original numbers of the states that the weights refer to; `hard` is the discrete sample that was
    relaxed, in original numbers too.
    """

    weights: Float[Tensor, "*sample_batch T n"]
    states: Int[Tensor, "*batch T n"]
    hard: Int[Tensor, "*sample_batch T"]

    def mix(self, embeddings: Float[Tensor, "all d"]) -> Float[Tensor, "*sample_batch T d"]:
        """The mixture of the states' embeddings: what a decoder reads in place of one state's embedding."""
        kept = F.embedding(self.states, embeddings).to(self.weights.dtype)
        return (self.weights[..., None, :] @ kept)[..., 0, :]


class LinearChain(Structure["LinearChain"]):
    """A linear-chain conditional random field over N states: exact, or sketched on K of them.

    `emission` is a tensor of scores `[*batch, T, N]` or `Factored(context [*batch, T, d], states [N, d])`. `transition`
    is a tensor `[N, N]` (from, to) or any `Dense`, `Factored` or `Scored`, shared or varying: its leading dimensions
    broadcast against `[*batch, T-1]`. Scores may be minus infinity (forbidden). Half precision is computed in float32.

    >>> chain = LinearChain(torch.zeros(5, 3), torch.zeros(3, 3))
    >>> round(chain.log_partition().exp().item())  # 3 states, 5 positions
    243
    """

    def __init__(
        self,
        emission: Float[Tensor, "*#batch T N"] | Factored,
        transition: Float[Tensor, "*#lead N N"] | Potential,
        lengths: Int[Tensor, "*#batch"] | Sequence[int] | None = None,
    ) -> None:
        if isinstance(emission, Factored):
            states = emission.right if emission.right.dim() == 2 else emission.right[..., None, :, :]
            nodes: Potential = Factored(emission.left[..., :, None, :], states)
        elif not isinstance(emission, Tensor):
            raise ValueError(f"emission must be a tensor or Factored: got {type(emission).__name__}")
        elif emission.dim() < 2:
            raise ValueError(f"emission must be [*batch, T, N]: got {list(emission.shape)}")
        else:
            nodes = Dense(emission[..., :, None, :])
        if not isinstance(transition, Potential):
            if transition.dim() < 2:
                raise ValueError(f"transition must be [N, N] or [*batch, T-1, N, N]: got {list(transition.shape)}")
            transition = Dense(transition)
        self._set(nodes, transition, lengths)

    def _set(self, nodes: Potential, pairs: Potential, lengths: Tensor | Sequence[int] | None) -> None:
        self.device = nodes.tensors[0].device
        *batch, self.n_nodes = nodes.lead
        self.n_states = nodes.n_to
        if self.n_nodes < 1 or self.n_states < 1:
            raise ValueError(f"emission must have at least one position and one state: got {list(nodes.lead)} x N")
        if (pairs.n_from, pairs.n_to) != (self.n_states, self.n_states):
            raise ValueError(
                f"transition must join {self.n_states} states with {self.n_states}, as emission has: "
                f"got {pairs.n_from} with {pairs.n_to}"
            )
        if pairs.lead and pairs.lead[-1] not in (1, self.n_nodes - 1):
            raise ValueError(
                f"transition must have 1 or T-1 = {self.n_nodes - 1} steps in dimension -3: got {pairs.lead[-1]}"
            )
        for tensor in pairs.tensors:
            check_device("transition", tensor, self.device)
        pairs = pairs.on(self.device)
        shape = check_broadcast("transition", pairs.lead[:-1], torch.Size(batch), "emission's")
        if lengths is not None:
            lengths = check_whole("lengths", torch.as_tensor(lengths, device=self.device))
            check_lengths(lengths, self.n_nodes)
            shape = check_broadcast("lengths", lengths.shape, shape, "that of the scores,")
            lengths = lengths.expand(shape)
            inside = torch.arange(self.n_nodes, device=self.device) < lengths[..., None]
            nodes = _blank_outside(nodes, inside)
            pairs = _blank_outside(pairs, inside[..., 1:]) if pairs.lead else pairs
        check_potential("emission", nodes)
        check_potential("transition", pairs)
        self.dtype = working_type(nodes, pairs)
        self.batch_shape, self.lengths = shape, lengths
        self._nodes, self._pairs = nodes.to(self.dtype), pairs.to(self.dtype)
        self.kept: Subset | None = None
        self.whole = self

    @property
    def event_shape(self) -> torch.Size:
        """`[T]`: a configuration is one state at each position."""
        return torch.Size((self.n_nodes,))

    def __repr__(self) -> str:
        of = "" if self.kept is None else f" of {self.whole.n_states}"
        return f"{type(self).__name__}(batch={list(self.batch_shape)}, T={self.n_nodes}, N={self.n_states}{of})"

    # What the base asks for.

    def node_scores(self) -> Float[Tensor, "*batch T n"]:
        return self._nodes.block()[..., 0, :].expand(*self.batch_shape, self.n_nodes, -1)

    def pair_scores(self) -> Potential:
        return Dense(self._pairs.block()) if isinstance(self._pairs, Scored) else self._pairs

    def _pair_shape(self) -> tuple[int, ...]:
        return *self.batch_shape, self.n_nodes - 1, self.n_states, self.n_states

    def state_norms(self) -> Float[Tensor, "*#batch_node n"]:
        if isinstance(self._pairs, Factored) and not self._pairs.lead:
            return self._pairs.left.abs().sum(-1)
        if isinstance(self._nodes, Factored):
            return self._nodes.right.abs().sum(-1)
        raise ValueError(
            "the global proposal needs state embeddings: a Factored transition shared by all steps, or a Factored emission"
        )

    def sweep(self) -> ChainSweep:
        return ChainSweep(self.weighted_node_scores(), self._pairs, self.lengths)

    def sum_paths(self, nodes: Float[Tensor, "*batch T n"], pairs: Potential) -> Float[Tensor, "*batch"]:
        messages = self._messages(nodes, pairs)
        return final_log_sum(messages, self._last()).to(self.dtype).reshape(self.batch_shape)

    def _messages(self, nodes: Tensor, pairs: Potential) -> Forward:
        return forward(self._time_first(nodes), self._table_params(pairs), self._last())

    def _time_first(self, nodes: Tensor) -> Tensor:
        """`[*batch, T, N]` as `[T, B, N]`."""
        return nodes.reshape(self.batch_shape.numel(), *nodes.shape[-2:]).transpose(0, 1).contiguous()

    def _last(self) -> Tensor:
        """The last position of each sequence, `[B]`."""
        if self.lengths is None:
            return torch.full((self.batch_shape.numel(),), self.n_nodes - 1, device=self.device)
        return self.lengths.reshape(-1) - 1

    def _table_params(self, pairs: Potential) -> tuple[Tensor, ...]:
        """The parameters of the pairs as `[G, S, ...]`: see `kernels.table`."""
        params = pairs.table_params()
        if not pairs.lead:
            return tuple(p[None, None] for p in params)
        *batch, steps = pairs.lead
        if all(size == 1 for size in batch):
            return tuple(p.expand(*pairs.lead, -1, -1).reshape(1, steps, *p.shape[-2:]) for p in params)
        flat = (self.batch_shape.numel(), steps)
        return tuple(p.expand(*self.batch_shape, steps, -1, -1).reshape(*flat, *p.shape[-2:]) for p in params)

    def restrict(self, subset: Subset) -> "LinearChain":
        """The chain over the states `subset.index [*batch, T, K]` alone, `subset.log_weight` added to their scores.

        >>> chain = LinearChain(torch.randn(5, 9), torch.randn(9, 9))
        >>> chain.restrict(Subset(torch.arange(9).expand(5, 9), torch.zeros(5, 9)))
        LinearChain(batch=[], T=5, N=9 of 9)
        """
        check_subset(subset, (*self.batch_shape, self.n_nodes), self.n_states)
        index, log_weight = subset.index.long(), subset.log_weight.to(self.dtype)
        small = object.__new__(LinearChain)
        small._nodes = self._nodes.gather(None, index)
        small._pairs = self._pairs.gather(index[..., :-1, :], index[..., 1:, :])
        small.device, small.dtype = self.device, self.dtype
        small.batch_shape, small.lengths = self.batch_shape, self.lengths
        small.n_nodes, small.n_states = self.n_nodes, index.shape[-1]
        if self.kept is not None:
            lead = (*self.batch_shape, self.n_nodes, -1)
            log_weight = log_weight + self.log_weight.gather(-1, index.expand(lead))
            index = self.states.gather(-1, index.expand(lead))
        small.kept, small.whole = Subset(index, log_weight), self.whole
        return small

    def score(self, states: Int[Tensor, "*sample_batch T"]) -> Float[Tensor, "*sample_batch"]:
        """The score of given paths, in original states, kept or not: a sketch asks the whole chain.

        >>> LinearChain(torch.ones(4, 2), torch.zeros(2, 2)).score(torch.tensor([0, 1, 1, 0]))
        tensor(4.)
        """
        if self.kept is not None:
            return self.whole.score(states)
        states = check_whole("states", states)
        if states.shape[-1:] != (self.n_nodes,):
            raise ValueError(f"states must be [..., T] with T = {self.n_nodes}: got {list(states.shape)}")
        shape = check_broadcast("states", states.shape[:-1], self.batch_shape, "the chain's")
        states = states.expand(*shape, -1)
        inside = self._inside()
        states = torch.where(inside, states, 0)
        if ((states < 0) | (states >= self.n_states)).any():
            raise ValueError(f"states must lie between 0 and N-1 = {self.n_states - 1}: got one outside")
        nodes = self._nodes.block(None, states[..., None])[..., 0, 0]
        pairs = self._pairs.at(states[..., :-1], states[..., 1:])
        return torch.where(inside, nodes, 0.0).sum(-1) + torch.where(inside[..., 1:], pairs, 0.0).sum(-1)

    def _inside(self) -> Tensor:
        """Which positions are not padding, `[*batch, T]`."""
        positions = torch.arange(self.n_nodes, device=self.device)
        return positions <= self._last().reshape(*self.batch_shape, 1)

    def _matching(self, other: Structure["LinearChain"]) -> "LinearChain":
        if not isinstance(other, LinearChain):
            raise ValueError(f"other must be a LinearChain: got {type(other).__name__}")
        if (other.n_nodes, other.whole.n_states) != (self.n_nodes, self.whole.n_states):
            raise ValueError(f"other must have the same positions and states as {self}: got {other}")
        if check_broadcast("other", other.batch_shape, self.batch_shape, "this chain's") != self.batch_shape:
            raise ValueError(
                f"other must have a batch shape within {list(self.batch_shape)}: got {list(other.batch_shape)}"
            )
        other = copy.copy(other)
        other.lengths = None if other.lengths is None else other.lengths.expand(self.batch_shape)
        other.batch_shape = self.batch_shape
        if self.kept is not None and other.kept is None:
            other = other.restrict(self.kept)
        if other.n_states != self.n_states or not torch.equal(self.states, other.states):
            raise ValueError(f"other must have the same positions and states as {self}: got {other}")
        if not torch.equal(self._last(), other._last()):
            raise ValueError("other must have the same lengths")
        return other

    # Paths.

    @torch.no_grad()
    def argmax(self) -> Int[Tensor, "*batch T"]:
        """The path of highest score (Viterbi); in a sketch, among the kept states, their weights left aside."""
        return self.topk(1).states[0]

    @torch.no_grad()
    def topk(self, k: int) -> Paths:
        """The k paths of highest score, best first.

        >>> LinearChain(torch.tensor([[0.0, 1.0], [0.0, 2.0]]), torch.zeros(2, 2)).topk(3).states.tolist()
        [[1, 1], [0, 1], [1, 0]]
        """
        at_least(1, k=k)
        nodes, pairs = self.node_scores(), self.pair_scores()
        if self.kept is not None:
            nodes = nodes.masked_fill(_repeated(self.kept), -math.inf)
        best = best_messages(self._time_first(nodes), self._table_params(pairs), k)
        best = best.reshape(self.n_nodes, *self.batch_shape, self.n_states, k)
        last = self._last().reshape(*self.batch_shape, 1)
        states: list[Tensor] = []
        scores = rank = torch.empty(0)
        for t in range(self.n_nodes - 1, -1, -1):
            paths = best[t].flatten(-2)[..., None, :].expand(*self.batch_shape, k, -1)  # [*batch, k, N k]
            highest = paths[..., 0, :].topk(k)
            final, pick = highest.values, highest.indices
            scores = torch.where(last == t, final, scores) if states else final
            if states:
                columns = pairs.at_step(t).block(None, states[-1]).mT  # [*batch, k, N]
                ranked = (paths + columns.repeat_interleave(k, -1)).topk(k).indices
                pick = torch.where(last > t, ranked.gather(-1, rank[..., None])[..., 0], pick)
            states.append(pick // k)
            rank = pick % k
        found = torch.stack(states[::-1], -1).movedim(-2, 0)
        return Paths(self._original(found), scores.movedim(-1, 0))

    def sample(
        self, sample_shape: Sequence[int] = (), generator: torch.Generator | None = None
    ) -> Int[Tensor, "*sample_batch T"]:
        """Exact samples from the model (forward filtering, backward sampling), in original states.

        >>> LinearChain(torch.randn(5, 3), torch.randn(3, 3)).sample((1000,)).shape
        torch.Size([1000, 5])
        """
        with torch.no_grad():
            at_least(0, **{f"sample_shape[{i}]": size for i, size in enumerate(sample_shape)})
            messages, count = self._column_messages(), math.prod(sample_shape)
            chunk = tile_rows(messages[0].numel(), self.device)
            parts = [
                self._walk_back(messages, min(chunk, count - start), lambda x: _gumbel(x, generator).argmax(-2))
                for start in range(0, max(1, count), chunk)
            ]
            return self._original(self._samples_first(torch.cat(parts, -1), sample_shape))

    def rsample(
        self,
        temperature: float = 1.0,
        hard: bool = False,
        generator: torch.Generator | None = None,
        sample_shape: Sequence[int] = (),
    ) -> RelaxedSample:
        """Relaxed samples, differentiable in all scores: Gumbel backward sampling, the paper's Algorithm 4.

        At temperature towards zero the weights become one-hot. `hard=True` makes them one-hot and keeps the relaxed
        gradient (straight-through).

        >>> chain = LinearChain(torch.randn(5, 100), torch.randn(100, 100)).sketch(10)
        >>> chain.rsample(temperature=0.5).mix(torch.randn(100, 16)).shape
        torch.Size([5, 16])
        """
        if not temperature > 0:
            raise ValueError(f"temperature must be above 0: got {temperature}")
        relaxed: list[Tensor] = []

        def choose(logits: Tensor) -> Tensor:
            impossible = (logits == -math.inf).all(-2, keepdim=True)
            noisy = _gumbel(logits.masked_fill(impossible, 0.0), generator)
            soft = (noisy / temperature).softmax(-2)
            picked = noisy.argmax(-2)
            if hard:
                soft = torch.zeros_like(soft).scatter(-2, picked[..., None, :], 1.0) + soft - soft.detach()
            relaxed.append(soft.masked_fill(impossible, 0.0))
            return picked

        states = self._walk_back(self._column_messages(), math.prod(sample_shape), choose)
        states = self._samples_first(states, sample_shape)
        weights = torch.stack(relaxed[::-1], -3).movedim(-1, 0)
        weights = weights.reshape(*sample_shape, *weights.shape[1:])
        if self.lengths is not None:
            weights = torch.where(self._inside()[..., None], weights, 0.0)
        return RelaxedSample(weights, self.states, self._original(states))

    def _column_messages(self) -> Tensor:
        """Forward messages, each but for a constant, as `[T, *batch, N, 1]`."""
        messages = self._messages(self.weighted_node_scores(), self.pair_scores()).log_mass
        return messages.reshape(self.n_nodes, *self.batch_shape, self.n_states, 1)

    def _walk_back(self, messages: Tensor, count: int, choose: Callable[[Tensor], Tensor]) -> Tensor:
        """`count` paths `[*batch, T, count]`, from the last position back, each state by `choose(logits [.., N, count])`.

        The logits are those of the state given the one chosen after it.
        """
        pairs = self.pair_scores()
        last = self._last().reshape(*self.batch_shape, 1, 1)
        states: list[Tensor] = []
        for t in range(self.n_nodes - 1, -1, -1):
            logits = messages[t].expand(*messages[t].shape[:-1], count)
            if states:
                logits = logits + torch.where(last > t, pairs.at_step(t).block(None, states[-1]), 0.0)
            states.append(choose(logits))
        return torch.stack(states[::-1], -2)

    @staticmethod
    def _samples_first(states: Tensor, sample_shape: Sequence[int]) -> Tensor:
        states = states.movedim(-1, 0)
        return states.reshape(*sample_shape, *states.shape[1:])

    def _original(self, states: Tensor) -> Tensor:
        """Original numbers of states `[*sample, *batch, T]` of this model, zeros in the padding."""
        if self.kept is not None:
            everything = self.states.expand(*states.shape, -1)
            states = everything.gather(-1, states[..., None])[..., 0]
        return states if self.lengths is None else torch.where(self._inside(), states, 0)


@register_kl(LinearChain, LinearChain)
def _kl(p: LinearChain, q: LinearChain) -> Tensor:
    return p.kl(q)


def _blank_outside(potential: Potential, inside: Tensor) -> Potential:
    """The potential with zeros for everything outside the sequences; `inside [*batch, steps]`."""
    trailing = 1 if isinstance(potential, Scored) else 2

    def blank(x: Tensor) -> Tensor:
        lead = x.shape[:-trailing]
        if math.prod(lead) == 0 or not lead:
            return x
        used = inside.long().sum_to_size(lead)  # what several sequences share counts if one of them uses it
        return x.masked_fill((used == 0).reshape(*lead, *(1,) * trailing), 0)

    return potential.map(blank)


def working_type(*potentials: Potential) -> torch.dtype:
    """The type to compute in: the widest of the scores' types, float32 for half precision."""
    kinds = [x.dtype for p in potentials for x in p.tensors if x.is_floating_point()]
    widest = functools.reduce(torch.promote_types, kinds)
    return torch.float32 if widest in (torch.float16, torch.bfloat16) else widest


def _gumbel(logits: Tensor, generator: torch.Generator | None) -> Tensor:
    """`logits` with independent Gumbel noise added."""
    waiting = torch.empty_like(logits, memory_format=torch.contiguous_format).exponential_(generator=generator)
    return logits - waiting.clamp_(min=torch.finfo(logits.dtype).tiny).log_()


def _repeated(kept: Subset) -> Tensor:
    """Which kept states are copies of an earlier place, or empty places."""
    empty = kept.log_weight == -math.inf
    ordered, order = kept.index.masked_fill(empty, -1).sort(dim=-1, stable=True)
    again = F.pad(ordered[..., 1:] == ordered[..., :-1], (1, 0))
    return torch.zeros_like(again).scatter(-1, order, again) | empty
