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

import math
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tailsum.dependencies import arborescence
from tailsum.dependencies.configuration import Dependencies, RelaxedDependencies, are_trees
from tailsum.dependencies.dependency_sweep import DependencySweep
from tailsum.dependencies.inside_outside import InsideOutside, inside_outside
from tailsum.dependencies.projective import Charts, attach_by, eisner, eisner_total, read_dependencies, roots, stateful
from tailsum.numerics.check import (
    check_broadcast,
    check_device,
    check_floating,
    check_in_range,
    check_scores,
    check_whole,
)
from tailsum.numerics.noise import Choose, gumbel
from tailsum.numerics.reduce import Reduce, highest, log_sum_exp
from tailsum.numerics.table import tile_rows
from tailsum.numerics.tensors import finite, flattened, take, without_common, working_type
from tailsum.scores.factored import embedding_norms
from tailsum.scores.potential import Dense, Potential
from tailsum.structure.base import Structure
from tailsum.structure.check import check_lead, check_potential, checked_lengths
from tailsum.structure.terms import each
from tailsum.structure.transforms import differentiable, outside_transforms


class DependencyTerms(NamedTuple):
    """Scores of arcs `[*batch, T, T (, L)]`, of states of words `[*batch, T, N]`, and of states of heads and children."""

    arcs: Dense
    nodes: Dense
    pairs: Potential


class DependencyTree(Structure[DependencyTerms, Dependencies]):
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
        if not isinstance(arc, Tensor) or arc.dim() < 2:
            got = list(arc.shape) if isinstance(arc, Tensor) else type(arc).__name__
            raise ValueError(f"arc must be [*batch, T, T] or [*batch, T, T, L]: got {got}")
        check_floating("arc", arc)
        self.labelled, trailing = labelled, 3 if labelled else 2
        form = "[*batch, T, T, L]" if labelled else "[*batch, T, T]"
        if arc.dim() < trailing or arc.shape[-trailing] != arc.shape[1 - trailing] or 0 in arc.shape[-trailing:]:
            labels = not labelled and arc.dim() > 2 and arc.shape[-3] == arc.shape[-2]
            hint = ", or [*batch, T, T, L] with labelled=True" if labels else ""
            raise ValueError(f"arc must be {form}, none of them zero{hint}: got {list(arc.shape)}")
        if (node is None) != (transition is None):
            raise ValueError("node and transition give words latent states together: got one without the other")
        if node is not None and not projective:
            raise ValueError(
                "latent states need projective=True: sums over states of non-projective trees are intractable"
            )
        self.device, self.projective, self.multiroot = arc.device, projective, multiroot
        shape, length = arc.shape[:-trailing], arc.shape[-trailing]
        self.node_shape = torch.Size((length,))
        tensors = [arc]
        pairs: Potential | None = None
        if node is not None and transition is not None:
            if not isinstance(node, Tensor) or node.dim() < 2 or node.shape[-2] != length or not node.shape[-1]:
                got = list(node.shape) if isinstance(node, Tensor) else type(node).__name__
                raise ValueError(f"node must be [*batch, T, N] with T = {length}, as arc has: got {got}")
            check_device("node", node, self.device)
            check_floating("node", node)
            pairs = check_lead("transition", transition, node.shape[-1], (length,), self.device, "node")
            if len(pairs.lead) == 1 or pairs.lead[-2:-1] not in ((), (1,), (length,)):
                raise ValueError(
                    f"transition must have leading dimensions [*batch, T, T] (head, child) or none: got {list(pairs.lead)}"
                )
            shape = check_broadcast("node", node.shape[:-2], shape, "arc's")
            shape = check_broadcast("transition", pairs.lead[:-2], shape, "that of arc and node,")
            tensors += [node, *pairs.tensors]
        self.batch_shape, self.lengths = checked_lengths(lengths, shape, length, self.device)
        self.dtype = working_type(*tensors)
        self.stateful = node is not None
        if node is None or pairs is None:  # one state
            node, pairs = arc.new_zeros(length, 1), Dense(arc.new_zeros(1, 1))
        self._arc, self._node, self._transition = arc, node, pairs
        self.n_states, self.part_terms = node.shape[-1], 2 if self.stateful else 1
        with torch.no_grad():
            check_scores("arc", self.arc)
            check_scores("node", self.node)
            check_potential("transition", self.transition)

    @property
    def arc(self) -> Float[Tensor, "*batch_part"]:
        """Scores of arcs, zero in the padding."""
        return torch.where(self._arcs_inside(), self._arc, 0.0).to(self.dtype)

    @property
    def node(self) -> Float[Tensor, "*batch T n"]:
        """Scores of the states of words, zero in the padding."""
        return torch.where(self.inside()[..., None], self._node, 0.0).to(self.dtype)

    @property
    def transition(self) -> Potential:
        """Scores of the pairs of states of head and child, zero in the padding."""
        inside, pairs = self.inside(), self._transition
        if self.lengths is not None:
            pairs = pairs.blank_outside(inside[..., :, None] & inside[..., None, :])
        return pairs.to(self.dtype)

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

    def node_scores(self) -> Float[Tensor, "*batch T n"]:
        return self.node.expand(*self.batch_shape, *self.node_shape, -1)

    def terms(self) -> DependencyTerms:
        arc = self.arc.expand(*self.batch_shape, *self.arc.shape[-3 if self.labelled else -2 :])
        return DependencyTerms(Dense(arc), Dense(self.node_scores()), self.transition.evaluated())

    def gather(self, index: Int[Tensor, "*#batch T k"]) -> "DependencyTree":
        if not self.stateful:
            raise ValueError("this tree has no latent states to restrict: give node and transition")
        nodes = self.node_scores()
        return self.replaced(
            _node=nodes.gather(-1, index.expand(*nodes.shape[:-1], -1)),
            _transition=self.transition.gather(index[..., :, None, :], index[..., None, :, :]),
        )

    def after_batch(self) -> dict[str, int]:
        pairs = self._transition.after_batch + 1  # head and child
        return {"_arc": 3 if self.labelled else 2, "_node": 2, "_transition": pairs}

    def total(self, terms: DependencyTerms, reduce: Reduce) -> Float[Tensor, "*batch"]:
        if not self.projective:
            total = arborescence.total(*self._arcs(terms, reduce), self.sequence_lengths(), self.multiroot, reduce)
        elif self.stateful:
            before = self._charts(terms, reduce).before
            total = torch.stack(before).gather(0, self.sequence_lengths()[None] - 1)[0]
        else:
            total = eisner_total(self._arcs(terms, reduce)[0], self.sequence_lengths(), self.multiroot, reduce)
        return total.reshape(self.batch_shape)

    def _arcs(self, terms: DependencyTerms, reduce: Reduce) -> tuple[Tensor, Tensor]:
        """Scores of arcs `[B, T, T]` and roots `[B, T]`, reduced over labels."""
        arc = terms.arcs.scores
        arc = reduce(arc, -1) if self.labelled else arc
        arc = arc.reshape(self.batch_shape.numel(), *arc.shape[-2:])
        return arc, arc.diagonal(dim1=1, dim2=2)

    def _charts(self, terms: DependencyTerms, reduce: Reduce) -> Charts:
        arc, root = self._arcs(terms, reduce)
        nodes, pairs = self._flat_states(terms)
        if not self.stateful:
            return Charts(arc, root, nodes, pairs, *eisner(arc, self.multiroot, reduce))
        halves = stateful(nodes, attach_by(arc, pairs, reduce), reduce)[0]
        return Charts(arc, root, nodes, pairs, halves, roots(halves, nodes, root, self.multiroot, reduce))

    def _flat_states(self, terms: DependencyTerms) -> tuple[Tensor, Tensor]:
        """Scores of states `[B, T, n]`, and of pairs of states: `[n, n]` shared by all arcs, or `[B or 1, T, T, n, n]`."""
        nodes = terms.nodes.scores.expand(*self.batch_shape, -1, -1)
        nodes, pairs = nodes.reshape(self.batch_shape.numel(), *nodes.shape[-2:]), terms.pairs.block()
        if not terms.pairs.lead:
            return nodes, pairs
        pairs = pairs.expand(*pairs.shape[:-4], *self.node_shape, *self.node_shape, -1, -1)
        return nodes, flattened(pairs, 3, self.batch_shape)

    # Words and arcs.

    def add_to_states(self, terms: DependencyTerms, extra: Float[Tensor, "*batch T n"]) -> DependencyTerms:
        return terms._replace(nodes=Dense(terms.nodes.scores + extra))

    def centred(self, terms: DependencyTerms) -> DependencyTerms:
        """Every word has exactly one incoming arc (or is a root), and one state."""
        arc, over = terms.arcs.scores, (-3, -1) if self.labelled else (-2,)
        top = arc.detach().masked_fill(~self._arcs_inside(), -math.inf).amax(over, keepdim=True)
        return DependencyTerms(Dense(arc - finite(top)), terms.nodes.map(lambda x: without_common(x, 1)), terms.pairs)

    def log_sum_and_mean(
        self, own: DependencyTerms, values: DependencyTerms
    ) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
        if self.stateful:
            return super().log_sum_and_mean(own, values)
        return self.log_sum_and_mean_of_parts(own, values)

    def form(self) -> tuple[object, ...]:
        return self.projective, self.multiroot, self.stateful, self.arc.shape[-1] if self.labelled else None

    def state_norms(self) -> Float[Tensor, "*#batch_node n"]:
        return embedding_norms(None, self.transition, "a Factored transition shared by all arcs")

    def sweep(self) -> DependencySweep:
        if not self.stateful:
            raise ValueError("this tree has no latent states to sketch: give node and transition")
        sums = lambda kept: self.restrict(kept).inside_outside()  # noqa: E731
        return DependencySweep(self.weighted_nodes(), self.transition, self.sequence_lengths(), sums)

    def inside_outside(self) -> InsideOutside:
        """The inside and outside sums of all subtrees of a model with states."""
        with torch.inference_mode(False):
            terms = self.weighted(each(lambda term: term.map(lambda x: x.detach().clone()), self.unmasked()))
            arc, root = self._arcs(terms, log_sum_exp)
            return inside_outside(*self._flat_states(terms), arc, root, self.sequence_lengths(), self.multiroot)

    # Trees.

    @torch.no_grad()
    def best(self, terms: DependencyTerms) -> Dependencies:
        if self.projective and not self.stateful:
            return self.read(self.chosen(terms, highest))
        return self.chunked(self._reader(terms, highest, lambda logits: logits.argmax(-1)), 1, 1, ())

    def drawn(
        self, terms: DependencyTerms, sample_shape: Sequence[int], generator: torch.Generator | None
    ) -> Dependencies:
        """From the charts of projective trees; of others, by an elimination in reverse (`arborescence.py`).

        >>> DependencyTree(torch.randn(6, 6), projective=False).sample((1000,)).heads.shape
        torch.Size([1000, 6])
        """
        count, size = math.prod(sample_shape), self.node_shape[0] ** 2 * self.n_states
        chunk = tile_rows(self.batch_shape.numel() * size, self.device) if self.projective else max(1, count)
        choose = lambda logits: gumbel(logits, generator).argmax(-1)  # noqa: E731
        read = self._reader(terms, log_sum_exp, choose, generator)
        return self.chunked(read, count, chunk, sample_shape)

    @outside_transforms
    @torch.no_grad()
    def mbr(self, labelled: bool = True) -> Dependencies:
        """The tree with the highest expected number of arcs that a tree of the model has too (minimum Bayes risk).

        An arc counts with its label or, unless `labelled`, whatever its label. Each label and state is the most probable
        one. -1 throughout where no tree is possible. It may score minus infinity: each arc is probable, not all.

        >>> DependencyTree(torch.randn(5, 5), projective=False).mbr().heads.shape
        torch.Size([5])
        """
        chance = self.marginals()
        counts = (chance.amax(-1) if labelled else chance.sum(-1)) if self.labelled else chance
        heads = DependencyTree(counts, self.lengths, self.projective, self.multiroot).argmax().heads
        heads = torch.where((counts > 0).any(-1).any(-1, keepdim=True), heads, -1)
        labels = self._labels(chance, heads[None], lambda x: x.argmax(-1))[0] if self.labelled else None
        states = (
            self.states.take_along_dim(self.state_marginals().argmax(-1)[..., None], -1)[..., 0]
            if self.stateful
            else None
        )
        return Dependencies(heads, labels, None if states is None else torch.where(heads < 0, -1, states))

    def _reader(
        self, terms: DependencyTerms, reduce: Reduce, choose: Choose, generator: torch.Generator | None = None
    ) -> Callable[[int], Dependencies]:
        """A function that reads `count` trees `[count, *batch, T]` in local ids; charts are computed once."""
        length = self.sequence_lengths()
        charts = self._charts(terms, reduce) if self.projective else None

        def read(count: int) -> Dependencies:
            states = None
            if charts is not None:
                batch = torch.arange(len(length), device=self.device).repeat(count)
                heads, states = read_dependencies(charts, length, batch, self.multiroot, choose)
            elif reduce is highest:
                heads = arborescence.best(*self._arcs(terms, reduce), length, self.multiroot)
            else:
                heads = arborescence.sample(*self._arcs(terms, reduce), length, self.multiroot, count, generator)
            shape = (count, *self.batch_shape, *self.node_shape)
            heads = heads.reshape(shape)
            labels = self._labels(terms.arcs.scores, heads, choose) if self.labelled else None
            return Dependencies(heads, labels, states.reshape(shape) if self.stateful and states is not None else None)

        return read

    def _labels(self, arc: Tensor, heads: Tensor, choose: Choose) -> Tensor:
        """A label for each arc of the trees `[count, *batch, T]`."""
        scores = arc.expand(*heads.shape[:-1], *arc.shape[-3:])
        own = scores.take_along_dim(heads.clamp(min=0)[..., None, :, None], -3).squeeze(-3)  # [.., child, label]
        return torch.where(heads < 0, -1, choose(own.flatten(0, -2)).reshape(heads.shape))

    def read(self, used: Sequence[Tensor]) -> Dependencies:
        """Of words without states."""
        (arcs,) = used
        by_head = arcs.sum(-1) if self.labelled else arcs
        heads = by_head.argmax(-2).masked_fill(by_head.sum(-2) == 0, -1)
        return Dependencies(
            heads, self._labels(arcs, heads[None], lambda x: x.argmax(-1))[0] if self.labelled else None
        )

    def used(self, configuration: Dependencies) -> tuple[Float[Tensor, "..."], ...]:
        heads, labels, states = configuration
        length, size = self.node_shape[0], self.arc.shape[-1] if self.labelled else 1
        child = torch.arange(length, device=self.device)
        used = torch.zeros(*heads.shape[:-1], length * length * size, dtype=self.dtype, device=self.device)
        place = (heads * length + child) * size + (0 if labels is None else labels)
        used.scatter_add_(-1, torch.where(heads < 0, 0, place), (heads >= 0).to(self.dtype))
        used = used.unflatten(-1, (length, length, size) if self.labelled else (length, length))
        if states is None:
            return (used,)
        return used, *super().used(states)

    def scattered_marginals(self) -> Float[Tensor, "*batch_part"]:
        """The marginals of arcs, which do not depend on the kept states' ids."""
        return self.marginals()

    @differentiable
    def state_marginals(self) -> Float[Tensor, "*batch T n"]:
        """The probability of each state of each word."""
        if not self.stateful:
            raise ValueError("the words of this tree have no states: give node and transition")
        return self.term_gradients(1)[0]

    def rsample(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        temperature: float = 1.0,
        hard: bool = False,
        generator: torch.Generator | None = None,
        sample_shape: Sequence[int] = (),
    ) -> RelaxedDependencies:
        """Relaxed samples of arcs and states: see `Structure.rsample`.

        >>> DependencyTree(torch.randn(6, 6)).rsample(0.5).arcs.sum(0)
        tensor([1.0000, 1.0000, 1.0000, 1.0000, 1.0000, 1.0000])
        """
        (arcs, *states), best = self.relaxed(temperature, hard, generator, sample_shape)
        return RelaxedDependencies(arcs, *((states[0], self.states) if states else (None, None)), best)

    def score_of(self, configuration: Dependencies) -> Float[Tensor, "*sample_batch"]:
        """The scores of checked configurations; minus infinity where heads are not a tree of this kind.

        >>> DependencyTree(torch.ones(3, 3)).score(Dependencies(torch.tensor([[0, 0, 1], [1, 2, 0]])))
        tensor([3., -inf])
        """
        heads, labels, states = configuration
        length, child = self.node_shape[0], torch.arange(self.node_shape[0], device=self.device)
        inside, above = heads >= 0, heads.clamp(min=0)
        place = above * length + child
        if labels is not None:
            place = place * self.arc.shape[-1] + labels.clamp(min=0)
        arc = take(self.arc.flatten(-3 if self.labelled else -2)[..., None], place)[..., 0]
        total = torch.where(inside, arc, 0.0).sum(-1)
        if states is not None:
            states = states.clamp(min=0)
            nodes = take(self.node[..., None], states[..., None])[..., 0, 0]
            total = total + torch.where(inside, nodes, 0.0).sum(-1)
            if self.transition.lead:
                pairs = self.transition.at(states[..., :, None], states[..., None, :])  # [.., head, child]
                pairs = pairs.take_along_dim(above[..., None, :], -2)[..., 0, :]
            else:
                pairs = self.transition.at(states.gather(-1, above), states)
            total = total + torch.where(inside & (heads != child), pairs, 0.0).sum(-1)
        lengths = self.sequence_lengths().reshape(self.batch_shape)
        trees, crossing = are_trees(heads, lengths, self.multiroot)
        if self.projective and (trees & crossing).any():
            warnings.warn(
                "some trees have crossing arcs, or arcs over a root, and score minus infinity without a gradient: this "
                "model has projective trees only; for others use projective=False",
                stacklevel=2,
            )
        return total.masked_fill(~trees | crossing if self.projective else ~trees, -math.inf)

    def check_configuration(self, configuration: Dependencies) -> Dependencies:
        tree, shape, length = configuration, self.batch_shape, self.node_shape[0]
        if not isinstance(tree, Dependencies):
            raise ValueError(f"tree must be Dependencies: got {type(tree).__name__}")
        sizes = length, self.arc.shape[-1] if self.labelled else None, self.n_states if self.stateful else None
        checked: list[Tensor | None] = []
        for name, x in tree._asdict().items():
            if isinstance(x, Tensor) and x.dim():
                shape = check_broadcast(f"tree.{name}", x.shape[:-1], shape, "the model's")
        for name, x, size in zip(Dependencies._fields, tree, sizes, strict=True):
            if (x is None) != (size is None):
                raise ValueError(f"tree.{name} must {'' if x is None else 'not '}be given for {self}")
            if x is None or size is None:
                checked.append(None)
                continue
            ids = check_whole(f"tree.{name}", x)
            if ids.shape[-1:] != (length,):
                raise ValueError(f"tree.{name} must be [..., T] with T = {length}: got {list(ids.shape)}")
            ids = torch.where(self.inside(), ids.expand(*shape, -1), -1)
            check_in_range(f"tree.{name}", ids, size)
            if name == "heads" and ((ids < 0) & self.inside() & (ids >= 0).any(-1, keepdim=True)).any():
                raise ValueError(
                    "tree.heads must lie between 0 and T-1 for every word of a sentence, and a root is its own head: got -1; "
                    "for heads that number words from 1, and 0 for a root, see Dependencies.from_conll"
                )
            checked.append(ids)
            if ((ids < 0) & (checked[0] >= 0)).any():  # pyright: ignore[reportOptionalOperand]
                raise ValueError(f"tree.{name} must lie between 0 and {size - 1} for every word: got -1")
        return Dependencies(*checked)  # pyright: ignore[reportArgumentType]

    def node_states(self, configuration: Dependencies) -> Int[Tensor, "*sample_batch T"]:
        assert configuration.states is not None
        return configuration.states

    def exclusions(self, demanded: Sequence[Bool[Tensor, "..."]]) -> list[Bool[Tensor, "..."]]:
        """Every word has one head and one label, and one state."""
        arcs, *states = demanded
        over = (-3, -1) if self.labelled else (-2,)
        return [arcs.sum(over, keepdim=True).bool() & ~arcs, *super().exclusions(states)]

    def to_global(self, configuration: Dependencies) -> Dependencies:
        if configuration.states is None:
            return configuration
        return configuration._replace(states=super().to_global(configuration.states))
