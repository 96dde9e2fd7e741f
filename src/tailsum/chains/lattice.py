"""Lattices: acyclic weighted automata whose paths lead from node 0 to the last node, such as the segmentations of a sentence.

A lattice has arcs `e = 0 .. E-1` from node to node; the score of a path is the sum of the scores of its arcs. Arcs may be
parallel, and nodes may be numbered in any order but for the first and the last.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tailsum.chains.paths import PathStructure
from tailsum.chains.topology import Topology, topology
from tailsum.numerics.check import as_whole, check_broadcast, check_device, check_floating, check_scores, check_whole
from tailsum.numerics.reduce import Reduce
from tailsum.numerics.tensors import working_type
from tailsum.numerics.transforms import some
from tailsum.scores.potential import Dense
from tailsum.structure.relaxed import RelaxedSample
from tailsum.structure.transforms import chosen_by_value


class ArcTerms(NamedTuple):
    """Scores of the arcs `[*batch, 1, E]`."""

    arcs: Dense


class Lattice(PathStructure[ArcTerms, Tensor]):
    """A distribution over the paths of an acyclic graph, from node 0 to the last one. Exact sums cost E: there is nothing to sketch.

    `arcs` is `[2, E]`, the nodes that each arc leaves and enters, or `[*batch, 2, E]` for graphs that differ, filled up with -1.
    `scores` is `[*batch, E]`; minus infinity forbids an arc. `n_nodes` is one number or one per graph, by default the largest
    node and one. Nodes from which the last cannot be reached carry nothing. `labels` are any integers, `[E]` or `[*batch, E]`.

    A configuration is the arcs of a path in order, `[*batch, L]` with the length L of the longest path of the batch, filled up
    with -1; `labels_of` has their labels. Marginals are of arcs, `[*batch, E]`.

    >>> lattice = Lattice(torch.tensor([[0, 0, 1], [1, 2, 2]]), torch.tensor([0.5, 2.0, 1.0]), labels=torch.tensor([7, 8, 9]))
    >>> lattice.argmax(), lattice.labels_of(torch.tensor([0, 2]))
    (tensor([ 1, -1]), tensor([7, 9]))
    """

    _backward: Topology | None = None  # of the arcs turned round

    def __init__(
        self,
        arcs: Int[Tensor, "*#batch 2 E"] | Sequence[Sequence[int]],
        scores: Float[Tensor, "*#batch E"],
        n_nodes: int | Int[Tensor, "*#batch"] | Sequence[int] | None = None,
        labels: Int[Tensor, "*#batch E"] | Sequence[int] | None = None,
    ) -> None:
        check_floating("scores", scores)
        self.device, arcs = scores.device, _whole("arcs", arcs, scores.device)
        if arcs.dim() < 2 or arcs.shape[-2] != 2 or not arcs.shape[-1] or scores.shape[-1:] != arcs.shape[-1:]:
            got = f"{list(arcs.shape)} and {list(scores.shape)}"
            raise ValueError(f"arcs must be [2, E] or [*batch, 2, E], E at least 1, and scores [*batch, E]: got {got}")
        self.n_states = arcs.shape[-1]
        n_nodes = arcs.amax((-2, -1)) + 1 if n_nodes is None else _whole("n_nodes", n_nodes, self.device)
        shape = check_broadcast("arcs", arcs.shape[:-2], scores.shape[:-1], "that of scores,")
        shape = check_broadcast("n_nodes", n_nodes.shape, shape, "that of arcs and scores,")
        self.labels = None if labels is None else _whole("labels", labels, self.device)
        if self.labels is not None:
            if self.labels.shape[-1:] != arcs.shape[-1:]:
                raise ValueError(
                    f"labels must be [E] or [*batch, E], E = {arcs.shape[-1]}: got {list(self.labels.shape)}"
                )
            shape = check_broadcast("labels", self.labels.shape[:-1], shape, "that of arcs and scores,")
        self.batch_shape = shape
        lead = torch.broadcast_shapes(arcs.shape[:-2], n_nodes.shape)
        lead = shape if lead.numel() != 1 else torch.Size()  # a graph for all, or one for each
        self.arcs = arcs.expand(*lead, *arcs.shape[-2:]) if lead else arcs.reshape(arcs.shape[-2:])
        self.n_nodes = n_nodes.expand(lead) if lead else n_nodes.reshape(())
        _check_nodes(self.arcs, self.n_nodes)
        self.scores, self.dtype = scores, working_type(scores)
        check_scores("scores", _unpadded(scores.detach(), self.arcs))
        self._topology = topology(self.arcs, self.n_nodes)
        self.node_shape = torch.Size((self._topology.longest,))

    def __repr__(self) -> str:
        return f"Lattice(batch={list(self.batch_shape)}, L={self.node_shape[0]}, E={self.n_states})"

    def with_scores(self, scores: Float[Tensor, "*#batch E"]) -> "Lattice":
        """The same graphs with other scores: they need not be put in levels again, which takes a third of the time of a gradient."""
        check_floating("scores", scores)
        check_device("scores", scores, self.device)
        if scores.shape[-1:] != (self.n_states,):
            raise ValueError(f"scores must be [*batch, E], E = {self.n_states}: got {list(scores.shape)}")
        graphs = self.arcs.shape[:-2]
        shape = check_broadcast("scores", scores.shape[:-1], graphs, "that of the graphs,")
        if graphs and shape != graphs:
            raise ValueError(f"scores must have a batch shape within {list(graphs)}: got {list(scores.shape[:-1])}")
        if self.labels is not None:
            shape = check_broadcast("scores", shape, self.labels.shape[:-1], "that of the labels,")
        check_scores("scores", _unpadded(scores.detach(), self.arcs))
        return self.replaced(scores=scores, batch_shape=shape, dtype=working_type(scores))

    @property
    def states(self) -> Int[Tensor, "*batch 1 E"]:
        """The number of each arc: any arc may stand at any place of a path."""
        return torch.arange(self.n_states, device=self.device).expand(*self.batch_shape, 1, -1)

    def terms(self) -> ArcTerms:
        scores = _unpadded(self.scores, self.arcs).to(self.dtype)
        return ArcTerms(Dense(scores.expand(*self.batch_shape, -1)[..., None, :]))

    def _ordered(self) -> Topology:
        """The levels of the graphs, made again where they are others, as after `lattice[0]`."""
        if self._topology.arcs is not self.arcs:
            self._topology = topology(self.arcs, self.n_nodes)
        return self._topology

    def _flat(self, of_arcs: Tensor) -> Tensor:
        """Values `[*any, *batch, E]` as `[C, arcs of all graphs]`."""
        size = self.arcs.shape[:-2].numel() * self.n_states
        return of_arcs.reshape(of_arcs.numel() // max(1, size), size)

    def total(self, terms: ArcTerms, reduce: Reduce) -> Float[Tensor, "*batch"]:
        return self._ordered().total(self._flat(terms.arcs.scores), reduce).reshape(self.batch_shape)

    def marginals(self) -> Float[Tensor, "*batch E"]:
        """The probability that a path has each arc."""
        return super().marginals()[..., 0, :]

    def rsample(
        self,
        temperature: float = 1.0,
        hard: bool = False,
        generator: torch.Generator | None = None,
        sample_shape: Sequence[int] = (),
    ) -> RelaxedSample:
        """Relaxed samples, with weights of arcs `[*sample_shape, *batch, E]`: see `Structure.rsample`."""
        relaxed = super().rsample(temperature, hard, generator, sample_shape)
        return relaxed._replace(weights=relaxed.weights[..., 0, :], states=relaxed.states[..., 0, :])

    # Paths.

    def read(self, used: Sequence[Float[Tensor, "*batch 1 E"]]) -> Int[Tensor, "*batch L"]:
        depth = self._ordered().depth.reshape(*self.arcs.shape[:-2], self.n_states)
        (length,) = self.node_shape
        places, arcs = torch.where(used[0][..., 0, :] > 0, depth, length).topk(length, largest=False)
        return arcs.masked_fill(places == length, -1)

    def used(self, configuration: Int[Tensor, "*batch L"]) -> tuple[Float[Tensor, "*batch 1 E"]]:
        size = self.n_states
        used = torch.zeros(*configuration.shape[:-1], size + 1, dtype=self.dtype, device=self.device)
        return (used.scatter_(-1, torch.where(configuration < 0, size, configuration), 1.0)[..., None, :-1],)

    def _at(self, of_arcs: Tensor, path: Tensor) -> Tensor:
        """Values of the arcs of a path; of the first arc in the padding."""
        return of_arcs.expand(*path.shape[:-1], -1).gather(-1, path.clamp(min=0))

    def labels_of(self, path: Int[Tensor, "*sample_batch L"]) -> Int[Tensor, "*sample_batch L"]:
        """The labels of the arcs of paths, -1 in the padding."""
        if self.labels is None:
            raise ValueError("labels must be given to have labels of paths: got None")
        path = self.check_configuration(path)
        return torch.where(path < 0, -1, self._at(self.labels, path))

    def score_of(self, configuration: Int[Tensor, "*sample_batch L"]) -> Float[Tensor, "*sample_batch"]:
        """The scores of checked paths; minus infinity where arcs do not lead from node 0 to the last, one after the other."""
        none = torch.full((*configuration.shape[:-1], 1), -1, device=self.device)
        path = torch.cat((none, configuration, none), -1)
        tails, heads = (self._at(self.arcs[..., i, :], path).masked_fill(path < 0, -1) for i in (0, 1))
        end = (path[..., 1:] < 0) & (path[..., :-1] >= 0)  # the last arc of a path ends here
        tails, heads = torch.where(end, self.n_nodes[..., None] - 1, tails[..., 1:]), heads[..., :-1]
        heads[..., 0] = 0
        scores = self._at(self.terms().arcs.scores[..., 0, :], path)
        total = torch.where(path < 0, 0.0, scores).sum(-1, dtype=torch.float64)
        return total.masked_fill((tails != heads).any(-1), -math.inf).to(self.dtype)

    def exclusions(self, demanded: Sequence[Bool[Tensor, "..."]]) -> list[Bool[Tensor, "..."]]:
        """The arcs that lie on no path with all demanded ones: no path of most demanded arcs through them has all of these."""
        (flags,) = demanded
        if self._backward is None or self._backward.arcs is not self.arcs:
            turned = torch.where(self.arcs < 0, -1, self.n_nodes[..., None, None] - 1 - self.arcs.flip(-2))
            self._backward = replace(topology(turned, self.n_nodes), arcs=self.arcs)
        count = self._flat(flags.double())
        most = self._ordered().highest_before(count) + count + self._backward.highest_before(count)
        return [most.reshape(flags.shape) < flags.sum((-2, -1), keepdim=True)]

    @chosen_by_value
    @torch.no_grad()
    def mbr(self) -> Int[Tensor, "*batch L"]:
        """The path with the highest expected number of arcs that a path of the model has too (minimum Bayes risk).

        Only arcs of positive probability count; -1 throughout where no path is possible.
        """
        chance = self.marginals()
        return self.best(ArcTerms(Dense(chance.masked_fill(chance == 0, -math.inf)[..., None, :])))

    def after_batch(self) -> dict[str, int | None]:
        own = self.arcs.dim() > 2
        labels = 1 if self.labels is not None and self.labels.dim() > 1 else None
        return {"arcs": 2 if own else None, "n_nodes": 0 if own else None, "labels": labels, "scores": 1}

    def form(self) -> tuple[object, ...]:
        shape = (*self.batch_shape, *self.arcs.shape[-2:])
        return self.arcs.expand(shape).cpu().numpy().tobytes(), self.n_nodes.expand(self.batch_shape).flatten().tolist()


def _unpadded(scores: Tensor, arcs: Tensor) -> Tensor:
    """Zero in the padding."""
    return torch.where(arcs[..., 0, :] >= 0, scores, 0.0)


def _whole(name: str, value: object, device: torch.device) -> Tensor:
    """Integers on the device of the scores, where a tensor must be already."""
    if isinstance(value, Tensor):
        check_whole(name, value)
        if value.device != device:
            raise ValueError(f"{name} must be on {device}, where scores are: got {value.device}")
    return as_whole(name, value, device)


def _check_nodes(arcs: Int[Tensor, "*batch 2 E"], n_nodes: Int[Tensor, "*batch"]) -> None:
    """Checks that there are two nodes or more, and that arcs are between them, or -1 in both rows."""
    if some(n_nodes < 2):
        raise ValueError(f"n_nodes must be at least 2, the first node and the last: got {int(n_nodes.min())}")
    padding = (arcs == -1).all(-2, keepdim=True)
    wrong = ((arcs < 0) & ~padding) | (arcs >= n_nodes[..., None, None])
    if some(wrong):
        place = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"arcs must lie between 0 and n_nodes-1, or be -1 in both rows: got {int(arcs[tuple(place)])} at {place}"
        )
