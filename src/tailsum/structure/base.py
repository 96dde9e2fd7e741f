"""The base of every structure: all operations that follow from the log-partition alone.

A structure has scores of its parts (a chain: of each state at each position, and of each pair of neighbours), in a few
tensors and potentials, its *terms*. The first term is the one whose gradient are the marginals. A structure says how to
sum over its configurations, how to find the best one, how to draw one, and how to restrict its terms to a subset of the
states; marginals, entropy, divergences, relaxed samples, the k best and the sketch follow from these, in the same way
for the whole model and for a restricted one.
"""

import copy
import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float, Int
from torch import Tensor
from torch.distributions.kl import register_kl

from tailsum.numerics.check import at_least, check_broadcast, check_sample_shape
from tailsum.numerics.noise import gumbel
from tailsum.numerics.precision import full_precision
from tailsum.scores.base import Scores
from tailsum.scores.potential import Dense
from tailsum.sketch.model import Model, Propose
from tailsum.sketch.proposal import Lookahead, proposal_from
from tailsum.sketch.selection import Optimal, Selection, Subset
from tailsum.structure.check import check_subset
from tailsum.structure.k_best import k_best

Configuration = TypeVar("Configuration")
This = TypeVar("This", bound="Structure[Any]")
Terms = tuple[Scores, ...]


class RelaxedSample(NamedTuple):
    """A differentiable sample: weights on the parts of a structure in place of zeros and ones.

    On a chain the weights `[.., T, n]` of each position sum to one. `states` are the original numbers of the states that
    the weights refer to; `hard` is the discrete sample that was relaxed, in original numbers too. `chances`, on a chain,
    are the probabilities `[.., T, n]` that each state was drawn by, given the `hard` states of all later positions:
    with them in place of the weights, sums over the states of one position have no noise of their own.
    """

    weights: Float[Tensor, "*sample_batch_part n"]
    states: Int[Tensor, "*batch_node n"]
    hard: Any
    chances: Float[Tensor, "*sample_batch_node n"] | None = None

    def mix(self, embeddings: Float[Tensor, "all d"]) -> Float[Tensor, "*sample_batch_part d"]:
        """The mixture of the states' embeddings: what a decoder reads in place of one state's embedding."""
        states = self.states
        while states.dim() > 1 and (states.stride(0) == 0 or states.shape[0] == 1):  # the same for all: embedded once
            states = states[0]
        kept = F.embedding(states, embeddings).to(self.weights.dtype)
        return self.weights @ kept if states.dim() == 1 else (self.weights[..., None, :] @ kept)[..., 0, :]


class Structure(Model, Generic[Configuration]):
    """A distribution over configurations of connected nodes, given by scores (log potentials)."""

    lengths: Int[Tensor, "*batch"] | None
    part_terms = 1  # how many of the terms are tables whose parts make up a configuration
    kept: Subset | None = None
    _origin: Any = None

    # What a structure supplies.

    @abstractmethod
    def terms(self) -> Terms:
        """The scores, without weights; the marginals are the gradient in the first, a `Dense [*batch, *part]`."""

    @abstractmethod
    def log_sum(self, terms: Terms) -> Float[Tensor, "*batch"]:
        """Log of the sum over all configurations under the given scores, differentiable in them any number of times."""

    @abstractmethod
    def best(self, terms: Terms) -> Configuration:
        """The configuration of highest score under the given scores, in this model's own numbers."""

    @abstractmethod
    def add_to_states(self, terms: Terms, extra: Float[Tensor, "*batch_node n"]) -> Terms:
        """The scores with `extra` added once for each node of a configuration, by the node's state."""

    @abstractmethod
    def score(self, configuration: Configuration) -> Float[Tensor, "*sample_batch"]:
        """The score of given configurations (original states, also in a sketch); minus infinity of none at all (-1)."""

    @abstractmethod
    def sample(self, sample_shape: Sequence[int] = (), generator: torch.Generator | None = None) -> Configuration:
        """Exact samples from the model, in original states."""

    @abstractmethod
    def parts(self, configuration: Configuration) -> Float[Tensor, "*sample_batch_part"]:
        """One for each part of the first term that a configuration, in own numbers, uses; zero for the others."""

    @abstractmethod
    def _gather(self, index: Int[Tensor, "*#batch_node k"]) -> None:
        """Restrict the scores of this model, in place, to the given states of each node."""

    @abstractmethod
    def _original(self, configuration: Configuration) -> Configuration:
        """A configuration in original numbers from one in this model's own."""

    def _centred(self, terms: Terms) -> Terms:
        """The same distribution by scores without a common offset, which would cost digits where sums are subtracted."""
        return terms

    def _form(self) -> tuple[Any, ...]:
        """What, beside positions and states, two models must share to be compared."""
        return ()

    def _n_scores(self) -> int:
        """How many scores of one term, at most, make up the score of a configuration."""
        return 2 * self.node_shape[0]

    # What follows.

    @property
    def whole(self: This) -> This:
        """The model that this one is a sketch of; itself if it is none."""
        return self if self._origin is None else self._origin

    @property
    def event_shape(self) -> torch.Size:
        """The shape of the nodes: `[T]` positions or words, `[T, T]` spans."""
        return self.node_shape

    def __repr__(self) -> str:
        of = "" if self.kept is None else f" of {self.whole.n_states}"
        return f"{type(self).__name__}(batch={list(self.batch_shape)}, T={self.node_shape[0]}, N={self.n_states}{of})"

    @property
    def states(self) -> Int[Tensor, "*batch_node n"]:
        """The original number of each state: of the kept ones in a sketch, `0 .. N-1` otherwise."""
        lead = (*self.batch_shape, *self.node_shape, -1)
        if self.kept is None:
            return torch.arange(self.n_states, device=self.device).expand(lead)
        return self.kept.index.expand(lead)

    @property
    def log_weight(self) -> Float[Tensor, "*batch_node n"]:
        """The logarithm of each state's weight: zero unless the model is a sketch."""
        if self.kept is None:
            return torch.zeros((), dtype=self.dtype, device=self.device).expand(self.states.shape)
        return self.kept.log_weight.expand(*self.batch_shape, *self.node_shape, -1)

    def _weighted(self, terms: Terms) -> Terms:
        """The scores with the logarithms of the weights added: what is summed."""
        return terms if self.kept is None else self.add_to_states(terms, self.log_weight)

    def _summed(self) -> Terms:
        """What is summed, in the caller's mode: what was made in inference mode must not meet parameters in another."""
        with full_precision(self.device):
            return self._weighted(self.terms())

    def log_partition(self) -> Float[Tensor, "*batch"]:
        """Log of the sum of `exp(score)` over all configurations; in a sketch, of its unbiased estimate."""
        with full_precision(self.device):
            return self.log_sum(self._summed())

    def log_prob(self, configuration: Configuration) -> Float[Tensor, "*sample_batch"]:
        """Log-probability of given configurations."""
        score = self.score(configuration)
        return (score - self.log_partition()).masked_fill(score == -math.inf, -math.inf)

    def marginals(self) -> Float[Tensor, "*batch_part n"]:
        """The probability of each part, such as a state at a position: the gradient of the log-partition in its score."""
        return self._gradient(0)

    def _gradient(self, which: int, *shape: int) -> Tensor:
        """The gradient of the log-partition in one of the terms, written out as a table (of the given shape)."""
        recording, own = torch.is_grad_enabled(), self._summed()
        with torch.inference_mode(False), torch.enable_grad(), full_precision(self.device):
            terms = list(recordable(own))
            recording &= _requires_grad(terms)
            chosen: Any = terms[which]
            target = chosen.block().expand(shape) if shape else chosen.block()
            target = target if recording and target.requires_grad else target.detach().requires_grad_()
            terms[which] = chosen.table(target)
            total = self.log_sum(tuple(terms))
            if not total.requires_grad:  # a single position has no pairs
                return torch.zeros_like(target)
            (gradient,) = torch.autograd.grad(total.sum(), target, create_graph=recording, materialize_grads=True)
        return gradient

    def entropy(self) -> Float[Tensor, "*batch"]:
        """Shannon entropy in nats: `log Z - E[score]`.

        In a sketch the weights count in the sums and stay out of the score: algebraically the paper's Algorithm 3.
        """
        with full_precision(self.device):
            terms = self._centred(self.terms())
            return self.log_sum(self._weighted(terms)) - self._expected(terms)

    def cross_entropy(self, other: "Structure[Configuration]") -> Float[Tensor, "*batch"]:
        """`E[-log_prob of other]` under this model, in nats; infinite where other forbids what this one allows."""
        with full_precision(self.device):
            other = self._matching(other)
            terms = other._centred(other.terms())
            return self._forbid(other.log_sum(other._weighted(terms)) - self._expected(terms), terms)

    def kl(self, other: "Structure[Configuration]") -> Float[Tensor, "*batch"]:
        """Kullback-Leibler divergence from `other`, in nats. In a sketch both are summed over the kept states.

        Infinite for an impossible model.
        """
        with full_precision(self.device):
            return self._divergence(self._matching(other))

    def _divergence(self, other: Any) -> Tensor:
        mine, terms = self._centred(self.terms()), other._centred(other.terms())
        difference = tuple(a.finite().plus(b.finite().scaled(-1.0)) for a, b in zip(mine, terms, strict=True))
        own = self.log_sum(self._weighted(mine))
        divergence = self._expected(difference) - own + other.log_sum(other._weighted(terms))
        return self._forbid(divergence, terms).masked_fill(own == -math.inf, math.inf)

    def _expected(self, terms: Terms) -> Tensor:
        """The expected sum of the given scores: the slope of the log-partition in their direction.

        Each sequence's slope is had from the slope of their sum, because that is linear in a factor on each.
        """
        recording, own = torch.is_grad_enabled(), self._summed()
        with torch.inference_mode(False), torch.enable_grad(), full_precision(self.device):
            terms, own = recordable(terms), recordable(own)
            recording &= _requires_grad((*terms, *own))
            tilt = torch.zeros((), dtype=self.dtype, device=self.device, requires_grad=True)
            factor = torch.ones(self.batch_shape, dtype=self.dtype, device=self.device, requires_grad=True)
            tilted = tuple(
                a.scaled(1.0 + tilt) if a is b else a.plus(b.finite().scaled(tilt))
                for a, b in zip(own, terms, strict=True)
            )
            total = self.log_sum(tilted)
            if not total.requires_grad:  # nothing is summed, as in a sentence of one word without a tree
                return torch.zeros_like(total)
            (slope,) = torch.autograd.grad((factor * total).sum(), tilt, create_graph=True)
            (expected,) = torch.autograd.grad(slope, factor, create_graph=recording, materialize_grads=True)
        return expected

    def _forbid(self, value: Tensor, terms: Terms) -> Tensor:
        """`value`, infinite for each sequence that has a chance of a part with score minus infinity."""
        if not any((x == -math.inf).any() for term in terms for x in term.tensors):
            return value
        with torch.no_grad():
            # By the slope, which has no rounding where nothing forbidden has a chance.
            chance = Structure._expected(self, tuple(term.forbidden(self.dtype) for term in terms))
        return value.masked_fill(chance > 0, math.inf)

    def _matching(self, other: Any) -> Any:
        """`other` over the same states as this model, or a ValueError that says why that cannot be."""
        if not (isinstance(other, type(self)) or isinstance(self, type(other))):
            raise ValueError(f"other must be a {type(self).__name__}: got {type(other).__name__}")
        same = (other.node_shape, other.whole.n_states, other._form()) == (
            self.node_shape,
            self.whole.n_states,
            self._form(),
        )
        if not same:
            raise ValueError(f"other must have the same positions and states as {self}: got {other}")
        if check_broadcast("other", other.batch_shape, self.batch_shape, "this model's") != self.batch_shape:
            raise ValueError(
                f"other must have a batch shape within {list(self.batch_shape)}: got {list(other.batch_shape)}"
            )
        other = other._in_batch(self.batch_shape)
        if self.kept is not None and other.kept is None:
            other = other.restrict(self.kept)
        if other.n_states != self.n_states or not torch.equal(self.states, other.states):
            raise ValueError(f"other must have the same positions and states as {self}: got {other}")
        if not torch.equal(self._length(), other._length()):
            raise ValueError("other must have the same lengths")
        return other

    def _in_batch(self: This, shape: Sequence[int]) -> This:
        """The same model in a larger batch: every element stands for a row of them."""
        model = copy.copy(self)
        model.batch_shape = torch.Size(shape)
        model.lengths = None if self.lengths is None else self.lengths.expand(model.batch_shape)
        return model

    def _length(self) -> Int[Tensor, " B"]:
        """The length of each sequence, the batch flattened."""
        if self.lengths is None:
            return torch.full((self.batch_shape.numel(),), self.node_shape[0], device=self.device)
        return self.lengths.reshape(-1)

    def _inside(self) -> Tensor:
        """Which positions are not padding, `[*batch, T]`."""
        positions = torch.arange(self.node_shape[0], device=self.device)
        return positions < self._length().reshape(*self.batch_shape, 1)

    @torch.no_grad()
    def argmax(self) -> Configuration:
        """The configuration of highest score; in a sketch, among the kept states, their weights left aside."""
        return self._original(self.best(self._distinct()))

    @torch.no_grad()
    def topk(self, k: int) -> Any:
        """The k configurations of highest score, best first, and their scores (Lawler's partition).

        Each costs as many searches for the best as a configuration has parts.
        """
        at_least(1, k=k)
        return k_best(self, k)

    def _distinct(self) -> Terms:
        """The scores, minus infinity for kept states that are copies of another, or empty places."""
        terms = self.terms()
        if self.kept is None:
            return terms
        repeated = _repeated(self.kept).expand(self.states.shape)
        return self.add_to_states(terms, torch.zeros_like(self.log_weight).masked_fill(repeated, -math.inf))

    def rsample(
        self,
        temperature: float = 1.0,
        hard: bool = False,
        generator: torch.Generator | None = None,
        sample_shape: Sequence[int] = (),
    ) -> RelaxedSample:
        """Relaxed samples, differentiable in all scores: the stochastic softmax trick (Paulus et al. 2020).

        The weights are the marginals of `(scores + Gumbel noise) / temperature`; towards temperature zero they become
        those of the best configuration under the noisy scores. `hard=True` gives these, with the relaxed gradient
        (straight-through). Noise on parts does not give exact samples of the model: that is what `sample` does.
        """
        weights, best = self._relaxed(temperature, hard, generator, sample_shape)
        return RelaxedSample(weights[0], self._part_states(), best)

    def _part_states(self) -> Tensor:
        """The original number of the state of each part, broadcast against the parts."""
        return self.states

    def _relaxed(
        self,
        temperature: float,
        hard: bool,
        generator: torch.Generator | None,
        sample_shape: Sequence[int],
    ) -> tuple[list[Tensor], Configuration]:
        """Relaxed weights of the part terms, and the configuration that they relax, in original numbers."""
        if not temperature > 0:
            raise ValueError(f"temperature must be above 0: got {temperature}")
        check_sample_shape(sample_shape)
        recording, noisy, own = torch.is_grad_enabled(), self.part_terms, self._summed()
        model = self._in_batch((*sample_shape, *self.batch_shape))
        with torch.inference_mode(False), torch.enable_grad(), full_precision(self.device):
            terms = recordable(own)
            recording &= _requires_grad(terms)
            noise = [Dense(gumbel(t.expand(*sample_shape, *t.shape), generator)) for t in _tensors(terms[:noisy])]
            perturbed = (*noise, *terms[noisy:])
            tempered = tuple(term.scaled(1.0 / temperature) for term in perturbed)
            targets = [t if t.requires_grad else t.detach().requires_grad_() for t in _tensors(tempered[:noisy])]
            total = model.log_sum((*map(Dense, targets), *tempered[noisy:]))
            if total.requires_grad:
                weights = torch.autograd.grad(total.sum(), targets, create_graph=recording, materialize_grads=True)
            else:  # nothing is summed
                weights = [torch.zeros_like(target) for target in targets]
        with torch.no_grad():
            best = model.best(perturbed)
        if hard:
            weights = [x.detach() + w - w.detach() for x, w in zip(model._used(best), weights, strict=True)]
        return list(weights), self._original(best)

    def _used(self, configuration: Configuration) -> tuple[Tensor, ...]:
        """What a configuration, in own numbers, uses of each part term."""
        return (self.parts(configuration),)

    def restrict(self: This, subset: Subset) -> This:
        """The same structure over the states `subset.index [*batch, *node, K]` alone, their weights added to the scores.

        >>> from tailsum import LinearChain
        >>> chain = LinearChain(torch.randn(5, 9), torch.randn(9, 9))
        >>> chain.restrict(Subset(torch.arange(9).expand(5, 9), torch.zeros(5, 9)))
        LinearChain(batch=[], T=5, N=9 of 9)
        """
        check_subset(subset, self.batch_shape, self.node_shape, self.n_states)
        index, log_weight, pilot = subset.index.long(), subset.log_weight.to(self.dtype), subset.pilot
        small = copy.copy(self)
        small._gather(index)
        small.n_states, small._origin = index.shape[-1], self.whole
        if self.kept is not None:
            lead = (*self.batch_shape, *self.node_shape, -1)
            log_weight = log_weight + self.log_weight.gather(-1, index.expand(lead))
            index = self.states.gather(-1, index.expand(lead))
            pilot = None  # its states are numbered as in the sketch
        small.kept = Subset(index, log_weight, pilot)
        return small

    def sketch(
        self: This,
        k: int | None = None,
        *,
        proposal: Propose | None = None,
        selection: Selection | None = None,
        generator: torch.Generator | None = None,
    ) -> This:
        """The model restricted to a small weighted subset of the states at each node, so that sums stay unbiased.

        Give `k`, the number of states to keep (chosen by `Optimal(k)`), or a `selection`. `proposal` says how much each
        state matters (`Lookahead()` unless given; any function from the model to `log_q [*batch, *node, N]` will do).
        """
        if (k is None) == (selection is None):
            raise ValueError("give either k, the number of states to keep, or a selection: got both or neither")
        if k is not None:
            selection = Optimal(k)
        if not isinstance(selection, Selection):
            raise ValueError(f"selection must be a selection: got {selection!r}")
        chosen = proposal_from(Lookahead() if proposal is None else proposal)
        with full_precision(self.device):
            with torch.no_grad():
                subset = chosen.choose(self, selection, generator)
            return self.restrict(subset)

    def scatter(self, values: Float[Tensor, "*sample_batch_node n"]) -> Float[Tensor, "*sample_batch_node all"]:
        """Values of the kept states of each node, such as their marginals, spread over all N states (zero elsewhere)."""
        return self._scattered(values, self.states, (*self.node_shape, self.n_states))

    def _scattered(self, values: Tensor, states: Tensor, part: tuple[int, ...]) -> Tensor:
        """Values `[..., *part]`, K states last, spread over all states by their numbers."""
        if self.kept is None:
            return values
        if values.shape[-len(part) :] != part:
            raise ValueError(f"values must be [..., {', '.join(map(str, part))}]: got {list(values.shape)}")
        check_broadcast("values", values.shape[: -len(part)], self.batch_shape, "the model's")
        shape = torch.broadcast_shapes(values.shape, states.shape)
        empty = values.new_zeros(*shape[:-1], self.whole.n_states)
        return empty.scatter_add(-1, states.expand(shape), values.expand(shape))


@register_kl(Structure, Structure)
def _kl(p: Structure[Any], q: Structure[Any]) -> Tensor:
    return p.kl(q)


def _tensors(terms: Sequence[Any]) -> list[Tensor]:
    return [term.scores for term in terms]


def _requires_grad(terms: Sequence[Scores]) -> bool:
    return any(x.requires_grad for term in terms for x in term.tensors)


def recordable(terms: Terms) -> Terms:
    """The same scores, fit for a backward pass where they were made in inference mode."""
    return tuple(term.map(torch.clone) if any(x.is_inference() for x in term.tensors) else term for term in terms)


def _repeated(kept: Subset) -> Tensor:
    """Which kept states are copies of an earlier place, or empty places."""
    empty = kept.log_weight == -math.inf
    ordered, order = kept.index.masked_fill(empty, -1).sort(dim=-1, stable=True)
    again = F.pad(ordered[..., 1:] == ordered[..., :-1], (1, 0))
    return torch.zeros_like(again).scatter(-1, order, again) | empty
