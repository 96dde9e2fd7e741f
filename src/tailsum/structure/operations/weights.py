"""The states of a model, and their weights if it is a sketch; all other operations use these."""

from typing import TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.audience import for_authors
from tailsum.numerics.check import check_broadcast, check_tensor
from tailsum.numerics.precision import full_precision
from tailsum.scores.potential import Dense
from tailsum.structure.model import Configuration, StructureModel
from tailsum.structure.terms import Terms, each

This = TypeVar("This", bound="Weights")


class Weights(StructureModel[Terms, Configuration]):
    """The kept states of a sketch, their ids and weights, and scores with these weights."""

    @property
    def whole(self: This) -> This:
        """The model that this one is a sketch of; this one itself if it is no sketch."""
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

    @property
    def part_shape(self) -> tuple[int, ...]:
        # The shape of the marginals without the batch: states last.
        return (*self.node_shape, self.n_states)

    @for_authors
    def part_states(self) -> Int[Tensor, "*batch_part n"]:
        """The global id of the state of each part, broadcast against the parts."""
        return self.states

    @for_authors
    def node_scores(self) -> Float[Tensor, "*batch_node n"]:
        """Scores of every state of every node, without weights."""
        return self.terms()[0].tensors[0].expand(*self.batch_shape, *self.node_shape, -1)

    @for_authors
    def weighted_nodes(self) -> Float[Tensor, "*batch_node n"]:
        """Scores of every state of every node, weights included."""
        return self.node_scores() if self.kept is None else self.node_scores() + self.log_weight

    @for_authors
    def add_to_states(self, terms: Terms, extra: Float[Tensor, "*batch_node n"]) -> Terms:
        """The scores with `extra` added once for each node of a configuration, by the node's state."""
        return each(lambda term: term.plus(Dense(extra)) if term is terms[0] else term, terms)

    @for_authors
    def unmasked(self) -> Terms:
        """The scores, minus infinity in place of finite masks (below -1e29). Every operation starts from these."""
        return each(lambda term: term.unmasked(), self.terms())

    @for_authors
    def weighted(self, terms: Terms) -> Terms:
        """The scores with the log weights added."""
        return terms if self.kept is None else self.add_to_states(terms, self.log_weight)

    @for_authors
    def summed(self) -> Terms:
        """The weighted scores. Call this in the user's grad mode, as parameters may be inference tensors."""
        with full_precision(self.device):
            return self.weighted(self.unmasked())

    @for_authors
    def distinct(self) -> Terms:
        """The scores, minus infinity for empty places and for repeated kept states."""
        terms = self.unmasked()
        if self.kept is None:
            return terms
        repeated = self.kept.repeated().expand(self.states.shape)
        return self.add_to_states(terms, torch.zeros_like(self.log_weight).masked_fill(repeated, -torch.inf))
