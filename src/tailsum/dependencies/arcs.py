"""Dependency trees over words without states; `dependency_tree.py` has the class that users construct."""

import math
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tailsum.dependencies import arborescence
from tailsum.dependencies.checks import check_arc, check_dependencies
from tailsum.dependencies.configuration import Dependencies, RelaxedDependencies, are_trees
from tailsum.dependencies.dependency_sweep import DependencySweep
from tailsum.dependencies.projective import (
    Charts,
    best_projective,
    drawn_projective,
    eisner,
    eisner_total,
    read_dependencies,
)
from tailsum.numerics.check import check_scores
from tailsum.numerics.kernels import fused
from tailsum.numerics.noise import Choose, drawn_by, most_likely
from tailsum.numerics.reduce import Reduce, highest, log_sum_exp
from tailsum.numerics.tensors import finite, take, working_type
from tailsum.numerics.tiles import tile_rows
from tailsum.scores.potential import Dense, Potential
from tailsum.structure.base import Structure
from tailsum.structure.check import checked_lengths
from tailsum.structure.transforms import differentiable, outside_transforms


class DependencyTerms(NamedTuple):
    """Scores of arcs `[*batch, T, T (, L)]`, of states of words `[*batch, T, N]`, and of states of heads and children."""

    arcs: Dense
    nodes: Dense
    pairs: Potential


class Arcs(Structure[DependencyTerms, Dependencies]):
    """A distribution over dependency trees whose words all have one state, of score zero."""

    n_states = 1
    stateful = False

    def __init__(
        self,
        arc: Float[Tensor, "*#batch_part"],
        lengths: Int[Tensor, "*#batch"] | Sequence[int] | None = None,
        projective: bool = True,
        multiroot: bool = False,
        labelled: bool = False,
        batch_shape: torch.Size | None = None,
    ) -> None:
        check_arc(arc, labelled)
        trailing = 3 if labelled else 2
        shape = arc.shape[:-trailing] if batch_shape is None else batch_shape
        self._arc, self.device, self.dtype = arc, arc.device, working_type(arc)
        self.labelled, self.projective, self.multiroot = labelled, projective, multiroot
        self.node_shape = torch.Size(arc.shape[-trailing : 1 - trailing])
        self.batch_shape, self.lengths = checked_lengths(lengths, shape, self.node_shape[0], self.device)
        with torch.no_grad():
            check_scores("arc", self.arc)

    @property
    def arc(self) -> Float[Tensor, "*batch_part"]:
        """Scores of arcs, zero in the padding."""
        if self.lengths is None:
            return self._arc.expand(*self.batch_shape, *self._arc.shape[-3 if self.labelled else -2 :]).to(self.dtype)
        return torch.where(self._arcs_inside(), self._arc, 0.0).to(self.dtype)

    def __repr__(self) -> str:
        kind = "projective" if self.projective else "non-projective"
        roots = "several roots" if self.multiroot else "one root"
        labels = f", L={self.arc.shape[-1]}" if self.labelled else ""
        states = "" if self.stateful else ", no states"
        return f"{super().__repr__()[:-1]}{labels}{states}, {kind}, {roots})"

    def _arcs_inside(self) -> Bool[Tensor, "..."]:
        """Whether both words of an arc lie inside the sentence, `[*batch, T, T (, 1)]`."""
        inside = self.inside()
        both = inside[..., :, None] & inside[..., None, :]
        return both[..., None] if self.labelled else both

    # Scores and sums.

    def node_scores(self) -> Float[Tensor, "*batch T n"]:
        return torch.zeros((), dtype=self.dtype, device=self.device).expand(*self.batch_shape, *self.node_shape, 1)

    def terms(self) -> DependencyTerms:
        arc = self.arc
        arc = arc.expand(*self.batch_shape, *arc.shape[-3 if self.labelled else -2 :])
        return DependencyTerms(Dense(arc), Dense(self.node_scores()), Dense(arc.new_zeros(1, 1)))

    def unmasked(self) -> DependencyTerms:
        terms = self.terms()
        return terms._replace(arcs=terms.arcs.unmasked())  # all other scores are zero

    @property
    def node(self) -> Float[Tensor, "*batch T n"]:
        """Scores of the states of words, zero in the padding."""
        return self.node_scores()

    @property
    def transition(self) -> Potential:
        """Scores of the pairs of states of head and child, zero in the padding."""
        return self.terms().pairs

    @differentiable
    def state_marginals(self) -> Float[Tensor, "*batch T n"]:
        """The probability of each state of each word."""
        raise ValueError("the words of this tree have no states: give node and transition")

    def add_to_states(self, terms: DependencyTerms, extra: Float[Tensor, "*batch T n"]) -> DependencyTerms:
        return terms._replace(nodes=Dense(terms.nodes.scores + extra))

    def gather(self, index: Int[Tensor, "*#batch T k"]) -> "Arcs":
        raise ValueError("this tree has no latent states to restrict: give node and transition")

    def sweep(self) -> DependencySweep:
        raise ValueError("this tree has no latent states to sketch: give node and transition")

    def after_batch(self) -> dict[str, int]:
        return {"_arc": 3 if self.labelled else 2}

    def total(self, terms: DependencyTerms, reduce: Reduce) -> Float[Tensor, "*batch"]:
        total = eisner_total if self.projective else arborescence.total
        arc = self._flat_arcs(terms, reduce)
        return total(arc, self.sequence_lengths(), self.multiroot, reduce).reshape(self.batch_shape)

    def _flat_arcs(self, terms: DependencyTerms, reduce: Reduce) -> Tensor:
        """Scores of arcs `[B, T, T]`, reduced over labels; roots on the diagonal."""
        arc = terms.arcs.scores
        arc = reduce(arc, -1) if self.labelled else arc
        return arc.reshape(self.batch_shape.numel(), *arc.shape[-2:])

    def _charts(self, terms: DependencyTerms, reduce: Reduce) -> Charts:
        """The charts of projective trees."""
        arc = self._flat_arcs(terms, reduce)
        nodes, pairs = arc.new_zeros(*arc.shape[:-1], 1), arc.new_zeros(1, 1)
        return Charts(arc, arc.diagonal(dim1=1, dim2=2), nodes, pairs, *eisner(arc, self.multiroot, reduce))

    def centred(self, terms: DependencyTerms) -> DependencyTerms:
        # Every word has exactly one incoming arc, or is a root.
        arc, over = terms.arcs.scores, (-3, -1) if self.labelled else (-2,)
        top = arc.detach().masked_fill(~self._arcs_inside(), -math.inf).amax(over, keepdim=True)
        return terms._replace(arcs=Dense(arc - finite(top)))

    def log_sum_and_mean(
        self, own: DependencyTerms, values: DependencyTerms
    ) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
        return self.log_sum_and_mean_of_parts(own, values)

    def form(self) -> tuple[object, ...]:
        return self.projective, self.multiroot, self.stateful, self.arc.shape[-1] if self.labelled else None

    # Trees.

    @torch.no_grad()
    def best(self, terms: DependencyTerms) -> Dependencies:
        search = best_projective if self.projective else arborescence.best
        heads = search(self._flat_arcs(terms, highest), lengths=self.sequence_lengths(), multiroot=self.multiroot)
        heads = heads.reshape(*self.batch_shape, *self.node_shape)
        return Dependencies(
            heads, self._labels(terms.arcs.scores, heads[None], most_likely)[0] if self.labelled else None
        )

    def drawn(
        self, terms: DependencyTerms, sample_shape: Sequence[int], generator: torch.Generator | None
    ) -> Dependencies:
        # Projective trees are read from charts; others are drawn by an elimination in reverse (`arborescence.py`).
        count, size = math.prod(sample_shape), self.node_shape[0] ** 2 * self.n_states
        chunk = tile_rows(self.batch_shape.numel() * size, self.device) if self.projective else max(1, count)
        read = self._reader(terms, log_sum_exp, drawn_by(generator), generator)
        return self.chunked(read, count, chunk, sample_shape)

    @outside_transforms
    @torch.no_grad()
    def mbr(self, labelled: bool = True) -> Dependencies:
        """The tree with the highest expected number of arcs that a tree of the model has too (minimum Bayes risk).

        With `labelled`, arcs count if their labels agree too. Each label and state is the most probable one. All are -1 where
        no tree is possible. The tree may score minus infinity: its arcs are probable one by one, not together.

        >>> from tailsum import DependencyTree
        >>> DependencyTree(torch.randn(5, 5), projective=False).mbr().heads.shape
        torch.Size([5])
        """
        chance = self.marginals()
        counts = (chance.amax(-1) if labelled else chance.sum(-1)) if self.labelled else chance
        heads = Arcs(counts, self.lengths, self.projective, self.multiroot).argmax().heads
        heads = torch.where((counts > 0).any(-1).any(-1, keepdim=True), heads, -1)
        labels = self._labels(chance, heads[None], most_likely)[0] if self.labelled else None
        return Dependencies(heads, labels)

    def _reader(
        self, terms: DependencyTerms, reduce: Reduce, choose: Choose, generator: torch.Generator | None = None
    ) -> Callable[[int], Dependencies]:
        """A function that reads a number of trees `[count, *batch, T]` in local ids; charts are computed once."""
        length, charts, draw = self.sequence_lengths(), None, None
        arc = self._flat_arcs(terms, reduce)
        if self.projective:
            if fused(arc) and not self.stateful:
                draw = drawn_projective(arc, length, self.multiroot, generator)
            else:
                charts = self._charts(terms, reduce)

        def read(count: int) -> Dependencies:
            states = None
            if draw is not None:
                heads = draw(count)
            elif charts is not None:
                batch = torch.arange(len(length), device=self.device).repeat(count)
                heads, states = read_dependencies(charts, length, batch, self.multiroot, choose)
            else:
                heads = arborescence.sample(arc, length, self.multiroot, count, generator)
            shape = (count, *self.batch_shape, *self.node_shape)
            heads = heads.reshape(shape)
            labels = self._labels(terms.arcs.scores, heads, choose) if self.labelled else None
            return Dependencies(heads, labels, states.reshape(shape) if self.stateful and states is not None else None)

        return read

    def _labels(self, arc: Tensor, heads: Tensor, choose: Choose) -> Tensor:
        """A label for each arc of the trees `[count, *batch, T]`."""
        scores = arc.expand(*heads.shape[:-1], *arc.shape[-3:])
        by_child = scores.take_along_dim(heads.clamp(min=0)[..., None, :, None], -3).squeeze(-3)
        return torch.where(heads < 0, -1, choose(by_child.flatten(0, -2)).reshape(heads.shape))

    def read(self, used: Sequence[Tensor]) -> Dependencies:
        (arcs,) = used
        by_head = arcs.sum(-1) if self.labelled else arcs
        heads = by_head.argmax(-2).masked_fill(by_head.sum(-2) == 0, -1)
        labels = self._labels(arcs, heads[None], most_likely)[0] if self.labelled else None
        return Dependencies(heads, labels)

    def used(self, configuration: Dependencies) -> tuple[Float[Tensor, "..."], ...]:
        heads, labels = configuration.heads, configuration.labels
        length, size = self.node_shape[0], self.arc.shape[-1] if self.labelled else 1
        child = torch.arange(length, device=self.device)
        used = torch.zeros(*heads.shape[:-1], length * length * size, dtype=self.dtype, device=self.device)
        place = (heads * length + child) * size + (0 if labels is None else labels)
        used.scatter_add_(-1, torch.where(heads < 0, 0, place), (heads >= 0).to(self.dtype))
        return (used.unflatten(-1, (length, length, size) if self.labelled else (length, length)),)

    def exclusions(self, demanded: Sequence[Bool[Tensor, "..."]]) -> list[Bool[Tensor, "..."]]:
        # Every word has one head and one label.
        arcs = demanded[0]
        return [arcs.sum((-3, -1) if self.labelled else (-2,), keepdim=True).bool() & ~arcs]

    def scattered_marginals(self) -> Float[Tensor, "*batch_part"]:
        return self.marginals()

    def rsample(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        temperature: float = 1.0,
        hard: bool = False,
        generator: torch.Generator | None = None,
        sample_shape: Sequence[int] = (),
    ) -> RelaxedDependencies:
        """Relaxed samples of arcs and states: see `Structure.rsample`.

        >>> from tailsum import DependencyTree
        >>> DependencyTree(torch.randn(6, 6)).rsample(0.5).arcs.sum(0)
        tensor([1.0000, 1.0000, 1.0000, 1.0000, 1.0000, 1.0000])
        """
        (arcs, *weights), best = self.relaxed(temperature, hard, generator, sample_shape)
        return RelaxedDependencies(arcs, *((weights[0], self.states) if weights else (None, None)), best)

    def score_of(self, configuration: Dependencies) -> Float[Tensor, "*sample_batch"]:
        """The scores of checked configurations; minus infinity where heads are not a tree of this kind.

        >>> from tailsum import DependencyTree
        >>> DependencyTree(torch.ones(3, 3)).score(Dependencies(torch.tensor([[0, 0, 1], [1, 2, 0]])))
        tensor([3., -inf])
        """
        lengths = self.sequence_lengths().reshape(self.batch_shape)
        trees, crossing = are_trees(configuration.heads, lengths, self.multiroot)
        if self.projective and (trees & crossing).any():
            warnings.warn(
                "some trees have crossing arcs, or arcs over a root, and score minus infinity without a gradient: this "
                "model has projective trees only; for others use projective=False",
                stacklevel=2,
            )
        total = self._sum_of_scores(configuration)
        return total.masked_fill(~trees | crossing if self.projective else ~trees, -math.inf)

    def _sum_of_scores(self, configuration: Dependencies) -> Tensor:
        """The sum of the scores of all parts, even if they are not a tree."""
        heads, labels = configuration.heads, configuration.labels
        length = self.node_shape[0]
        place = heads.clamp(min=0) * length + torch.arange(length, device=self.device)
        if labels is not None:
            place = place * self.arc.shape[-1] + labels.clamp(min=0)
        arc = take(self.arc.flatten(-3 if self.labelled else -2)[..., None], place)[..., 0]
        return torch.where(heads >= 0, arc, 0.0).sum(-1)

    def check_configuration(self, configuration: Dependencies) -> Dependencies:
        labels, states = self.arc.shape[-1] if self.labelled else None, self.n_states if self.stateful else None
        return check_dependencies(self, configuration, (self.node_shape[0], labels, states))

    def node_states(self, configuration: Dependencies) -> Int[Tensor, "*sample_batch T"]:
        assert configuration.states is not None
        return configuration.states
