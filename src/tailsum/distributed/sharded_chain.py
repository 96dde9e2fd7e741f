"""Linear chains whose states are on several devices, a slice on each rank of a process group."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.audience import for_authors
from tailsum.chains.forward import log_partition
from tailsum.chains.linear_chain import ChainTerms, LinearChain
from tailsum.distributed.agreement import agreed, shards_of, together
from tailsum.distributed.collectives import replicated
from tailsum.distributed.picked import Picked
from tailsum.distributed.sharded_pairs import ShardedPairs, sharded
from tailsum.distributed.sharded_selection import ShardedOptimal
from tailsum.distributed.sharded_sweep import ShardedSweep
from tailsum.distributed.shards import Group
from tailsum.distributed.slices import Slices
from tailsum.distributed.whole import Whole
from tailsum.numerics.check import at_least, shape_or_type
from tailsum.numerics.gradients import tracked
from tailsum.numerics.precision import full_precision
from tailsum.numerics.tensors import finite
from tailsum.scores.factored import Factored
from tailsum.scores.potential import Dense, Potential
from tailsum.sketch.model import Model, Propose
from tailsum.sketch.neighbours import Neighbours
from tailsum.sketch.proposal import Local, Lookahead, Proposal, Uniform
from tailsum.sketch.selection import Subset
from tailsum.structure.check import check_states, check_subset
from tailsum.structure.derivatives import differentiating
from tailsum.structure.slope import log_sum_and_slope


class ShardedChain(Model):
    """A linear chain over N states, of which each rank has a slice; every rank calls every method.

    `emission` has the scores of this rank's n states, `[*batch, T, n]` or `Factored(context [*batch, T, d], states
    [n, d])` with the same context on every rank. `transition` has their rows: a table `[n, N]` from them to the states of
    all ranks, or `Factored(left [n, d], right [n, d])`; leading dimensions as in `LinearChain`. The states of rank 0 come
    first. Slices may differ in size, and may be empty. Without a process group there is one rank.

    Results with one number for each sequence are the same on every rank. Compute the same loss from them on every rank:
    then each rank gets the gradients in its scores (and every rank those in the whole context).

    >>> chain = ShardedChain(torch.zeros(5, 3), torch.zeros(3, 3))  # one rank has all 3 states
    >>> round(chain.log_partition().exp().item())
    243
    """

    def __init__(
        self,
        emission: Float[Tensor, "*#batch T n"] | Factored,
        transition: Float[Tensor, "*#lead n N"] | Factored | Dense,
        lengths: Int[Tensor, "*#batch"] | Sequence[int] | None = None,
        group: Group | None = None,
    ) -> None:
        self._slices = slices = Slices(emission, transition, lengths)
        self._shards = shards_of(group, slices.size, slices.form, slices.error)
        slices.check_columns(self._shards)
        self.n_states, self.device, self.dtype = self._shards.n_states, slices.device, slices.dtype
        self.batch_shape, self.node_shape, self.lengths = (
            slices.batch_shape,
            torch.Size((slices.length,)),
            slices.lengths,
        )

    def __repr__(self) -> str:
        place = f"rank {self._shards.rank} of {self._shards.count}"
        return f"ShardedChain(batch={list(self.batch_shape)}, T={self.node_shape[0]}, N={self.n_states}, {place})"

    @property
    def states(self) -> Int[Tensor, " n"]:
        """The global ids of this rank's states."""
        return torch.arange(self._shards.local.start, self._shards.local.stop, device=self.device)

    # Exact.

    def node_scores(self) -> Float[Tensor, "*batch T n"]:
        """Scores of this rank's states at every position."""
        return self._emission().block()[..., 0, :].expand(*self.batch_shape, self.node_shape[0], -1)

    @together()
    def log_partition(self) -> Float[Tensor, "*batch"]:
        """Log of the sum of `exp(score)` over all paths through the states of all ranks."""
        with full_precision(self.device):
            return self.log_sum(self._terms()).to(self.dtype)

    @together()
    def marginals(self) -> Float[Tensor, "*batch T n"]:
        """The probability of each of this rank's states at each position."""
        with differentiating(self.device, self._terms()) as (recording, (nodes, pairs)):
            scores = tracked(nodes.scores, recording)
            terms = ChainTerms(Dense(scores), pairs.map(lambda x: tracked(x, recording, False)))
            total = self.log_sum(terms).sum()
            return torch.autograd.grad(total, scores, create_graph=recording)[0]

    @together()
    def entropy(self) -> Float[Tensor, "*batch"]:
        """Shannon entropy in nats, `log Z - E[score]`; minus infinity, as log Z, for an impossible chain."""
        with full_precision(self.device):
            nodes, pairs = self._terms()  # without the constant that all states share, which would cost digits
            scores = nodes.scores - finite(self._shards.highest(nodes.scores.detach()))[..., None]
            terms = ChainTerms(Dense(scores), pairs)
            total, mean = log_sum_and_slope(self, terms, terms, lambda tilt: replicated(self._shards, tilt))
            return (total - mean).to(self.dtype)

    def _checked_paths(self, states: Tensor) -> Mapping[str, Any]:
        return {"states": check_states(states, self.inside(), self.node_shape, self.n_states)}

    @together(_checked_paths)
    def score(self, states: Int[Tensor, "*sample_batch T"]) -> Float[Tensor, "*sample_batch"]:
        """The scores of given paths in global ids, the same on every rank."""
        index = states.clamp(min=0)[..., None]
        nodes, pairs = self._gathered(index)
        inside = self.inside()
        of_states = torch.where(inside, nodes[..., 0], 0.0).sum(-1, dtype=torch.float64)
        of_pairs = torch.where(inside[..., 1:], pairs.block()[..., 0, 0], 0.0).sum(-1, dtype=torch.float64)
        return (of_states + of_pairs).to(self.dtype).masked_fill(states[..., 0] < 0, -math.inf)

    @together(_checked_paths)
    def log_prob(self, states: Int[Tensor, "*sample_batch T"]) -> Float[Tensor, "*sample_batch"]:
        """Log-probability of given paths."""
        score = self.score(states)
        return (score - self.log_partition()).masked_fill(score == -math.inf, -math.inf)

    # Sketches.

    def _checked_proposal(
        self, k: int, *, proposal: Propose | None = None, generator: torch.Generator | None = None
    ) -> Mapping[str, Any]:
        at_least(1, k=k)
        proposal = Lookahead() if proposal is None else proposal
        if not callable(proposal) or (
            isinstance(proposal, Proposal) and not isinstance(proposal, Lookahead | Local | Uniform)
        ):
            raise ValueError(f"proposal must be Lookahead, Local, Uniform or a function: got {proposal}")
        if isinstance(proposal, Lookahead) and isinstance(proposal.neighbours, Neighbours):
            raise ValueError("neighbours must be a number: lists of neighbours are not kept across ranks")
        return {"k": k, "proposal": proposal, "generator": generator}

    @together(_checked_proposal, unshared=("generator",))
    def sketch(
        self, k: int, *, proposal: Propose | None = None, generator: torch.Generator | None = None
    ) -> LinearChain:
        """An ordinary chain of k weighted states for each position, chosen among all ranks' so that sums stay unbiased.

        Every rank gets the same chain, and its operations need no exchange; gradients reach the scores of each rank.
        `proposal` is `Lookahead(...)` (the default; each state is its only neighbour), `Local()`, `Uniform()`, or a
        function from this chain to `log_q [*batch, T, n]` of this rank's states. The first rank's `generator` draws.
        """
        assert proposal is not None  # `_checked_proposal` set the default
        selection = ShardedOptimal(k, self._shards)
        with full_precision(self.device):
            with torch.no_grad():
                if k >= self.n_states:
                    subset = selection(self.node_scores())
                elif isinstance(proposal, Lookahead):
                    subset = proposal.choose(self, selection, generator)
                elif isinstance(proposal, Local):  # the selection normalises over all ranks
                    subset = selection(self.node_scores(), generator)
                else:
                    subset = selection(self._log_q(proposal), generator)
            return self._restricted(subset)

    def _checked_subset(self, subset: Subset) -> Mapping[str, Any]:
        check_subset(subset, self.batch_shape, self.node_shape, self.n_states)
        return {"subset": subset}

    @together(_checked_subset)
    def restrict(self, subset: Subset) -> LinearChain:
        """The chain over the weighted states `subset.index [*batch, T, K]` only; give the same subset on every rank."""
        return self._restricted(subset)

    @together()
    def sweep(self) -> ShardedSweep:
        return ShardedSweep(self.node_scores(), self._transition().map(torch.detach), self.lengths)

    def state_norms(self) -> Float[Tensor, "*#batch_node n"]:
        raise ValueError("the global proposal is not available for a sharded chain: use Lookahead, Local or Uniform")

    # Parts.

    def _restricted(self, subset: Subset) -> LinearChain:
        index = subset.index.long().expand(*self.batch_shape, self.node_shape[0], -1)
        nodes, pairs = self._gathered(index)
        small = LinearChain(nodes, pairs.within(4), self.lengths)
        kept = Subset(index, subset.log_weight.to(self.dtype))
        return small.replaced(kept=kept, _origin=Whole.of(small, self.n_states, self.score))

    def _emission(self) -> Potential:
        nodes = self._slices.emission()
        context, of_states = nodes.parts()
        if not of_states:
            return nodes
        return nodes.with_tensors((*(replicated(self._shards, x) for x in context), *of_states))

    def _transition(self) -> ShardedPairs:
        return sharded(self._slices.transition(), self._shards)

    @for_authors
    def log_sum(self, terms: ChainTerms) -> Float[Tensor, "*batch"]:
        """The log-partition in float64, from this rank's scores of states and its part of the transition."""
        node, flat = terms.nodes.scores, terms.pairs.flat(self.batch_shape)
        node = node.reshape(self.batch_shape.numel(), *node.shape[-2:])
        return log_partition(node, flat, self.sequence_lengths() - 1).reshape(self.batch_shape)

    def _terms(self) -> ChainTerms:
        with full_precision(self.device):
            return ChainTerms(Dense(self.node_scores()), self._transition())

    def _gathered(self, index: Int[Tensor, "*sample_batch T k"]) -> tuple[Tensor, Potential]:
        """Scores of the selected states and of the pairs of neighbouring ones, on every rank."""
        picked, emission = Picked(index, self._shards), self._emission()
        if emission.n_to:
            nodes = picked.together(emission.gather(None, picked.local).block()[..., 0, :].expand(index.shape))
        else:
            nodes = picked.together(emission.block().sum().expand(index.shape))
        return nodes, self._transition().gather(index[..., :-1, :], index[..., 1:, :])

    def _log_q(self, proposal: Propose) -> Float[Tensor, "*batch T n"]:
        """The result of a user's function, which may fail on one rank only."""

        def proposed() -> Mapping[str, Tensor]:
            log_q = proposal(self)
            shape = (*self.batch_shape, *self.node_shape, self._slices.size)
            if not isinstance(log_q, Tensor) or log_q.shape != shape:
                raise ValueError(
                    f"proposal must give log_q of this rank's states, {list(shape)}: got {shape_or_type(log_q)}"
                )
            return {"log_q": log_q}

        return agreed(self._shards, "proposal", proposed, unshared=("log_q",))["log_q"]
