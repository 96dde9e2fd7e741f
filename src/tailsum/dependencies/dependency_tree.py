"""Dependency trees: every word has a head, or is a root.

`arc[h, c]` scores that word c has head h, and the diagonal `arc[c, c]` that word c is a root. With labels `arc[h, c, l]`,
every arc (and root) has one of L labels. Heads are numbered as words; a root is its own head. Words are `0 .. T-1`.

Words may have latent states: `node[t, i]` scores state i of word t, and `transition[i, j]` that a head in state i has a
child in state j. Roots have no transition. Only this form can be sketched: K weighted states for each word.

*Projective* trees have no crossing arcs: every word between a head and its child descends from the head, so no arc
spans a root. Sums cost T^3 without states (Eisner), T^3 N^2 + T^4 N with N states and a transition shared by all arcs,
and T^4 K^2 in a sketch. *Non-projective* trees are any trees: the matrix-tree theorem, T^3, by an elimination that never
subtracts and is exact for scores of any range (`arborescence.py`); the best tree by Chu-Liu-Edmonds.
"""

import functools
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tailsum.audience import for_authors
from tailsum.dependencies.arcs import Arcs, DependencyTerms
from tailsum.dependencies.checks import check_arc, check_words
from tailsum.dependencies.configuration import Dependencies
from tailsum.dependencies.dependency_sweep import DependencySweep
from tailsum.dependencies.inside_outside import InsideOutside, inside_outside
from tailsum.dependencies.projective import Charts
from tailsum.dependencies.state_sums import tree_charts, tree_total
from tailsum.numerics.check import check_broadcast, check_scores
from tailsum.numerics.noise import most_likely
from tailsum.numerics.reduce import Reduce, highest, log_sum_exp
from tailsum.numerics.tensors import flattened, take, without_common, working_type
from tailsum.scores.factored import embedding_norms
from tailsum.scores.potential import Potential
from tailsum.structure.base import Structure
from tailsum.structure.check import check_potential
from tailsum.structure.terms import each
from tailsum.structure.transforms import differentiable


class DependencyTree(Arcs):
    """A distribution over dependency trees, projective or not, with one root or several.

    `arc` is `[*batch, T, T]` (head, child; roots on the diagonal), or `[*batch, T, T, L]` if `labelled`. `node [*batch, T, N]`
    and `transition` (a tensor `[N, N]` or any potential, leading dimensions broadcast against `[*batch, T, T]`: head,
    child) give words latent states; both or neither, and projective trees only.

    >>> count = lambda **how: round(DependencyTree(torch.zeros(4, 4), **how).log_partition().exp().item())
    >>> count(), count(multiroot=True), count(projective=False), count(projective=False, multiroot=True)
    (30, 55, 64, 125)
    """

    def __init__(
        self,
        arc: Float[Tensor, "*#batch_part"],
        lengths: Int[Tensor, "*#batch"] | Sequence[int] | None = None,
        projective: bool = True,
        multiroot: bool = False,
        node: Float[Tensor, "*#batch T N"] | None = None,
        transition: Float[Tensor, "*#lead N N"] | Potential | None = None,
        labelled: bool = False,
    ) -> None:
        if node is None and transition is None:
            super().__init__(arc, lengths, projective, multiroot, labelled)
            return
        check_arc(arc, labelled)
        if node is None or transition is None:
            raise ValueError("node and transition give words latent states together: got one without the other")
        if not projective:
            raise ValueError(
                "latent states need projective=True: sums over states of non-projective trees are intractable"
            )
        trailing = 3 if labelled else 2
        pairs = check_words(node, transition, arc.shape[-trailing], arc.device)
        shape = check_broadcast("node", node.shape[:-2], arc.shape[:-trailing], "arc's")
        shape = check_broadcast("transition", pairs.lead[:-2], shape, "that of arc and node,")
        self.__class__ = _with_states(type(self))  # pyright: ignore[reportAttributeAccessIssue]
        super().__init__(arc, lengths, projective, multiroot, labelled, shape)
        self.dtype = working_type(arc, node, *pairs.tensors)
        self._node, self._transition, self.n_states = node, pairs, node.shape[-1]
        with torch.no_grad():
            check_scores("node", self.node)
            check_potential("transition", self.transition)

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if state.get("stateful", "_node" in state):
            self.__class__ = _with_states(type(self))  # pyright: ignore[reportAttributeAccessIssue]


class States(Arcs):
    """What is different where words have latent states; such trees are projective."""

    part_terms = 2
    stateful = True
    _constructed_as: type[DependencyTree]
    _node: Tensor
    _transition: Potential

    def __reduce__(self) -> tuple[Any, ...]:
        # Files have the name of the class that was constructed; `__setstate__` finds this one again.
        return _empty, (self._constructed_as,), vars(self)

    @property
    def node(self) -> Float[Tensor, "*batch T n"]:
        return torch.where(self.inside()[..., None], self._node, 0.0).to(self.dtype)

    @property
    def transition(self) -> Potential:
        inside, pairs = self.inside(), self._transition
        if self.lengths is not None:
            pairs = pairs.blank_outside(inside[..., :, None] & inside[..., None, :])
        return pairs.to(self.dtype)

    # Scores and sums.

    def node_scores(self) -> Float[Tensor, "*batch T n"]:
        return self.node.expand(*self.batch_shape, *self.node_shape, -1)

    def unmasked(self) -> DependencyTerms:
        return Structure.unmasked(self)

    def terms(self) -> DependencyTerms:
        return super().terms()._replace(pairs=self.transition.evaluated())

    def gather(self, index: Int[Tensor, "*#batch T k"]) -> "States":
        nodes = self.node_scores()
        return self.replaced(
            _node=nodes.gather(-1, index.expand(*nodes.shape[:-1], -1)),
            _transition=self.transition.gather(index[..., :, None, :], index[..., None, :, :]),
        )

    def after_batch(self) -> dict[str, int]:
        pairs = self._transition.after_batch + 1  # head and child
        return super().after_batch() | {"_node": 2, "_transition": pairs}

    def total(self, terms: DependencyTerms, reduce: Reduce) -> Float[Tensor, "*batch"]:
        arc = self._flat_arcs(terms, reduce)
        nodes, pairs = self._flat_states(terms)
        total = tree_total(nodes, arc, pairs, self.sequence_lengths(), self.multiroot, reduce)
        return total.reshape(self.batch_shape)

    def _charts(self, terms: DependencyTerms, reduce: Reduce) -> Charts:
        arc = self._flat_arcs(terms, reduce)
        nodes, pairs = self._flat_states(terms)
        return tree_charts(nodes, arc, pairs, self.multiroot, reduce)

    def _flat_states(self, terms: DependencyTerms) -> tuple[Tensor, Tensor]:
        """Scores of states `[B, T, n]`, and of pairs of states: `[n, n]` shared by all arcs, or `[B or 1, T, T, n, n]`."""
        nodes = terms.nodes.scores.expand(*self.batch_shape, -1, -1)
        nodes, pairs = nodes.reshape(self.batch_shape.numel(), *nodes.shape[-2:]), terms.pairs.block()
        if not terms.pairs.lead:
            return nodes, pairs
        pairs = pairs.expand(*pairs.shape[:-4], *self.node_shape, *self.node_shape, -1, -1)
        return nodes, flattened(pairs, 3, self.batch_shape)

    def centred(self, terms: DependencyTerms) -> DependencyTerms:
        # Every word has one state, too.
        return super().centred(terms)._replace(nodes=terms.nodes.map(lambda x: without_common(x, 1)))

    def log_sum_and_mean(
        self, own: DependencyTerms, values: DependencyTerms
    ) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
        return Structure.log_sum_and_mean(self, own, values)

    # Sketches.

    def state_norms(self) -> Float[Tensor, "*#batch_node n"]:
        return embedding_norms(None, self.transition, "a Factored transition shared by all arcs")

    def sweep(self) -> DependencySweep:
        sums = lambda kept: self.restricted(kept).inside_outside()  # noqa: E731
        return DependencySweep(self.weighted_nodes(), self.transition, self.sequence_lengths(), sums)

    @for_authors
    def inside_outside(self) -> InsideOutside:
        """The inside and outside sums of all subtrees."""
        with torch.inference_mode(False):
            terms = self.weighted(each(lambda term: term.map(lambda x: x.detach().clone()), self.unmasked()))
            arc = self._flat_arcs(terms, log_sum_exp)
            nodes, pairs = self._flat_states(terms)
            return inside_outside(nodes, arc, pairs, self.sequence_lengths(), self.multiroot)

    # Trees.

    @torch.no_grad()
    def best(self, terms: DependencyTerms) -> Dependencies:
        return self.chunked(self._reader(terms, highest, most_likely), 1, 1, ())

    @torch.no_grad()
    def mbr(self, labelled: bool = True) -> Dependencies:
        tree = super().mbr(labelled)
        states = self.states.take_along_dim(self.state_marginals().argmax(-1)[..., None], -1)[..., 0]
        return tree._replace(states=torch.where(tree.heads < 0, -1, states))

    def used(self, configuration: Dependencies) -> tuple[Float[Tensor, "..."], ...]:
        return *super().used(configuration), *Structure.used(self, configuration.states)

    def exclusions(self, demanded: Sequence[Bool[Tensor, "..."]]) -> list[Bool[Tensor, "..."]]:
        # Every word has one state, too.
        return [*super().exclusions(demanded), *Structure.exclusions(self, demanded[1:])]

    @differentiable
    def state_marginals(self) -> Float[Tensor, "*batch T n"]:
        return self.term_gradients(1)[0]

    def _sum_of_scores(self, configuration: Dependencies) -> Tensor:
        heads, states = configuration.heads, configuration.states
        assert states is not None
        inside, above, states = heads >= 0, heads.clamp(min=0), states.clamp(min=0)
        nodes = take(self.node[..., None], states[..., None])[..., 0, 0]
        if self.transition.lead:
            pairs = self.transition.at(states[..., :, None], states[..., None, :])  # [.., head, child]
            pairs = pairs.take_along_dim(above[..., None, :], -2)[..., 0, :]
        else:
            pairs = self.transition.at(states.gather(-1, above), states)
        is_root = heads == torch.arange(self.node_shape[0], device=self.device)
        of_states = torch.where(inside, nodes, 0.0) + torch.where(inside & ~is_root, pairs, 0.0)
        return super()._sum_of_scores(configuration) + of_states.sum(-1)

    def to_global(self, configuration: Dependencies) -> Dependencies:
        return configuration._replace(states=Structure.to_global(self, configuration.states))


def _empty(kind: type[DependencyTree]) -> DependencyTree:
    return object.__new__(kind)


@functools.cache
def _with_states(kind: type[DependencyTree]) -> type[DependencyTree]:
    """The class of `kind(arc, node=.., transition=..)`, where `kind` may be a user's subclass."""
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "_constructed_as": kind}
    return kind if issubclass(kind, States) else type(kind.__name__, (kind, States), names)
