"""The base of every structure: all operations that follow from one sum over configurations.

A structure has scores of its parts (a chain: of each state at each position, and of each pair of neighbours), its
*terms*, a named tuple. `total(terms, reduce)` reduces the scores of all configurations to one number: to log Z with
`log_sum_exp`. Its gradient in the first term is the marginals, a best configuration or a sample, by the reduction.
Entropy, divergences, relaxed samples, the k best and sketches follow, of a whole model and of a sketch alike. A
structure may override what it can do faster.

States have *local ids* `0 .. n-1` in a model, and *global ids* in the whole model that it is a sketch of.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.distributions.kl import register_kl

from tailsum.numerics.check import (
    at_least,
    check_broadcast,
    check_sample_shape,
    check_temperature,
    check_tensor,
)
from tailsum.numerics.gradients import tracked
from tailsum.numerics.noise import gumbel
from tailsum.numerics.precision import full_precision
from tailsum.numerics.reduce import Draw, Reduce, highest, log_sum_exp
from tailsum.numerics.table import tile_size
from tailsum.numerics.tensors import unmasked
from tailsum.scores.base import Scores
from tailsum.scores.potential import Dense
from tailsum.sketch.model import Model, Propose
from tailsum.sketch.proposal import Lookahead, proposal_from
from tailsum.sketch.selection import Selection, Subset, selection_from
from tailsum.sketch.sweep import Sweep
from tailsum.structure.batch import Copies
from tailsum.structure.check import check_states, check_subset
from tailsum.structure.compare import infinite_where_forbidden, matching
from tailsum.structure.distinct import Distinct, sample_distinct
from tailsum.structure.distribution import DistributionFace
from tailsum.structure.expectation import expectation
from tailsum.structure.integrations import integrate
from tailsum.structure.k_best import Best, Constraints, Found, k_best, stacked
from tailsum.structure.landmark_sweep import LandmarkSweep, by_restriction
from tailsum.structure.relaxed import RelaxedSample
from tailsum.structure.slope import log_sum_and_slope
from tailsum.structure.terms import Terms, each, in_float64, recordable, requires_grad, with_tables
from tailsum.structure.transforms import Transformable, with_recordable

Configuration = TypeVar("Configuration")
This = TypeVar("This", bound="Structure")


# Where torch's distributions have properties, structures have fields.
class Structure(  # pyright: ignore[reportIncompatibleVariableOverride]
    Copies, Transformable, DistributionFace, Model, Generic[Terms, Configuration]
):
    """A distribution over configurations of connected nodes, given by scores (log potentials)."""

    lengths: Int[Tensor, "*batch"] | None = None
    part_terms = 1  # how many of the terms are tables whose parts make up a configuration
    kept: Subset | None = None
    _origin: "Structure[Terms, Configuration] | None" = None

    # Required of every structure.

    @abstractmethod
    def terms(self) -> Terms:
        """The scores, without weights. The first is a `Dense [*batch, *part]`: marginals are the gradient in it."""

    @abstractmethod
    def total(self, terms: Terms, reduce: Reduce) -> Float[Tensor, "*batch"]:
        """The reduction of the scores of all configurations, with derivatives of every order for `log_sum_exp`.

        A configuration must use each entry that is reduced at most once. Terms have this model's batch shape, which is
        larger than that of its tensors after `in_batch`. The result may have more digits than the scores: differences of
        sums are rounded to the model's dtype at the end.
        """

    def gather(self: This, index: Int[Tensor, "*#batch_node k"]) -> This:
        """A new model over the states `index` of each node, without weights: `self.replaced(...)`."""
        raise ValueError(f"{type(self).__name__} has no latent states to restrict or sketch")

    # Optional: for parts other than the states of nodes, or for speed.

    def add_to_states(self, terms: Terms, extra: Float[Tensor, "*batch_node n"]) -> Terms:
        """The scores with `extra` added once for each node of a configuration, by the node's state."""
        return each(lambda term: term.plus(Dense(extra)) if term is terms[0] else term, terms)

    def read(self, used: Sequence[Float[Tensor, "..."]]) -> Configuration:
        """The configuration in local ids, from the parts of each part term that it uses (ones; else zeros)."""
        states = used[0].argmax(-1)
        return states.masked_fill(used[0].sum(-1) == 0, -1)  # pyright: ignore[reportReturnType]

    def used(self, configuration: Any) -> tuple[Float[Tensor, "..."], ...]:
        """The inverse of `read`."""
        one_hot = F.one_hot(configuration.clamp(min=0), self.n_states).to(self.dtype)
        return (one_hot.masked_fill((configuration < 0)[..., None], 0.0),)

    def to_global(self, configuration: Any) -> Configuration:
        """A configuration in global ids from one in local ids."""
        if self.kept is None:
            return configuration
        states = self.states.expand(*configuration.shape, -1).gather(-1, configuration.clamp(min=0)[..., None])[..., 0]
        return torch.where(configuration < 0, configuration, states)  # pyright: ignore[reportReturnType]

    def node_states(self, configuration: Any) -> Int[Tensor, "*sample_batch_node"]:
        """The state of each node in a checked configuration in local ids, -1 where it has none."""
        if isinstance(configuration, Tensor):
            inside = self.inside().reshape(*self.batch_shape, -1, *(1,) * (len(self.node_shape) - 1))
            return torch.where(inside, configuration, -1)
        used = self.used(configuration)[0]  # durations or the like may stand between nodes and states
        used = used.flatten(used.dim() - len(self.part_shape) + len(self.node_shape), -2).sum(-2)
        return used.argmax(-1).masked_fill(used.sum(-1) == 0, -1)

    def check_configuration(self, configuration: Any) -> Configuration:
        """The configuration, its batch broadcast with this model's; a ValueError if its shape or ids are invalid."""
        return check_states(configuration, self.inside(), self.node_shape, self.n_states, "")  # pyright: ignore[reportReturnType]

    def node_scores(self) -> Float[Tensor, "*batch_node n"]:
        return self.terms()[0].tensors[0].expand(*self.batch_shape, *self.node_shape, -1)

    def state_norms(self) -> Float[Tensor, "*#batch_node n"]:
        raise ValueError(f"the global proposal needs an embedding for each state, and {type(self).__name__} has none")

    def sweep(self) -> Sweep:
        """Beliefs from sums of restricted models; a structure that can pass messages has a faster sweep."""
        nodes = self.weighted_nodes()
        given = by_restriction(nodes.flatten(-len(self.node_shape) - 1, -2), self._log_mass_of_states)
        return LandmarkSweep(nodes, self.node_shape, given)

    def centred(self, terms: Terms) -> Terms:
        """The same distribution by scores without a common offset, which would cost digits in differences of sums."""
        return terms

    def form(self) -> tuple[object, ...]:
        """What two models must share to be compared, beside positions and states."""
        return ()

    def n_scores(self) -> int:
        """The largest number of scores of one term in the score of a configuration."""
        return 2 * self.node_shape.numel()

    def log_sum_and_mean(self, own: Terms, values: Terms) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
        """The log-partition under `own`, and the mean of the sum of `values` over the parts of a configuration."""
        return log_sum_and_slope(self, own, values)

    def log_sum_and_mean_of_parts(
        self, own: Terms, values: Terms
    ) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
        """`log_sum_and_mean` if the first term alone scores configurations: the mean of its values under the marginals."""
        recording = torch.is_grad_enabled()
        with torch.inference_mode(False), torch.enable_grad(), full_precision(self.device):
            own, values = recordable(own), recordable(values)
            recording &= requires_grad(own, values)
            table = own[0].tensors[0]
            table = tracked(table, recording)
            total = self.log_sum(with_tables(own, [table]))
            if not total.requires_grad:  # nothing is summed
                return total, torch.zeros_like(total)
            (chance,) = torch.autograd.grad(total.sum(), table, create_graph=recording, materialize_grads=True)
            mean = (chance * values[0].finite().tensors[0]).flatten(len(self.batch_shape)).sum(-1, dtype=torch.float64)
        return (total, mean) if recording else (total.detach(), mean.detach())

    def _log_mass_of_states(self, subset: Subset) -> Tensor:
        """Log of the sum over all configurations through each state of `subset [chunk, *batch, V, K]`."""
        index, log_weight = (x.unflatten(-2, self.node_shape) for x in (subset.index, subset.log_weight))
        small = self.in_batch((len(index), *self.batch_shape)).restrict(Subset(index, log_weight))
        total, chance = small.state_chances()
        total = total.reshape(*total.shape, *(1,) * (chance.dim() - total.dim()))
        return (chance.log() + total).nan_to_num(-math.inf, neginf=-math.inf).flatten(-len(self.node_shape) - 1, -2)

    @property
    def is_exact(self) -> bool:
        """Whether sums are exact given the scores, so that those of sketches are unbiased."""
        return True

    def diagnostics(self) -> list[str]:
        """What speaks against this model's own sums, whatever states are kept: nothing where they are exact."""
        return []

    # Sums.

    @property
    def whole(self: This) -> This:
        """The model that this one is a sketch of; itself if it is none."""
        return self if self._origin is None else self._origin  # pyright: ignore[reportReturnType]

    def __repr__(self) -> str:
        of = "" if self.kept is None else f" of {self.whole.n_states}"
        return f"{type(self).__name__}(batch={list(self.batch_shape)}, T={self.node_shape[0]}, N={self.n_states}{of})"

    @property
    def states(self) -> Int[Tensor, "*batch_node n"]:
        """The global id of each state: of the kept ones in a sketch, `0 .. N-1` otherwise."""
        lead = (*self.batch_shape, *self.node_shape, -1)
        if self.kept is None:
            return torch.arange(self.n_states, device=self.device).expand(lead)
        return self.kept.index.expand(lead)

    @property
    def log_weight(self) -> Float[Tensor, "*batch_node n"]:
        """The log weight of each state: zero unless the model is a sketch."""
        if self.kept is None:
            return torch.zeros((), dtype=self.dtype, device=self.device).expand(self.states.shape)
        return self.kept.log_weight.expand(*self.batch_shape, *self.node_shape, -1)

    def weighted_nodes(self) -> Float[Tensor, "*batch_node n"]:
        """Scores of every state of every node, weights included."""
        return self.node_scores() if self.kept is None else self.node_scores() + self.log_weight

    def weighted(self, terms: Terms) -> Terms:
        """The scores with the log weights added."""
        return terms if self.kept is None else self.add_to_states(terms, self.log_weight)

    def unmasked(self) -> Terms:
        """The scores, minus infinity in place of finite masks (below -1e29), in every operation alike."""
        return each(lambda term: term.unmasked(), self.terms())

    def summed(self) -> Terms:
        """The weighted scores. Call it in the user's grad mode: parameters may be inference tensors."""
        with full_precision(self.device):
            return self.weighted(self.unmasked())

    def log_sum(self, terms: Terms) -> Float[Tensor, "*batch"]:
        """Log of the sum over all configurations under the given scores."""
        return self.total(terms, log_sum_exp)

    def log_partition(self) -> Float[Tensor, "*batch"]:
        """Log of the sum of `exp(score)` over all configurations; in a sketch, of its unbiased estimate."""
        with full_precision(self.device):
            return self.log_sum(self.summed()).to(self.dtype)

    def log_prob(  # pyright: ignore[reportIncompatibleMethodOverride]  (its own name for the value)
        self, configuration: Configuration
    ) -> Float[Tensor, "*sample_batch"]:
        """Log-probability of given configurations under the whole model.

        A sketch estimates its log-partition: `-small.log_prob(gold)` is a loss to train with. What a sketch draws has
        another density, `sample_log_prob`.
        """
        score = self.score(configuration)
        return (score - self.log_partition()).masked_fill(score == -math.inf, -math.inf)

    def sample_log_prob(self, configuration: Configuration) -> Float[Tensor, "*sample_batch"]:
        """Log-probability that `sample` draws given configurations, in global ids; `log_prob` unless in a sketch.

        A sketch draws from its kept states in proportion to `exp(score)` and to the weights of all states, those of
        copies of a state added up; minus infinity where a state was not kept.

        >>> from tailsum import LinearChain, TopK
        >>> chain = LinearChain(torch.tensor([[0.0, 0.0, -9.0]]), torch.zeros(3, 3))
        >>> chain.sketch(selection=TopK(2)).sample_log_prob(torch.tensor([[0], [1], [2]])).exp()
        tensor([0.5000, 0.5000, 0.0000])
        """
        log_prob, kept = self.log_prob(configuration), self.kept
        if kept is None:
            return log_prob
        states = self.whole.node_states(self.whole.check_configuration(configuration))
        here = self.states == states[..., None]
        weight = log_sum_exp(self.log_weight.expand(here.shape).masked_fill(~here, -math.inf), -1)
        weight = torch.where(states < 0, 0.0, weight).sum(tuple(range(-len(self.node_shape), 0)))
        return (log_prob + weight).masked_fill(log_prob == -math.inf, -math.inf)

    def marginals(self) -> Float[Tensor, "*batch_part n"]:
        """The probability of each part, such as a state at a position."""
        return self.term_gradients(0)[0]

    def term_gradients(self, which: int, expand: Callable[[Tensor], Tensor] = lambda x: x) -> list[Tensor]:
        """The gradient of the log-partition in the tables of one term, each passed through `expand`."""
        return self.gradients_of_terms({which: expand})[0]

    def gradients_of_terms(self, wanted: Mapping[int, Callable[[Tensor], Tensor]]) -> list[list[Tensor]]:
        """The same of several terms, in one pass: each by its number, with what its tables are passed through."""
        recording, own = torch.is_grad_enabled(), self.summed()
        with torch.inference_mode(False), torch.enable_grad(), full_precision(self.device):
            terms = recordable(own)
            recording &= requires_grad(terms)
            changed, targets = list[Scores](terms), list[list[Tensor]]()
            for which, expand in wanted.items():
                tabled = terms[which].tabled()
                found = [expand(x) for x in tabled.tensors]
                targets.append([tracked(x, recording) for x in found])
                tables = iter(targets[-1])
                changed[which] = tabled.map(lambda _, tables=tables: next(tables))
            every = [x for tensors in targets for x in tensors]
            new = iter(changed)
            total = self.log_sum(each(lambda _: next(new), terms))
            if not total.requires_grad or not every:  # a single position has no pairs
                return [[torch.zeros_like(x) for x in tensors] for tensors in targets]
            grads = iter(torch.autograd.grad(total.sum(), every, create_graph=recording, materialize_grads=True))
            return [[next(grads) for _ in tensors] for tensors in targets]

    def scattered_marginals(self) -> Float[Tensor, "*batch_part"]:
        """The marginals over all N states; zero for those that a sketch does not keep."""
        return self.scatter(self.marginals())

    def state_chances(self) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch_node n"]]:
        """The log-partition, and the probability that each node has each of its states; both without gradients."""
        own = self.summed()
        with torch.inference_mode(False), torch.enable_grad(), full_precision(self.device):
            extra = torch.zeros_like(self.log_weight).requires_grad_()
            total = self.log_sum(self.add_to_states(recordable(own), extra))
            (chance,) = torch.autograd.grad(total.sum(), extra, materialize_grads=True)
        return total.detach().to(self.dtype), chance

    def entropy(self) -> Float[Tensor, "*batch"]:
        """Shannon entropy in nats: `log Z - E[score]`; minus infinity, as log Z, for an impossible model.

        In a sketch the weights enter the sums and not the score: algebraically the paper's Algorithm 3, Eqs. 19 to 22.
        """
        with full_precision(self.device):
            terms = self.centred(self.unmasked())
            log_sum, mean = self.log_sum_and_mean(self.weighted(terms), terms)
            return (log_sum - mean).to(self.dtype)

    def cross_entropy(self, other: "Structure[Terms, Configuration]") -> Float[Tensor, "*batch"]:
        """`E[-log_prob of other]` under this model, in nats; infinite where other forbids what this one allows."""
        with full_precision(self.device):
            other = matching(self, other)
            own, terms = self.weighted(self.centred(self.unmasked())), other.centred(other.unmasked())
            _, mean = self.log_sum_and_mean(own, terms)
            cross = other.log_sum(other.weighted(terms)) - mean
            return infinite_where_forbidden(self, cross, own, terms).to(self.dtype)

    def kl(self, other: "Structure[Terms, Configuration]") -> Float[Tensor, "*batch"]:
        """Kullback-Leibler divergence from `other`, in nats; infinite for an impossible model.

        In a sketch both models are summed over the kept states.
        """
        with full_precision(self.device):
            other = matching(self, other)
            mine, theirs = self.centred(self.unmasked()), other.centred(other.unmasked())
            difference = each(lambda a, b: a.finite().plus(b.finite().scaled(-1.0)), mine, theirs)
            own = self.weighted(mine)
            log_sum, mean = self.log_sum_and_mean(own, difference)
            divergence = mean - log_sum + other.log_sum(other.weighted(theirs))
            divergence = infinite_where_forbidden(self, divergence, own, theirs)
            return divergence.masked_fill(log_sum == -math.inf, math.inf).to(self.dtype)

    def expectation(self, values: "Tensor | Structure[Terms, Configuration]") -> Float[Tensor, "*sample_batch"]:
        """The mean under the model of a sum of values over the parts of a configuration, such as a count or a risk.

        `values` are those of the parts that `marginals` counts, in the same shape, over all N states also in a sketch, or
        a model of the same kind whose scores are the values: `chain.expectation(LinearChain(values, pair_values))`.
        Differentiable in scores and values: the gradient in the scores is the covariance of the values with each part.

        >>> from tailsum import LinearChain
        >>> chain = LinearChain(torch.zeros(6, 2), torch.zeros(2, 2))
        >>> chain.expectation(torch.tensor([0.0, 1.0]).expand(6, 2))  # how many positions have state 1
        tensor(3.)
        """
        return expectation(self, values)

    # Positions.

    def sequence_lengths(self) -> Int[Tensor, " B"]:
        """The length of each sequence, the batch flattened."""
        if self.lengths is None:
            return torch.full((self.batch_shape.numel(),), self.node_shape[0], device=self.device)
        return self.lengths.reshape(-1)

    def inside(self) -> Bool[Tensor, "*batch T"]:
        """Which positions are not padding."""
        positions = torch.arange(self.node_shape[0], device=self.device)
        return positions < self.sequence_lengths().reshape(*self.batch_shape, 1)

    # Configurations.

    def parts(self, configuration: Configuration) -> Float[Tensor, "*sample_batch_part"]:
        """The parts of the first term that a configuration in local ids uses: ones; else zeros."""
        return self.used(configuration)[0]

    def score(self, configuration: Configuration) -> Float[Tensor, "*sample_batch"]:
        """The score of configurations in global ids, kept or not; minus infinity where all ids are -1."""
        whole = self.whole
        return unmasked(whole.score_of(whole.check_configuration(configuration)))

    def score_of(self, configuration: Configuration) -> Float[Tensor, "*sample_batch"]:
        """The score of checked configurations; minus infinity where their parts do not make up one configuration.

        It is the sum over all configurations that use no other parts, valid if the largest of them uses all parts.
        """
        used, terms = self.used(configuration), self.terms()
        tables = [torch.where(u > 0, x.tensors[0], -math.inf) for x, u in zip(terms, used, strict=False)]
        lead = tables[0].dim() - terms[0].tensors[0].dim() + len(self.batch_shape)
        model = self.in_batch(tables[0].shape[:lead])
        with torch.no_grad():
            alone = each(lambda term: term.scaled(0.0), terms)
            found = model.total(with_tables(alone, [torch.where(u > 0, 1.0, -math.inf).to(u) for u in used]), highest)
            count = sum(u.flatten(lead).sum(-1) for u in used)
        return model.log_sum(with_tables(terms, tables)).masked_fill(found != count, -math.inf)

    def best(self, terms: Terms) -> Configuration:
        """The configuration of highest score under `terms`, in local ids."""
        return self.read(self.chosen(terms, highest))

    def chosen(self, terms: Terms, reduce: Reduce) -> list[Tensor]:
        """The parts of each part term that the best or a random configuration uses; none if it is impossible."""
        with torch.inference_mode(False), torch.enable_grad(), full_precision(self.device):
            tables = [term.tensors[0].detach().clone().requires_grad_() for term in terms[: self.part_terms]]
            total = self.total(with_tables(recordable(terms), tables), reduce)
            possible = total > -math.inf
            used = torch.autograd.grad(total.masked_fill(~possible, 0.0).sum(), tables, materialize_grads=True)
        return list(used)

    @torch.no_grad()
    def argmax(self) -> Configuration:
        """The configuration of highest score; in a sketch, among the kept states, without their weights."""
        return self.to_global(self.best(self.distinct()))

    def max(self) -> Float[Tensor, "*batch"]:
        """The score of the configuration that `argmax` finds; minus infinity where none is possible.

        Differentiable: the gradient is one for each part of that configuration, and zero for the others. As `argmax`, of
        the kept states of a sketch, without their weights; on graphs with loops that are not exact, of the best found.

        >>> from tailsum import LinearChain
        >>> LinearChain(torch.eye(3), torch.zeros(3, 3)).max()
        tensor(3.)
        """
        return self.score(self.argmax())

    def topk(self, k: int) -> Best:
        """The k configurations of highest score, best first, and their scores (Lawler's partition).

        Fewer where fewer exist. Each costs one search for the best per part of a configuration; some are made at a time, so
        that memory grows as that of one search does.
        """
        at_least(1, k=k)

        def solve(tables: list[Tensor]) -> Found:
            model = self.in_batch((len(tables[0]), *self.batch_shape)).replaced(dtype=torch.float64)
            best = model.best(with_tables(terms, tables))
            found = self.to_global(best)
            return Found(found, model.used(best), self.score(found))

        with torch.no_grad():
            terms = in_float64(self.distinct())
            parts = [term.tensors[0] for term in terms[: self.part_terms]]
            bonus = 1.0 + 2 * self.n_scores() * sum(term.bound() for term in terms)
            configurations, _ = k_best(k, parts, self.batch_shape, Constraints(self.exclusions, bonus), solve)
        return Best(configurations, self.score(configurations))

    def exclusions(self, demanded: Sequence[Bool[Tensor, "..."]]) -> list[Bool[Tensor, "..."]]:
        """Parts of each part term that no configuration has beside the demanded ones; they are banned to demand parts.

        At best so many that whatever has none of them has the demanded parts: by default, if each node has one state.
        """
        return [wanted.any(-1, keepdim=True) & ~wanted for wanted in demanded]

    def distinct(self) -> Terms:
        """The scores, minus infinity for empty places and for repeated kept states."""
        terms = self.unmasked()
        if self.kept is None:
            return terms
        repeated = self.kept.repeated().expand(self.states.shape)
        return self.add_to_states(terms, torch.zeros_like(self.log_weight).masked_fill(repeated, -math.inf))

    @torch.no_grad()
    def sample(  # pyright: ignore[reportIncompatibleMethodOverride]  (configurations may be named tuples)
        self, sample_shape: Sequence[int] = (), generator: torch.Generator | None = None
    ) -> Configuration:
        """Exact samples from the model, in global ids; -1 throughout where no configuration is possible."""
        check_sample_shape(sample_shape)
        with full_precision(self.device):
            return self.to_global(self.drawn(self.summed(), sample_shape, generator))

    def drawn(self, terms: Terms, sample_shape: Sequence[int], generator: torch.Generator | None) -> Configuration:
        """Samples under the given scores, in local ids; -1 throughout where no configuration is possible."""
        count = math.prod(sample_shape)
        size = sum(term.tensors[0].numel() for term in terms[: self.part_terms])
        chunk = max(1, tile_size(self.device) // max(1, size))

        def draw(count: int) -> Configuration:
            tables = [t.tensors[0].expand(count, *t.tensors[0].shape) for t in terms[: self.part_terms]]
            model = self.in_batch((count, *self.batch_shape))
            return model.read(model.chosen(with_tables(terms, tables), Draw(generator)))

        return self.chunked(draw, count, chunk, sample_shape)

    def sample_distinct(self, k: int, generator: torch.Generator | None = None) -> Distinct:
        """Draw k different configurations one after the other, without replacement, in global ids.

        Fewer where fewer exist. Each costs one sum and one draw per part of a configuration.

        >>> from tailsum import LinearChain
        >>> chain = LinearChain(torch.zeros(2, 2), torch.zeros(2, 2))
        >>> sorted(chain.sample_distinct(9).configurations.tolist())
        [[0, 0], [0, 1], [1, 0], [1, 1]]
        """
        return sample_distinct(self, k, generator)

    def chunked(
        self, draw: Callable[[int], Configuration], count: int, chunk: int, sample_shape: Sequence[int]
    ) -> Configuration:
        """`count` configurations `[*sample_shape, *batch, ..]` from `draw(some) [some, *batch, ..]`, by chunks."""
        found = [draw(min(chunk, count - start)) for start in range(0, max(1, count), chunk)]
        return stacked(found, lambda x: torch.cat(x).reshape(*sample_shape, *x[0].shape[1:]))

    def rsample(  # pyright: ignore[reportIncompatibleMethodOverride]  (has_rsample is False)
        self,
        temperature: float = 1.0,
        hard: bool = False,
        generator: torch.Generator | None = None,
        sample_shape: Sequence[int] = (),
    ) -> RelaxedSample:
        """Relaxed samples, differentiable in all scores: the stochastic softmax trick (Paulus et al. 2020).

        The weights are the marginals of `(scores + Gumbel noise) / temperature`; towards temperature zero they become
        those of the best configuration under the noisy scores. `hard=True` gives these, with the relaxed gradient
        (straight-through). Noise on parts does not give exact samples of the model; `sample` does.
        """
        weights, best = self.relaxed(temperature, hard, generator, sample_shape)
        return RelaxedSample(weights[0], self.part_states(), best)

    def part_states(self) -> Int[Tensor, "*batch_part n"]:
        """The global id of the state of each part, broadcast against the parts."""
        return self.states

    @property
    def part_shape(self) -> tuple[int, ...]:
        """The shape of the marginals without the batch: states last."""
        return (*self.node_shape, self.n_states)

    def relaxed(
        self, temperature: float, hard: bool, generator: torch.Generator | None, sample_shape: Sequence[int]
    ) -> tuple[list[Tensor], Configuration]:
        """Relaxed weights of each part term, and the configuration that they relax, in global ids."""
        check_temperature(temperature)
        check_sample_shape(sample_shape)
        recording, noisy, own = torch.is_grad_enabled(), self.part_terms, self.summed()
        model = self.in_batch((*sample_shape, *self.batch_shape))
        with torch.inference_mode(False), torch.enable_grad(), full_precision(self.device):
            terms = recordable(own)
            recording &= requires_grad(terms)
            tables = [term.tensors[0] for term in terms[:noisy]]
            perturbed = with_tables(terms, [gumbel(t.expand(*sample_shape, *t.shape), generator) for t in tables])
            tempered = each(lambda term: term.scaled(1.0 / temperature), perturbed)
            targets = [tracked(term.tensors[0], recording) for term in tempered[:noisy]]
            total = model.log_sum(with_tables(tempered, targets))
            if total.requires_grad:
                weights = torch.autograd.grad(total.sum(), targets, create_graph=recording, materialize_grads=True)
            else:  # nothing is summed
                weights = [torch.zeros_like(target) for target in targets]
        with torch.no_grad():
            best = model.best(perturbed)
        if hard:
            weights = [x.detach() + w - w.detach() for x, w in zip(model.used(best), weights, strict=True)]
        return list(weights), self.to_global(best)

    # Sketches.

    def restrict(self: This, subset: Subset) -> This:
        """The model over the states `subset.index [*batch, *node, K]` alone, weighted: the paper's Eq. 8.

        >>> from tailsum import LinearChain
        >>> chain = LinearChain(torch.randn(5, 9), torch.randn(9, 9))
        >>> chain.restrict(Subset(torch.arange(9).expand(5, 9), torch.zeros(5, 9)))
        LinearChain(batch=[], T=5, N=9 of 9)
        """
        check_subset(subset, self.batch_shape, self.node_shape, self.n_states)
        index, log_weight, pilot = subset.index.long(), subset.log_weight.to(self.dtype), subset.pilot
        small = with_recordable(self).gather(index)
        if self.kept is not None:
            lead = (*self.batch_shape, *self.node_shape, -1)
            log_weight = log_weight + self.log_weight.gather(-1, index.expand(lead))
            index = self.states.gather(-1, index.expand(lead))
            pilot = None  # its states have the local ids of this sketch
        return small.replaced(n_states=index.shape[-1], kept=Subset(index, log_weight, pilot), _origin=self.whole)

    def sketch(
        self: This,
        k: int | None = None,
        *,
        proposal: Propose | None = None,
        selection: Selection | None = None,
        generator: torch.Generator | None = None,
    ) -> This:
        """The model restricted to a small weighted subset of the states at each node, so that sums stay unbiased.

        Give `k`, the number of states to keep (by `Optimal(k)`), or a `selection`. `proposal` (default `Lookahead()`)
        is any function from the model to `log_q [*batch, *node, N]`, how much each state matters.
        """
        selection = selection_from(k, selection)
        chosen = proposal_from(Lookahead() if proposal is None else proposal)
        with full_precision(self.device):
            with torch.no_grad():
                subset = self.by_value(lambda model: chosen.choose(model, selection, generator), "sketch")
            return self.restrict(subset)

    def scatter(self, values: Float[Tensor, "*sample_batch_node n"]) -> Float[Tensor, "*sample_batch_node all"]:
        """Values of the kept states, such as `marginals()`, in a tensor over all N states (zero elsewhere)."""
        check_tensor("values", values)
        if self.kept is None:
            return values
        states, part = self.part_states(), self.part_shape
        if values.shape[-len(part) :] != part:
            raise ValueError(f"values must be [..., {', '.join(map(str, part))}]: got {list(values.shape)}")
        check_broadcast("values", values.shape[: -len(part)], self.batch_shape, "the model's")
        shape = torch.broadcast_shapes(values.shape, states.shape)
        empty = values.new_zeros(*shape[:-1], self.whole.n_states)
        return empty.scatter_add(-1, states.expand(shape), values.expand(shape))


register_kl(Structure, Structure)(lambda p, q: p.kl(q))
integrate(Structure)
