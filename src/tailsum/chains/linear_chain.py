"""Linear chains: `score(x) = sum_t emission[t, x_t] + sum_t transition[t, x_t, x_{t+1}]`.

Positions are numbered `0 .. T-1`, states `0 .. N-1`; transition t goes from position t to position t+1, (from, to).
Sequences of a batch may have different `lengths`; scores in the padding are ignored. States of paths are -1
there, and throughout where no path is possible.

The paper's Algorithm 1 (randomized forward, Eq. 17) is `chain.sketch(proposal=LocalGlobal(), selection=
TopAndSample(K1, K2)).log_partition()`, its Algorithm 3 the same with `entropy()`, its Algorithm 4 (Eqs. 23 to 28) `rsample()`.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.chains.best_paths import best_paths
from tailsum.chains.chain_marginals import chain_marginals
from tailsum.chains.chain_sweep import ChainSweep
from tailsum.chains.forward import Forward, forward_messages, log_partition
from tailsum.chains.fused_messages import suits_log_steps
from tailsum.chains.mean_score import mean_score
from tailsum.chains.refine import Refined
from tailsum.numerics.check import at_least, check_broadcast, check_sample_shape, check_temperature
from tailsum.numerics.kernels import fits_tiles, fused
from tailsum.numerics.noise import gumbel, seed_from
from tailsum.numerics.precision import full_precision
from tailsum.numerics.reduce import LogProduct, Reduce, log_sum_exp
from tailsum.numerics.table import fits_budget, tile_rows
from tailsum.numerics.tensors import as_values, flattened, without_common, working_type
from tailsum.scores.factored import Factored, embedding_norms
from tailsum.scores.potential import Dense, Potential
from tailsum.sketch.selection import Subset
from tailsum.structure.base import Structure
from tailsum.structure.check import (
    check_lead,
    check_nodes,
    check_potential,
    check_states,
    check_subset,
    checked_lengths,
    node_potential,
)
from tailsum.structure.k_best import Best
from tailsum.structure.relaxed import RelaxedSample
from tailsum.structure.terms import each, recordable
from tailsum.structure.transforms import differentiable, outside_transforms, with_recordable

# How many tables of the scores of pairs of kept states, `[*batch, T-1, K, K]`, must fit the table budget for one to be made.
TABLES = {"cpu": 16}
TABLES_ELSEWHERE = 4


class ChainTerms(NamedTuple):
    """Scores of the states of each position `[*batch, T, N]`, and of the pairs of neighbouring ones."""

    nodes: Dense
    pairs: Potential


class LinearChain(Structure[ChainTerms, Tensor]):
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
        self._set(node_potential("emission", emission, "[*batch, T, N]"), transition, lengths)

    def _set(
        self,
        nodes: Potential,
        transition: Tensor | Potential,
        lengths: Tensor | Sequence[int] | None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.device = nodes.tensors[0].device
        *batch, length = nodes.lead
        self.node_shape, self.n_states = torch.Size((length,)), nodes.n_to
        if self.n_nodes < 1 or self.n_states < 1:
            raise ValueError(f"emission must have at least one position and one state: got {list(nodes.lead)} x N")
        pairs = check_lead("transition", transition, self.n_states, (length - 1,), self.device, "emission")
        shape = check_broadcast("transition", pairs.lead[:-1], torch.Size(batch), "emission's")
        self.batch_shape, self.lengths = checked_lengths(lengths, shape, length, self.device)
        self._emission, self._transition = nodes, pairs
        check_nodes("emission", self._blanked(nodes.map(torch.detach)))
        check_potential("transition", self._blanked(pairs.map(torch.detach), 1))
        self.dtype = dtype or working_type(*nodes.tensors, *pairs.tensors)

    def _blanked(self, given: Potential, first: int = 0) -> Potential:
        """Scores of the positions from `first` on, zero in the padding."""
        return given if self.lengths is None else given.blank_outside(self.inside()[..., first:])

    @property
    def emission(self) -> Potential:
        """Scores of the states of each position, as a potential from one state to N; zero in the padding."""
        return self._blanked(self._emission).to(self.dtype)

    @property
    def transition(self) -> Potential:
        """Scores of the pairs of neighbouring states; zero in the padding."""
        return self._blanked(self._transition, 1).to(self.dtype)

    @property
    def n_nodes(self) -> int:
        """The number of positions, T."""
        return self.node_shape[0]

    def node_scores(self) -> Float[Tensor, "*batch T n"]:
        return self.emission.block()[..., 0, :].expand(*self.batch_shape, self.n_nodes, -1)

    def pair_scores(self) -> Potential:
        """Scores of pairs of neighbouring states, evaluated if they come from a function."""
        return self.transition.evaluated()

    def terms(self) -> ChainTerms:
        return ChainTerms(Dense(self.node_scores()), self.pair_scores())

    def gather(self, index: Int[Tensor, "*#batch T k"]) -> "LinearChain":
        pairs = self.transition.gather(index[..., :-1, :], index[..., 1:, :])
        # Each pass over the chain would multiply the factors again: a table is several times faster, if there is room.
        count = TABLES.get(self.device.type, TABLES_ELSEWHERE)
        room = isinstance(pairs, Factored) and fits_budget(count * self._table_bytes(pairs, pairs.lead))
        return self.replaced(_emission=self.emission.gather(None, index), _transition=pairs.tabled() if room else pairs)

    def total(self, terms: ChainTerms, reduce: Reduce) -> Float[Tensor, "*batch"]:
        if reduce is log_sum_exp:
            nodes, params = self._flat(terms)
            return self._batched(log_partition(nodes, params, self.sequence_lengths() - 1))
        nodes, pairs = terms.nodes.scores, terms.pairs
        shared = None if pairs.lead else LogProduct(pairs.block(), reduce)
        alpha, sums = nodes[..., 0, :], list[Tensor]()
        for t in range(self.n_nodes):
            if t > 0:
                step = shared or LogProduct(pairs.at_step(t - 1).block(), reduce)
                alpha = step(alpha[..., None, :])[..., 0, :] + nodes[..., t, :]
            sums.append(reduce(alpha, -1))
        last = self.sequence_lengths().reshape(*self.batch_shape, 1) - 1
        return torch.stack(sums, -1).gather(-1, last)[..., 0]

    def log_partition(self) -> Float[Tensor, "*batch"]:
        """Log of the sum of `exp(score)` over all paths; in a sketch, of its unbiased estimate."""
        if self.n_nodes > 1 and fused(*self._emission.tensors, *self._transition.tensors):
            terms = self.terms()
            if suits_log_steps(self.batch_shape.numel(), self.n_states, self._flat(terms)[1]):
                with full_precision(self.device):  # the kernels see to finite masks
                    return self.log_sum(self.weighted(terms)).to(self.dtype)
        return super().log_partition()

    def _flat(self, terms: ChainTerms) -> tuple[Float[Tensor, "B T n"], tuple[Tensor, ...]]:
        nodes = terms.nodes.scores
        return nodes.reshape(self.batch_shape.numel(), *nodes.shape[-2:]), terms.pairs.flat_params(self.batch_shape)

    def _messages(self, terms: ChainTerms) -> Forward:
        nodes, params = self._time_first(terms.nodes.scores), terms.pairs.flat_params(self.batch_shape)
        return forward_messages(nodes, params, self.sequence_lengths() - 1)

    # Entropy and divergences.

    def centred(self, terms: ChainTerms) -> ChainTerms:
        """With a table of all pairs, if there is room for it."""
        nodes, pairs = terms
        pairs = pairs.tabled() if fits_budget(3 * self._table_bytes(pairs, pairs.lead)) else pairs
        return ChainTerms(nodes.map(lambda x: without_common(x, 1)), pairs.centred())  # or else `mean_score` does it

    def log_sum_and_mean(
        self, own: ChainTerms, values: ChainTerms
    ) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
        """By messages that carry means (`mean_score`), unless the range of scores is too large for that."""
        if self.n_nodes == 1:
            return super().log_sum_and_mean(own, values)
        same, lead = values.pairs is own.pairs, torch.broadcast_shapes(own.pairs.lead, values.pairs.lead)
        kept = fits_budget((3 if same else 4) * self._table_bytes(own.pairs, lead))

        def flat(pairs: Potential) -> tuple[Tensor, ...]:
            pairs = (pairs.tabled() if kept else pairs).to(self.dtype)
            return tuple(flattened(x.expand(*lead, -1, -1), 2, self.batch_shape) for x in pairs.table_params())

        found = mean_score(
            self._time_first(own.nodes.scores),
            flat(own.pairs),
            self._time_first(as_values(values.nodes.scores.to(self.dtype))),
            None if same else flat(values.pairs),
            self.sequence_lengths() - 1,
            kept,
        )
        if found is None:  # the range is too wide: in float32, differences of such sums would have no digits
            wide = each(lambda term: term.to(torch.float64), own)
            also = each(lambda term, given, same: same if term is given else term.to(torch.float64), values, own, wide)
            return super().log_sum_and_mean(wide, also)
        return self._batched(found.log_partition), self._batched(found.mean)

    def _batched(self, x: Tensor) -> Tensor:
        """`[B]` as `[*batch]`, in float64: sums of long chains are far larger than the differences of two of them."""
        return x.reshape(self.batch_shape)

    def _time_first(self, nodes: Tensor) -> Tensor:
        """`[*batch, T, N]` as `[T, B, N]`."""
        return nodes.reshape(self.batch_shape.numel(), *nodes.shape[-2:]).transpose(0, 1).contiguous()

    def _table_bytes(self, pairs: Potential, lead: torch.Size) -> int:
        return lead.numel() * pairs.n_from * pairs.n_to * self.dtype.itemsize

    def marginals(self) -> Float[Tensor, "*batch T n"]:
        """The probability of each state at each position."""
        recording, own = torch.is_grad_enabled(), self.summed()
        with torch.inference_mode(False), torch.set_grad_enabled(recording), full_precision(self.device):
            nodes, pairs = recordable(own)

            def terms(tensors: Sequence[Tensor]) -> ChainTerms:
                rest = iter(tensors[1:])
                return ChainTerms(Dense(tensors[0]), pairs.map(lambda _: next(rest)))

            def mean(tensors: Sequence[Tensor], values: Tensor) -> Tensor:
                own = terms(tensors)
                nothing = own.pairs.map(lambda x: x.new_zeros(()).expand(x.shape))
                return self.log_sum_and_mean(own, ChainTerms(Dense(values), nothing))[1]

            return chain_marginals(lambda x: self.log_sum(terms(x)), mean, (*nodes.tensors, *pairs.tensors))

    @differentiable
    def pair_marginals(self) -> Float[Tensor, "*batch edge n n"]:
        """The probability of each pair of states of neighbouring positions."""
        return self.term_gradients(1, lambda x: x.expand(*self.batch_shape, self.n_nodes - 1, -1, -1))[0]

    # Sketches.

    def state_norms(self) -> Float[Tensor, "*#batch_node n"]:
        needed = "a Factored transition shared by all steps, or a Factored emission"
        return embedding_norms(self.emission, self.transition, needed)

    def sweep(self) -> ChainSweep:
        return ChainSweep(self.weighted_nodes(), self.transition, self.lengths, same_states=self.kept is None)

    @outside_transforms
    def refine(self, pilot: "LinearChain | None" = None, generator: torch.Generator | None = None) -> Refined:
        """Sharper entropy, marginals and gradients over all N states, from this sketch (and log Z, if it was far off).

        The error that the random choice of the kept states caused is estimated and subtracted. That needs messages from a
        second, independent subset of the states: the landmarks of `Lookahead`, if that chose the sketch, or else `pilot`,
        an independent sketch of the same chain (drawn here unless given).

        >>> chain = LinearChain(torch.randn(9, 500), torch.randn(500, 500))
        >>> small = chain.sketch(20)
        >>> bool((small.refine().entropy() - chain.entropy()).abs() < 0.5)
        True
        """
        if self.kept is None:
            raise ValueError("refine needs a sketch: this chain is whole, and its answers are exact")
        whole = self.whole
        if pilot is None:
            guide = self.kept.pilot or _pilot(whole.sketch(ChainSweep.landmarks, generator=generator))
        elif not (isinstance(pilot, LinearChain) and pilot.kept and pilot.whole is whole and pilot is not self):
            raise ValueError(f"pilot must be another sketch of the same chain: got {pilot}")
        else:
            guide = _pilot(pilot)
        check_subset(guide, whole.batch_shape, torch.Size((whole.n_nodes - 1,)), whole.n_states, "pilot")
        kept, source = Subset(self.states, self.log_weight), with_recordable(whole)
        return Refined(source.node_scores, source.transition, kept, guide, source.sequence_lengths() - 1)

    # Paths.

    def used(self, configuration: Int[Tensor, "*sample_batch T"]) -> tuple[Float[Tensor, "*sample_batch T n"], ...]:
        used = super().used(configuration)[0]
        return (used if self.lengths is None else torch.where(self.inside()[..., None], used, 0.0),)

    def to_global(self, configuration: Tensor) -> Tensor:
        """Global ids, -1 in the padding."""
        states = super().to_global(configuration)
        return states if self.lengths is None else torch.where(self.inside(), states, -1)

    def check_configuration(self, configuration: Int[Tensor, "*given T"]) -> Int[Tensor, "*sample_batch T"]:
        return check_states(configuration, self.inside(), self.node_shape, self.n_states)

    def score_of(self, configuration: Int[Tensor, "*sample_batch T"]) -> Float[Tensor, "*sample_batch"]:
        """The scores along given paths.

        >>> LinearChain(torch.ones(4, 2), torch.zeros(2, 2)).score(torch.tensor([0, 1, 1, 0]))
        tensor(4.)
        """
        states, inside = configuration.clamp(min=0), self.inside()
        nodes = self.emission.block(None, states[..., None])[..., 0, 0]
        pairs = self.transition.at(states[..., :-1], states[..., 1:])
        found = ((nodes, inside), (pairs, inside[..., 1:]))
        # In float64, as long sums of large scores would lose digits.
        own, between = (torch.where(within, x, 0.0).sum(-1, dtype=torch.float64) for x, within in found)
        return (own + between).to(self.dtype).masked_fill(configuration[..., 0] < 0, -math.inf)

    def best(self, terms: ChainTerms) -> Int[Tensor, "*batch T"]:
        return self._best_paths(terms, 1)[0]

    def topk(self, k: int) -> Best:
        """The k paths of highest score, best first, or as many as there are.

        >>> chain = LinearChain(torch.tensor([[0.0, 1.0], [0.0, 2.0]]), torch.zeros(2, 2))
        >>> chain.topk(3).configurations.tolist()
        [[1, 1], [0, 1], [1, 0]]
        """
        at_least(1, k=k)
        with torch.no_grad():
            paths = self.to_global(self._best_paths(self.distinct(), k))
            order = self.score(paths).sort(dim=0, descending=True, stable=True).indices  # the search rounds more
            paths = paths.take_along_dim(order[..., None], 0)
            if self.batch_shape.numel():
                paths = paths[(paths[..., 0] >= 0).reshape(len(paths), self.batch_shape.numel()).any(-1)]
        return Best(paths, self.score(paths))

    def _best_paths(self, terms: ChainTerms, k: int) -> Int[Tensor, "k *batch T"]:
        nodes, params = self._time_first(terms.nodes.scores), terms.pairs.flat_params(self.batch_shape)
        paths = best_paths(nodes, params, self.sequence_lengths() - 1, k)
        return paths.reshape(len(paths), *self.batch_shape, self.n_nodes)

    def drawn(
        self, terms: ChainTerms, sample_shape: Sequence[int], generator: torch.Generator | None
    ) -> Int[Tensor, "*sample_batch T"]:
        """Forward filtering, backward sampling.

        >>> LinearChain(torch.randn(5, 3), torch.randn(3, 3)).sample((1000,)).shape
        torch.Size([1000, 5])
        """
        messages = self._column_messages(terms)
        possible = self._possible(messages)
        chunk = tile_rows(messages[0].numel(), self.device)
        params = terms.pairs.flat_params(self.batch_shape)
        kernel = bool(messages.numel()) and fits_tiles(params) and fused(messages, *params)

        def draw(count: int) -> Tensor:
            if kernel:
                return self._walked(messages, params, count, seed_from(generator), possible)
            found = self._walk_back(messages, terms.pairs, count, lambda x: gumbel(x, generator).argmax(-2))
            return torch.where(possible[..., None, None], found, -1).movedim(-1, 0)

        count = math.prod(sample_shape)
        return self.chunked(draw, count, max(1, count) if kernel else chunk, sample_shape)

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
        check_temperature(temperature)
        check_sample_shape(sample_shape)
        terms, noises = self.summed(), list[Tensor]()
        messages = self._column_messages(terms)
        possible = self._possible(messages)[..., None]  # [*batch, 1]

        def choose(logits: Tensor) -> Tensor:
            noises.append(gumbel(torch.zeros_like(logits), generator))
            return (logits.masked_fill(_impossible(logits), 0.0) + noises[-1]).argmax(-2)

        with torch.no_grad():
            states = self._walk_back(messages, terms.pairs, math.prod(sample_shape), choose)
        # Given the chosen states, the logits of all positions at once: these carry the gradient.
        following = terms.pairs.block(None, states[..., 1:, :])
        following = torch.where(self.inside()[..., 1:, None, None], following, 0.0)
        logits = messages.movedim(0, -3) + F.pad(following, (0, 0, 0, 0, 0, 1))  # [*batch, T, N, count]
        impossible = _impossible(logits)
        logits = logits.masked_fill(impossible, 0.0)
        chances = logits.softmax(-2)
        weights = ((logits + torch.stack(noises[::-1], -3)) / temperature).softmax(-2)
        if hard:
            weights = torch.zeros_like(weights).scatter(-2, states[..., None, :], 1.0) + weights - weights.detach()
        outside = impossible | ~(self.inside() & possible)[..., None, None]
        weights, chances = (self._samples_first(x.masked_fill(outside, 0.0), sample_shape) for x in (weights, chances))
        states = self.to_global(self._samples_first(torch.where(possible[..., None], states, -1), sample_shape))
        return RelaxedSample(weights, self.states, states, chances)

    def _column_messages(self, terms: ChainTerms) -> Tensor:
        """Forward messages, each up to a constant, as `[T, *batch, N, 1]`."""
        messages = self._messages(terms).log_mass
        return messages.reshape(self.n_nodes, *self.batch_shape, self.n_states, 1)

    def _possible(self, messages: Tensor) -> Tensor:
        """Which sequences have a path: `[*batch]`."""
        last = self.sequence_lengths().reshape(1, *self.batch_shape, 1, 1) - 1
        return (messages.take_along_dim(last, 0)[0] > -math.inf).any((-2, -1))

    def _walked(
        self, messages: Tensor, params: tuple[Tensor, ...], count: int, seed: int, possible: Tensor
    ) -> Int[Tensor, "count *batch T"]:
        from tailsum.numerics.fused.paths import walk  # noqa: PLC0415
        from tailsum.numerics.fused.scores import Pairs  # noqa: PLC0415

        flat = messages.reshape(self.n_nodes, -1, self.n_states).contiguous()
        paths = walk(flat, Pairs(params), self.sequence_lengths() - 1, count, seed)
        return torch.where(possible[..., None], paths.reshape(count, *self.batch_shape, self.n_nodes), -1)

    def _walk_back(self, messages: Tensor, pairs: Potential, count: int, choose: Callable[[Tensor], Tensor]) -> Tensor:
        """`count` paths `[*batch, T, count]`, from the last position back.

        `choose(logits [.., N, count])` draws each state, by its logits given the state chosen at the next position.
        """
        last = self.sequence_lengths().reshape(*self.batch_shape, 1, 1) - 1
        states: list[Tensor] = []
        for t in range(self.n_nodes - 1, -1, -1):
            logits = messages[t].expand(*messages[t].shape[:-1], count)
            if states:
                logits = logits + torch.where(last > t, pairs.at_step(t).block(None, states[-1]), 0.0)
            states.append(choose(logits))
        return torch.stack(states[::-1], -2)

    @staticmethod
    def _samples_first(found: Tensor, sample_shape: Sequence[int]) -> Tensor:
        return found.movedim(-1, 0).reshape(*sample_shape, *found.shape[:-1])


def _impossible(logits: Tensor) -> Tensor:
    """Where no state is possible: `[..., 1, count]`."""
    return (logits == -math.inf).all(-2, keepdim=True)


def _pilot(sketch: LinearChain) -> Subset:
    """The kept states of all positions but the first, which sends no message back."""
    return Subset(sketch.states[..., 1:, :], sketch.log_weight[..., 1:, :])
