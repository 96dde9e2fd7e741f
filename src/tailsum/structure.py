"""The base of every structure: all operations that follow from the log-partition alone.

A structure has scores of its nodes, a tensor `[*batch, node, N]`, and a potential between neighbouring nodes. It says
how to sum over its configurations and how to restrict itself to a subset of the states; marginals, entropy, divergences
and the sketch follow from these two, in the same way for the whole model and for a restricted one.
"""

import math
from abc import abstractmethod
from typing import Any, Generic, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.kernels.precision import full_precision
from tailsum.potential import Dense, Potential
from tailsum.propose import Lookahead, Model, Propose, proposal_from
from tailsum.select import Optimal, Selection, Subset

Small = TypeVar("Small")


class Structure(Model, Generic[Small]):
    """A distribution over the states of connected nodes, given by its scores (log potentials)."""

    kept: Subset | None
    whole: Any

    # What a structure supplies.

    @abstractmethod
    def pair_scores(self) -> Potential:
        """The potential between neighbouring nodes, `Dense` or `Factored`."""

    @abstractmethod
    def sum_paths(self, nodes: Float[Tensor, "*batch node n"], pairs: Potential) -> Float[Tensor, "*batch"]:
        """Log of the sum over all configurations under the given scores, differentiable in them any number of times."""

    @abstractmethod
    def restrict(self, subset: Subset) -> Small:
        """The same structure over a subset of the states, their weights added to the scores."""

    @abstractmethod
    def score(self, states: Int[Tensor, "*sample_batch node"]) -> Float[Tensor, "*sample_batch"]:
        """The score of given configurations (original states, also in a sketch)."""

    # What follows.

    @property
    def states(self) -> Int[Tensor, "*batch node n"]:
        """The original number of each state: of the kept ones in a sketch, `0 .. N-1` otherwise."""
        if self.kept is None:
            everything = torch.arange(self.n_states, device=self.device)
            return everything.expand(*self.batch_shape, self.n_nodes, -1)
        return self.kept.index.expand(*self.batch_shape, -1, -1)

    @property
    def log_weight(self) -> Float[Tensor, "*batch node n"]:
        """The logarithm of each state's weight: zero unless the model is a sketch."""
        if self.kept is None:
            return torch.zeros((), dtype=self.dtype, device=self.device).expand(self.states.shape)
        return self.kept.log_weight.expand(*self.batch_shape, -1, -1)

    def weighted_node_scores(self) -> Float[Tensor, "*batch node n"]:
        """Scores of every node with the logarithms of the weights added: what is summed."""
        return self._weighted(self.node_scores())

    def _weighted(self, nodes: Tensor) -> Tensor:
        return nodes if self.kept is None else nodes + self.kept.log_weight

    def log_partition(self) -> Float[Tensor, "*batch"]:
        """Log of the sum of `exp(score)` over all configurations; in a sketch, of its unbiased estimate."""
        return self.sum_paths(self.weighted_node_scores(), self.pair_scores())

    def log_prob(self, states: Int[Tensor, "*sample_batch node"]) -> Float[Tensor, "*sample_batch"]:
        """Log-probability of given configurations."""
        score = self.score(states)
        return (score - self.log_partition()).masked_fill(score == -math.inf, -math.inf)

    def marginals(self) -> Float[Tensor, "*batch node n"]:
        """The probability of each state at each node: the gradient of the log-partition in the node scores."""
        return self._gradient(pairwise=False)

    def pair_marginals(self) -> Float[Tensor, "*batch edge n m"]:
        """The probability of each pair of states of neighbouring nodes."""
        return self._gradient(pairwise=True)

    def _gradient(self, pairwise: bool) -> Tensor:
        recording = torch.is_grad_enabled()
        with torch.inference_mode(False), torch.enable_grad(), full_precision(self.device):
            nodes, pairs = _recordable(self.weighted_node_scores(), self.pair_scores())
            recording &= any(x.requires_grad for x in (nodes, *pairs.tensors))
            if pairwise:
                target = pairs.block().expand(self._pair_shape())
                target = target if target.requires_grad else target.detach().requires_grad_()
                total = self.sum_paths(nodes, Dense(target))
            else:
                target = nodes if nodes.requires_grad else nodes.detach().requires_grad_()
                total = self.sum_paths(target, pairs)
            if not total.requires_grad:  # a single position has no pairs
                return torch.zeros_like(target)
            (gradient,) = torch.autograd.grad(total.sum(), target, create_graph=recording, materialize_grads=True)
        return gradient

    @abstractmethod
    def _pair_shape(self) -> tuple[int, ...]:
        """`[*batch, edge, n, m]`."""

    def entropy(self) -> Float[Tensor, "*batch"]:
        """Shannon entropy in nats: `log Z - E[score]`.

        In a sketch the weights count in the sums and stay out of the score: algebraically the paper's Algorithm 3.
        """
        nodes, pairs = _centred(self.node_scores(), self.pair_scores())
        return self._log_sum(nodes, pairs) - self._expected(_finite(nodes), pairs)

    def cross_entropy(self, other: "Structure[Small]") -> Float[Tensor, "*batch"]:
        """`E[-log_prob of other]` under this model, in nats; infinite where other forbids what this one allows."""
        other = self._matching(other)
        nodes, pairs = _centred(other.node_scores(), other.pair_scores())
        expected = self._expected(_finite(nodes), pairs)
        return self._forbid(other._log_sum(nodes, pairs) - expected, nodes, pairs)

    def kl(self, other: "Structure[Small]") -> Float[Tensor, "*batch"]:
        """Kullback-Leibler divergence from `other`, in nats. In a sketch both are summed over the kept states.

        Infinite for an impossible model.
        """
        other = self._matching(other)
        own_nodes, own_pairs = _centred(self.node_scores(), self.pair_scores())
        nodes, pairs = _centred(other.node_scores(), other.pair_scores())
        pair_difference = _finite_pairs(own_pairs).plus(_finite_pairs(pairs).scaled(-1.0))
        own = self._log_sum(own_nodes, own_pairs)
        divergence = self._expected(_finite(own_nodes) - _finite(nodes), pair_difference) - own
        divergence = divergence + other._log_sum(nodes, pairs)
        return self._forbid(divergence, nodes, pairs).masked_fill(own == -math.inf, math.inf)

    def _log_sum(self, nodes: Tensor, pairs: Potential) -> Tensor:
        """The log-partition of this model with other scores, its weights added to them."""
        return self.sum_paths(self._weighted(nodes), pairs)

    def _expected(self, nodes: Tensor, pairs: Potential) -> Tensor:
        """The expected sum of the given scores: the slope of the log-partition in their direction.

        Each sequence's slope is had from the slope of their sum, because that is linear in a factor on each.
        """
        recording = torch.is_grad_enabled()
        with torch.inference_mode(False), torch.enable_grad(), full_precision(self.device):
            nodes, pairs = _recordable(nodes, pairs)
            own_nodes, own_pairs = _recordable(self.weighted_node_scores(), self.pair_scores())
            recording &= any(x.requires_grad for x in (nodes, own_nodes, *pairs.tensors, *own_pairs.tensors))
            tilt = torch.zeros((), dtype=self.dtype, device=self.device, requires_grad=True)
            factor = torch.ones(self.batch_shape, dtype=self.dtype, device=self.device, requires_grad=True)
            if pairs is own_pairs:
                tilted = own_pairs.scaled(1.0 + tilt)
            else:
                tilted = own_pairs.plus(_finite_pairs(pairs).scaled(tilt))
            total = self.sum_paths(own_nodes + tilt * nodes, tilted)
            (slope,) = torch.autograd.grad((factor * total).sum(), tilt, create_graph=True)
            (expected,) = torch.autograd.grad(slope, factor, create_graph=recording, materialize_grads=True)
        return expected

    def _forbid(self, value: Tensor, nodes: Tensor, pairs: Potential) -> Tensor:
        """`value`, infinite for each sequence that has a chance of a state or pair with score minus infinity."""
        if not any((x == -math.inf).any() for x in (nodes, *pairs.tensors)):
            return value
        with torch.no_grad():
            forbidden_pairs = Dense((pairs.block() == -math.inf).to(self.dtype))
            chance = self._expected((nodes == -math.inf).to(self.dtype), forbidden_pairs)
        return value.masked_fill(chance > 0, math.inf)

    @abstractmethod
    def _matching(self, other: "Structure[Small]") -> "Structure[Small]":
        """`other` over the same states as this model, or a ValueError that says why that cannot be."""

    def sketch(
        self,
        k: int | None = None,
        *,
        proposal: Propose | None = None,
        selection: Selection | None = None,
        generator: torch.Generator | None = None,
    ) -> Small:
        """The model restricted to a small weighted subset of the states at each node, so that sums stay unbiased.

        Give `k`, the number of states to keep (chosen by `Optimal(k)`), or a `selection`. `proposal` says how much each
        state matters (`Lookahead()` unless given; any function from the model to `log_q [*batch, node, N]` will do).
        """
        if (k is None) == (selection is None):
            raise ValueError("give either k, the number of states to keep, or a selection: got both or neither")
        if k is not None:
            selection = Optimal(k)
        assert selection is not None
        chosen = proposal_from(Lookahead() if proposal is None else proposal)
        with torch.no_grad():
            subset = chosen.choose(self, selection, generator)
        return self.restrict(subset)

    def scatter(self, values: Float[Tensor, "*sample_batch node n"]) -> Float[Tensor, "*sample_batch node all"]:
        """Values of the kept states, such as `marginals()`, spread over all N states (zero elsewhere)."""
        if self.kept is None:
            return values
        if values.shape[-2:] != self.states.shape[-2:]:
            raise ValueError(f"values must be [..., {self.n_nodes}, {self.n_states}]: got {list(values.shape)}")
        shape = torch.broadcast_shapes(values.shape, self.states.shape)
        empty = values.new_zeros(*shape[:-1], self.whole.n_states)
        return empty.scatter_add(-1, self.states.expand(shape), values.expand(shape))


def _finite(scores: Tensor) -> Tensor:
    return scores.masked_fill(scores == -math.inf, 0.0)


def _finite_pairs(pairs: Potential) -> Potential:
    return pairs.map(_finite) if isinstance(pairs, Dense) else pairs


def _centred(nodes: Tensor, pairs: Potential) -> tuple[Tensor, Potential]:
    """The same distribution by scores without a common offset, which would cost digits where sums are subtracted."""
    highest = nodes.detach().amax(-1, keepdim=True)
    nodes = nodes - highest.masked_fill(highest == -math.inf, 0.0)
    if isinstance(pairs, Dense) and pairs.scores.numel():
        top = pairs.scores.detach().amax((-2, -1), keepdim=True)
        pairs = Dense(pairs.scores - top.masked_fill(top == -math.inf, 0.0))
    return nodes, pairs


def _recordable(nodes: Tensor, pairs: Potential) -> tuple[Tensor, Potential]:
    """The same scores, fit for a backward pass where they were made in inference mode."""
    if nodes.is_inference():
        nodes = nodes.clone()
    if any(x.is_inference() for x in pairs.tensors):
        pairs = pairs.map(torch.clone)
    return nodes, pairs
