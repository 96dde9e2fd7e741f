"""Linear chains: `score(x) = sum_t emission[t, x_t] + sum_t transition[t, x_t, x_{t+1}]`.

Positions are numbered `0 .. T-1`, states `0 .. N-1`; transition t goes from position t to position t+1, (from, to).
Sequences of a batch may have different `lengths`; scores in the padding are ignored. States of paths are -1 in the
padding, and throughout where no path is possible.

The paper's Algorithm 1 (randomized forward, Eq. 17) is `chain.sketch(proposal=LocalGlobal(), selection=
TopAndSample(K1, K2)).log_partition()`. Algorithm 3 is the same with `entropy()`, Algorithm 4 (Eqs. 23 to 28) with `rsample()`.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.audience import for_authors
from tailsum.chains.backward_walk import BackwardWalk
from tailsum.chains.best_paths import best_paths, small_ranked_paths
from tailsum.chains.chain_marginals import chain_marginals, pair_chances, state_chances
from tailsum.chains.chain_sweep import ChainSweep
from tailsum.chains.forward import log_partition
from tailsum.chains.mean_score import mean_score, small_log_sum_and_mean
from tailsum.chains.one_launch import ChainTerms, InOneLaunch
from tailsum.chains.plan import RANKED
from tailsum.chains.refine import Refined
from tailsum.chains.small_chains import alike
from tailsum.numerics.check import at_least, check_broadcast, check_sample_shape, check_temperature
from tailsum.numerics.reduce import Reduce, log_sum_exp
from tailsum.numerics.tensors import as_values, flattened, unmasked, without_common, working_type
from tailsum.numerics.tiles import fits_budget
from tailsum.scores.factored import Factored, embedding_norms
from tailsum.scores.potential import Dense, Potential
from tailsum.sketch.selection import Subset
from tailsum.structure.check import (
    check_lead,
    check_nodes_and_pairs,
    check_states,
    check_subset,
    checked_lengths,
    node_potential,
)
from tailsum.structure.derivatives import recording_as_before
from tailsum.structure.k_best import Best
from tailsum.structure.relaxed import RelaxedSample
from tailsum.structure.terms import each
from tailsum.structure.transforms import differentiable, outside_transforms, with_recordable

# A sketch computes a table of the scores of pairs of kept states, `[*batch, T-1, K, K]`, if this many fit the table budget.
TABLES, TABLES_ON_CPU = 4, 16


class LinearChain(InOneLaunch):
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
        checked: bool = False,
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
        if not checked:
            given = self._blanked(nodes.map(torch.detach)), self._blanked(pairs.map(torch.detach), 1)
            check_nodes_and_pairs(("emission", given[0]), ("transition", given[1]))
        self.dtype = dtype or working_type(*nodes.tensors, *pairs.tensors)

    def _blanked(self, scores: Potential, first: int = 0) -> Potential:
        """Scores of the positions from `first` on, zero in the padding."""
        return scores if self.lengths is None else scores.blank_outside(self.inside()[..., first:])

    @property
    def emission(self) -> Potential:
        """Scores of the states of each position, a potential from one state to N; zero in the padding."""
        return self._blanked(self._emission).to(self.dtype)

    @property
    def transition(self) -> Potential:
        """Scores of the pairs of neighbouring states; zero in the padding."""
        return self._blanked(self._transition, 1).to(self.dtype)

    @property
    def n_nodes(self) -> int:
        # The number of positions, T.
        return self.node_shape[0]

    def node_scores(self) -> Float[Tensor, "*batch T n"]:
        return self.emission.block().squeeze(-2).expand(*self.batch_shape, self.n_nodes, -1)

    @for_authors
    def pair_scores(self) -> Potential:
        """Scores of pairs of neighbouring states, evaluated if they come from a function."""
        return self.transition.evaluated()

    def terms(self) -> ChainTerms:
        return ChainTerms(Dense(self.node_scores()), self.pair_scores())

    def gather(self, index: Int[Tensor, "*#batch T k"]) -> "LinearChain":
        pairs = self.transition.gather(index[..., :-1, :], index[..., 1:, :])
        # Each pass over the chain would multiply the factors again: a table is several times faster, if there is room.
        pairs = pairs.within(TABLES_ON_CPU if self.device.type == "cpu" else TABLES)
        return self.replaced(_emission=self.emission.gather(None, index), _transition=pairs)

    def total(self, terms: ChainTerms, reduce: Reduce) -> Float[Tensor, "*batch"]:
        assert reduce is log_sum_exp  # best paths and samples have recursions of their own
        nodes, pairs = terms.nodes.scores, terms.pairs.flat(self.batch_shape)
        nodes = nodes.reshape(self.batch_shape.numel(), *nodes.shape[-2:])
        return log_partition(nodes, pairs, self.sequence_lengths() - 1).reshape(self.batch_shape)

    def _time_first(self, nodes: Float[Tensor, "*batch T n"]) -> Float[Tensor, "T B n"]:
        return nodes.reshape(self.batch_shape.numel(), *nodes.shape[-2:]).transpose(0, 1).contiguous()

    # Entropy and divergences.

    def centred(self, terms: ChainTerms) -> ChainTerms:
        nodes, pairs = terms  # factors as a table, if there is room for it; else `mean_score` centres them
        pairs = pairs.within(3) if pairs.by_parts else pairs
        return ChainTerms(nodes.map(lambda x: without_common(x, 1)), pairs.centred())

    def log_sum_and_mean(
        self, own: ChainTerms, values: ChainTerms
    ) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
        """By messages that carry means (`mean_score`), unless the scores differ too much for that."""
        if self.n_nodes == 1:
            return super().log_sum_and_mean(own, values)
        scores, other = self.tables_of(own), self.tables_of(values)
        if scores is not None and other is not None:
            found = small_log_sum_and_mean(*alike(scores, other), last=self.last())
            return found[0].reshape(self.batch_shape), found[1].reshape(self.batch_shape)
        if not own.pairs.by_parts:
            return self._wide_log_sum_and_mean(own, values)
        same, lead = values.pairs is own.pairs, torch.broadcast_shapes(own.pairs.lead, values.pairs.lead)
        kept = fits_budget((3 if same else 4) * self._table_bytes(own.pairs, lead))

        def flat(pairs: Potential) -> Potential:
            pairs = (pairs.tabled() if kept or not pairs.by_parts else pairs.operator()).to(self.dtype)
            return pairs.map(lambda x: flattened(x.expand(*lead, -1, -1), 2, self.batch_shape))

        means = mean_score(
            self._time_first(own.nodes.scores),
            flat(own.pairs),
            self._time_first(as_values(values.nodes.scores.to(self.dtype))),
            None if same else flat(values.pairs),
            self.sequence_lengths() - 1,
            kept,
        )
        if means is None:  # the range is too wide
            return self._wide_log_sum_and_mean(own, values)
        log_sum, mean = means  # in float64: sums of long chains are far larger than their differences
        return log_sum.reshape(self.batch_shape), mean.reshape(self.batch_shape)

    def _wide_log_sum_and_mean(self, own: ChainTerms, values: ChainTerms) -> tuple[Tensor, Tensor]:
        """By the slope of the log-partition: in float32, differences of such sums would have no digits."""
        wide = each(lambda term: term.to(torch.float64), own)
        also = each(lambda term, mine, same: same if term is mine else term.to(torch.float64), values, own, wide)
        return super().log_sum_and_mean(wide, also)

    def _table_bytes(self, pairs: Potential, lead: torch.Size) -> int:
        return lead.numel() * pairs.n_from * pairs.n_to * self.dtype.itemsize

    def marginals(self) -> Float[Tensor, "*batch T n"]:
        return self._chances(of_pairs=False) if (chances := self.plain_marginals()) is None else chances

    @differentiable
    def pair_marginals(self) -> Float[Tensor, "*batch edge n n"]:
        """The probability of each pair of states at neighbouring positions."""
        return self._chances(of_pairs=True)

    def _chances(self, of_pairs: bool) -> Tensor:
        with recording_as_before(self.device, self.summed()) as (nodes, pairs):

            def terms(tensors: Sequence[Tensor]) -> ChainTerms:
                rest = iter(tensors[1:])
                return ChainTerms(Dense(tensors[0]), pairs.map(lambda _: next(rest)))

            def mean(tensors: Sequence[Tensor], values: Tensor) -> Tensor:
                own = ChainTerms(nodes.zeros(), Dense(values)) if of_pairs else ChainTerms(Dense(values), pairs.zeros())
                return self.log_sum_and_mean(terms(tensors), own)[1]

            def chances(tensors: Sequence[Tensor]) -> Tensor:
                states = state_chances(lambda x: self.log_sum(terms(x)), tensors)
                return self._pair_chances(terms(tensors), states) if of_pairs else states

            return chain_marginals(chances, mean, (*nodes.tensors, *pairs.tensors))

    @torch.no_grad()
    def _pair_chances(self, terms: ChainTerms, states: Tensor) -> Tensor:
        node, pairs = self._time_first(terms.nodes.scores), terms.pairs.flat(self.batch_shape)
        states = states.reshape(node.shape[1], *states.shape[-2:])
        chances = pair_chances(node, pairs, self.sequence_lengths() - 1, states)
        return chances.reshape(*self.batch_shape, *chances.shape[1:])

    # Sketches.

    def state_norms(self) -> Float[Tensor, "*#batch_node n"]:
        needed = "a Factored transition shared by all steps, or a Factored emission"
        return embedding_norms(self.emission, self.transition, needed)

    def sweep(self) -> ChainSweep:
        return ChainSweep(self.weighted_nodes(), self.transition, self.lengths, same_states=self.kept is None)

    @outside_transforms
    def refine(self, pilot: "LinearChain | None" = None, generator: torch.Generator | None = None) -> Refined:
        """More accurate entropy, marginals and gradients over all N states (and log Z, if this sketch was far off).

        The error caused by the random choice of the kept states is estimated and subtracted. This needs messages from a
        second, independent subset of the states: the landmarks of `Lookahead`, if that chose the sketch, or else `pilot`,
        an independent sketch of the same chain (drawn here if not given).

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

    def check_configuration(self, configuration: Int[Tensor, "*given T"]) -> Int[Tensor, "*sample_batch T"]:
        return check_states(configuration, self.inside(), self.node_shape, self.n_states)

    def score_of(self, configuration: Int[Tensor, "*sample_batch T"]) -> Float[Tensor, "*sample_batch"]:
        """The scores along paths.

        >>> LinearChain(torch.ones(4, 2), torch.zeros(2, 2)).score(torch.tensor([0, 1, 1, 0]))
        tensor(4.)
        """
        states = configuration.clamp(min=0)
        nodes = self.emission.block(None, states[..., None])[..., 0, 0]
        pairs = self.transition.at(states[..., :-1], states[..., 1:])
        if self.lengths is not None:
            inside = self.inside()
            nodes, pairs = torch.where(inside, nodes, 0.0), torch.where(inside[..., 1:], pairs, 0.0)
        # In float64, as long sums of large scores would lose digits.
        return (
            (nodes.sum(-1, dtype=torch.float64) + pairs.sum(-1, dtype=torch.float64))
            .to(self.dtype)
            .masked_fill(configuration[..., 0] < 0, -math.inf)
        )

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
            scores = self.in_one_launch() if self.kept is None and 1 < k <= RANKED else None
            if scores is None:
                paths = self.to_global(self._best_paths(self.distinct(), k))
            else:
                paths = small_ranked_paths(*scores, k=k, last=self.last()).reshape(k, *self.batch_shape, -1)
        scores = unmasked(self.whole.score_of(paths))
        order = scores.detach().sort(dim=0, descending=True, stable=True).indices  # more exact than the search
        paths, scores = paths.take_along_dim(order[..., None], 0), scores.gather(0, order)
        if self.batch_shape.numel():
            found = (paths[..., 0] >= 0).reshape(len(paths), self.batch_shape.numel()).any(-1).sum().item()
            paths, scores = paths[:found], scores[:found]
        return Best(paths, scores)

    def _best_paths(self, terms: ChainTerms, k: int) -> Int[Tensor, "k *batch T"]:
        nodes, pairs = terms.nodes.scores, terms.pairs.flat(self.batch_shape)
        nodes = nodes.reshape(self.batch_shape.numel(), *nodes.shape[-2:])
        paths = best_paths(nodes, pairs, self.sequence_lengths() - 1, k)
        return paths.reshape(len(paths), *self.batch_shape, self.n_nodes)

    def drawn(
        self, terms: ChainTerms, sample_shape: Sequence[int], generator: torch.Generator | None
    ) -> Int[Tensor, "*sample_batch T"]:
        """Forward filtering, backward sampling.

        >>> LinearChain(torch.randn(5, 3), torch.randn(3, 3)).sample((1000,)).shape
        torch.Size([1000, 5])
        """
        walk, count = self._backward_walk(terms), math.prod(sample_shape)
        return self.chunked(lambda some: walk.sample(some, generator), count, walk.at_a_time(count), sample_shape)

    def rsample(
        self,
        temperature: float = 1.0,
        hard: bool = False,
        generator: torch.Generator | None = None,
        sample_shape: Sequence[int] = (),
    ) -> RelaxedSample:
        """Relaxed samples, differentiable in all scores: Gumbel backward sampling, the paper's Algorithm 4.

        As the temperature goes to zero the weights become one-hot. `hard=True` makes them one-hot and keeps the relaxed
        gradient (straight-through).

        >>> chain = LinearChain(torch.randn(5, 100), torch.randn(100, 100)).sketch(10)
        >>> chain.rsample(temperature=0.5).mix(torch.randn(100, 16)).shape
        torch.Size([5, 16])
        """
        check_temperature(temperature)
        check_sample_shape(sample_shape)
        walk = self._backward_walk(self.summed())
        samples = walk.relaxed(temperature, hard, math.prod(sample_shape), generator)
        weights, chances, states = (x.reshape(*sample_shape, *x.shape[1:]) for x in samples)
        return RelaxedSample(weights, self.states, self.to_global(states), chances)

    def _backward_walk(self, terms: ChainTerms) -> BackwardWalk:
        lengths = self.sequence_lengths().reshape(self.batch_shape)
        return BackwardWalk(self._time_first(terms.nodes.scores), terms.pairs, lengths)


def _pilot(sketch: LinearChain) -> Subset:
    """The kept states of all positions but the first, which sends no message back."""
    return Subset(sketch.states[..., 1:, :], sketch.log_weight[..., 1:, :])
