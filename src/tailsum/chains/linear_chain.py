"""Linear chains: `score(x) = sum_t emission[t, x_t] + sum_t transition[t, x_t, x_{t+1}]`.

Positions are numbered `0 .. T-1`, states `0 .. N-1`; transition t goes from position t to position t+1, (from, to).
Sequences of a batch may have different `lengths`; what stands in the padding counts nowhere, and samples and best
paths hold zeros there.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.chains.best_paths import best_messages
from tailsum.chains.chain_sweep import ChainSweep
from tailsum.chains.forward import Forward, final_log_sum, forward
from tailsum.chains.mean_score import MeanScore, mean_score
from tailsum.chains.refine import Refined
from tailsum.numerics.check import at_least, check_broadcast, check_sample_shape, check_whole
from tailsum.numerics.noise import gumbel
from tailsum.numerics.precision import full_precision
from tailsum.numerics.table import fits_budget, tile_rows
from tailsum.numerics.tensors import without_common, working_type
from tailsum.scores.factored import Factored, embedding_norms
from tailsum.scores.potential import Dense, Potential
from tailsum.scores.scored import Scored, blank_outside
from tailsum.sketch.proposal import Lookahead
from tailsum.sketch.selection import Subset
from tailsum.structure.base import RelaxedSample, Structure, Terms
from tailsum.structure.check import check_lead, check_potential, checked_lengths, node_potential

# So many tables of the scores of pairs of kept states, `[*batch, T-1, K, K]`, must fit the table budget, or none is made.
TABLES = {"cpu": 16}
TABLES_ELSEWHERE = 4


class Paths(NamedTuple):
    """The best paths, best first, and their scores (minus infinity where there are fewer paths than asked for)."""

    states: Int[Tensor, "k *batch T"]
    scores: Float[Tensor, "k *batch"]


class LinearChain(Structure[Tensor]):
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
        nodes = node_potential("emission", emission, "[*batch, T, N]")
        self._set(nodes, transition, lengths)

    def _set(self, nodes: Potential, transition: Tensor | Potential, lengths: Tensor | Sequence[int] | None) -> None:
        self.device = nodes.tensors[0].device
        *batch, length = nodes.lead
        self.node_shape, self.n_states = torch.Size((length,)), nodes.n_to
        if self.n_nodes < 1 or self.n_states < 1:
            raise ValueError(f"emission must have at least one position and one state: got {list(nodes.lead)} x N")
        pairs = check_lead("transition", transition, self.n_states, (length - 1,), self.device, "emission")
        shape = check_broadcast("transition", pairs.lead[:-1], torch.Size(batch), "emission's")
        shape, lengths = checked_lengths(lengths, shape, length, self.device)
        if lengths is not None:
            inside = torch.arange(self.n_nodes, device=self.device) < lengths[..., None]
            nodes = blank_outside(nodes, inside)
            pairs = blank_outside(pairs, inside[..., 1:]) if pairs.lead else pairs
        check_potential("emission", nodes)
        check_potential("transition", pairs)
        self.dtype = working_type(*nodes.tensors, *pairs.tensors)
        self.batch_shape, self.lengths = shape, lengths
        self._nodes, self._pairs = nodes.to(self.dtype), pairs.to(self.dtype)

    @property
    def n_nodes(self) -> int:
        """The number of positions, T."""
        return self.node_shape[0]

    # What the base asks for.

    def node_scores(self) -> Float[Tensor, "*batch T n"]:
        return self._nodes.block()[..., 0, :].expand(*self.batch_shape, self.n_nodes, -1)

    def pair_scores(self) -> Potential:
        return Dense(self._pairs.block()) if isinstance(self._pairs, Scored) else self._pairs

    def terms(self) -> tuple[Dense, Potential]:
        return Dense(self.node_scores()), self.pair_scores()

    def add_to_states(self, terms: Terms, extra: Float[Tensor, "*batch T n"]) -> Terms:
        nodes, pairs = terms
        return nodes.plus(Dense(extra)), pairs

    def _centred(self, terms: Terms) -> Terms:
        nodes, pairs = cast("tuple[Dense, Potential]", terms)
        nodes = nodes.map(lambda x: without_common(x, 1))
        pairs = pairs.map(lambda x: without_common(x, 2)) if isinstance(pairs, Dense) else pairs
        return nodes, pairs

    def pair_marginals(self) -> Float[Tensor, "*batch edge n n"]:
        """The probability of each pair of states of neighbouring positions."""
        return self._gradient(1, *self.batch_shape, self.n_nodes - 1, self.n_states, self.n_states)

    def state_norms(self) -> Float[Tensor, "*#batch_node n"]:
        return embedding_norms(
            self._nodes, self._pairs, "a Factored transition shared by all steps, or a Factored emission"
        )

    def sweep(self) -> ChainSweep:
        nodes = self.node_scores() if self.kept is None else self.node_scores() + self.log_weight
        return ChainSweep(nodes, self._pairs, self.lengths)

    def log_sum(self, terms: Terms) -> Float[Tensor, "*batch"]:
        messages = self._messages(terms)
        return final_log_sum(messages, self._length() - 1).to(self.dtype).reshape(self.batch_shape)

    def entropy(self) -> Float[Tensor, "*batch"]:
        with full_precision(self.device):
            terms = self._centred(self._tabled(self.terms()))
            found = self._mean_score(self._weighted(terms), terms)
        return super().entropy() if found is None else self._batched(found.log_partition - found.mean)

    def _expected(self, terms: Terms) -> Tensor:
        with full_precision(self.device):
            found = self._mean_score(self._weighted(self._centred(self._tabled(self.terms()))), terms)
        return super()._expected(terms) if found is None else self._batched(found.mean)

    def _tabled(self, terms: Terms) -> Terms:
        """The scores with a table of all pairs, if there is room for it."""
        nodes, pairs = cast("tuple[Dense, Potential]", terms)
        room = fits_budget(3 * self._table_bytes(pairs, pairs.lead))
        return (nodes, Dense(pairs.block())) if room else terms

    def _mean_score(self, own: Terms, terms: Terms) -> MeanScore | None:
        """Of `terms` along the paths of the chain with scores `own`; None if tables or the range of scores are too large."""
        (node, scores), (value, values) = cast("tuple[tuple[Dense, Potential], ...]", (own, terms))
        same, lead = values is scores, torch.broadcast_shapes(scores.lead, values.lead)
        if self.n_nodes == 1 or not fits_budget((3 if same else 4) * self._table_bytes(scores, lead)):
            return None

        def flat(pairs: Potential) -> Tensor:
            table = pairs.block().to(self.dtype).expand(*lead, -1, -1)
            return Dense(table).flat_params(self.batch_shape)[0]

        return mean_score(
            self._time_first(node.scores),
            flat(scores),
            self._time_first(value.finite().scores.to(self.dtype)),
            None if same else flat(values.finite()),
            self._length() - 1,
        )

    def _batched(self, x: Tensor) -> Tensor:
        return x.to(self.dtype).reshape(self.batch_shape)

    def _messages(self, terms: Terms) -> Forward:
        nodes, pairs = cast("tuple[Dense, Potential]", terms)
        return forward(self._time_first(nodes.scores), pairs.flat_params(self.batch_shape), self._length() - 1)

    def _time_first(self, nodes: Tensor) -> Tensor:
        """`[*batch, T, N]` as `[T, B, N]`."""
        return nodes.reshape(self.batch_shape.numel(), *nodes.shape[-2:]).transpose(0, 1).contiguous()

    def _gather(self, index: Int[Tensor, "*#batch T k"]) -> None:
        self._nodes = self._nodes.gather(None, index)
        pairs = self._pairs.gather(index[..., :-1, :], index[..., 1:, :])
        # Factors would be multiplied anew in each pass over the chain: a table is several times faster, if there is room.
        count = TABLES.get(self.device.type, TABLES_ELSEWHERE)
        room = fits_budget(count * self._table_bytes(pairs, pairs.lead))
        self._pairs = Dense(pairs.block()) if isinstance(pairs, Factored) and room else pairs

    def _table_bytes(self, pairs: Potential, lead: torch.Size) -> int:
        return lead.numel() * pairs.n_from * pairs.n_to * self.dtype.itemsize

    def parts(self, configuration: Int[Tensor, "*sample_batch T"]) -> Float[Tensor, "*sample_batch T n"]:
        used = F.one_hot(configuration, self.n_states).to(self.dtype)
        return used if self.lengths is None else torch.where(self._inside()[..., None], used, 0.0)

    def score(self, configuration: Int[Tensor, "*sample_batch T"]) -> Float[Tensor, "*sample_batch"]:
        """The score of given paths, in original states, kept or not: a sketch asks the whole chain.

        >>> LinearChain(torch.ones(4, 2), torch.zeros(2, 2)).score(torch.tensor([0, 1, 1, 0]))
        tensor(4.)
        """
        if self.kept is not None:
            return self.whole.score(configuration)
        states = check_whole("states", configuration)
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

    def refine(self, pilot: "LinearChain | None" = None, generator: torch.Generator | None = None) -> Refined:
        """Sharper entropy, marginals and gradients over all N states, from this sketch (and log Z, if it was far off).

        What the random choice of the kept states did to the answers is estimated and taken off. That needs messages
        from a second subset of the states, drawn without regard to the first: the landmarks of `Lookahead`, if that
        chose the sketch, or else `pilot`, an independent sketch of the same chain (drawn here unless given).

        >>> chain = LinearChain(torch.randn(9, 500), torch.randn(500, 500))
        >>> small = chain.sketch(20)
        >>> bool((small.refine().entropy() - chain.entropy()).abs() < 0.5)
        True
        """
        if self.kept is None:
            raise ValueError("refine needs a sketch: this chain is whole, and its answers are exact")
        if pilot is None:
            guide = self.kept.pilot or _pilot(self.whole.sketch(Lookahead().landmarks, generator=generator))
        elif not (isinstance(pilot, LinearChain) and pilot.kept and pilot.whole is self.whole and pilot is not self):
            raise ValueError(f"pilot must be another sketch of the same chain: got {pilot}")
        else:
            guide = _pilot(pilot)
        return Refined(self, guide)

    # Paths.

    def best(self, terms: Terms) -> Int[Tensor, "*batch T"]:
        return self._best_paths(terms, 1).states[0]

    @torch.no_grad()
    def topk(self, k: int) -> Paths:
        """The k paths of highest score, best first.

        >>> LinearChain(torch.tensor([[0.0, 1.0], [0.0, 2.0]]), torch.zeros(2, 2)).topk(3).states.tolist()
        [[1, 1], [0, 1], [1, 0]]
        """
        at_least(1, k=k)
        paths = self._best_paths(self._distinct(), k)
        return Paths(self._original(paths.states), paths.scores)

    def _best_paths(self, terms: Terms, k: int) -> Paths:
        nodes, pairs = cast("tuple[Dense, Potential]", terms)
        best = best_messages(self._time_first(nodes.scores), pairs.flat_params(self.batch_shape), k)
        best = best.reshape(self.n_nodes, *self.batch_shape, self.n_states, k)
        last = self._length().reshape(*self.batch_shape, 1) - 1
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
        return Paths(found, scores.movedim(-1, 0))

    def sample(
        self, sample_shape: Sequence[int] = (), generator: torch.Generator | None = None
    ) -> Int[Tensor, "*sample_batch T"]:
        """Exact samples from the model (forward filtering, backward sampling), in original states.

        >>> LinearChain(torch.randn(5, 3), torch.randn(3, 3)).sample((1000,)).shape
        torch.Size([1000, 5])
        """
        with torch.no_grad():
            check_sample_shape(sample_shape)
            messages, count = self._column_messages(), math.prod(sample_shape)
            chunk = tile_rows(messages[0].numel(), self.device)
            parts = [
                self._walk_back(messages, min(chunk, count - start), lambda x: gumbel(x, generator).argmax(-2))
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
        check_sample_shape(sample_shape)
        messages, noises = self._column_messages(), list[Tensor]()

        def choose(logits: Tensor) -> Tensor:
            noises.append(gumbel(torch.zeros_like(logits), generator))
            return (logits.masked_fill(_impossible(logits), 0.0) + noises[-1]).argmax(-2)

        with torch.no_grad():
            states = self._walk_back(messages, math.prod(sample_shape), choose)
        # Which states were chosen is known: now the logits of all positions at once, which carry the gradient.
        logits = self._given_next(messages, states)
        impossible = _impossible(logits)
        logits = logits.masked_fill(impossible, 0.0)
        chances = logits.softmax(-2)
        weights = ((logits + torch.stack(noises[::-1], -3)) / temperature).softmax(-2)
        if hard:
            weights = torch.zeros_like(weights).scatter(-2, states[..., None, :], 1.0) + weights - weights.detach()
        outside = impossible | ~self._inside()[..., None, None]
        weights, chances = (self._samples_first(x.masked_fill(outside, 0.0), sample_shape) for x in (weights, chances))
        states = self._original(self._samples_first(states, sample_shape))
        return RelaxedSample(weights, self.states, states, chances)

    def _column_messages(self) -> Tensor:
        """Forward messages, each but for a constant, as `[T, *batch, N, 1]`."""
        messages = self._messages(self._weighted(self.terms())).log_mass
        return messages.reshape(self.n_nodes, *self.batch_shape, self.n_states, 1)

    def _walk_back(self, messages: Tensor, count: int, choose: Callable[[Tensor], Tensor]) -> Tensor:
        """`count` paths `[*batch, T, count]`, from the last position back, each state by `choose(logits [.., N, count])`.

        The logits are those of the state given the one chosen after it.
        """
        pairs = self.pair_scores()
        last = self._length().reshape(*self.batch_shape, 1, 1) - 1
        states: list[Tensor] = []
        for t in range(self.n_nodes - 1, -1, -1):
            logits = messages[t].expand(*messages[t].shape[:-1], count)
            if states:
                logits = logits + torch.where(last > t, pairs.at_step(t).block(None, states[-1]), 0.0)
            states.append(choose(logits))
        return torch.stack(states[::-1], -2)

    def _given_next(self, messages: Tensor, states: Tensor) -> Tensor:
        """The logits `[*batch, T, N, count]` of each position's state given the next one in `states [*batch, T, count]`."""
        following = self.pair_scores().block(None, states[..., 1:, :])
        followed = self._inside()[..., 1:, None, None]
        return messages.movedim(0, -3) + F.pad(torch.where(followed, following, 0.0), (0, 0, 0, 0, 0, 1))

    @staticmethod
    def _samples_first(states: Tensor, sample_shape: Sequence[int]) -> Tensor:
        states = states.movedim(-1, 0)
        return states.reshape(*sample_shape, *states.shape[1:])

    def _original(self, configuration: Tensor) -> Tensor:
        """Original numbers of states `[*sample, *batch, T]` of this model, zeros in the padding."""
        states = configuration
        if self.kept is not None:
            everything = self.states.expand(*states.shape, -1)
            states = everything.gather(-1, states[..., None])[..., 0]
        return states if self.lengths is None else torch.where(self._inside(), states, 0)


def _impossible(logits: Tensor) -> Tensor:
    """Where no state is possible: `[..., 1, count]`."""
    return (logits == -math.inf).all(-2, keepdim=True)


def _pilot(sketch: LinearChain) -> Subset:
    """The kept states of all positions but the first, which has none before it to send a message to."""
    return Subset(sketch.states[..., 1:, :], sketch.log_weight[..., 1:, :])
