"""The methods that the author of a structure writes.

A structure has scores of its parts, its *terms*, a named tuple: on a chain, of each state at each position and of each pair
of neighbouring states. Two methods are required: `terms`, the scores, and `total`, which reduces the scores of all
configurations to one number. With `log_sum_exp` this is log Z. The gradient of a total in the first term is the marginals, a
best configuration or a sample, depending on the reduction. A structure with latent states also defines `gather`, and one
whose configurations are not the states of its nodes defines `read` and `used`. Every operation follows from these, on models
and sketches alike (`operations/`). Methods marked `for_authors` there can be overridden by faster ones.

States have *local ids* `0 .. n-1` in a model, and *global ids* in the whole model that it is a sketch of.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.audience import for_authors
from tailsum.numerics.reduce import Reduce
from tailsum.sketch.model import Model
from tailsum.sketch.selection import Subset
from tailsum.structure.terms import Terms
from tailsum.structure.transforms import keep_decorators

Configuration = TypeVar("Configuration")
This = TypeVar("This", bound="StructureModel")


class StructureModel(Model, Generic[Terms, Configuration]):
    """The scores of a structure and how they are summed.

    The constructor of a structure sets `batch_shape`, `node_shape` (of the nodes: `[T]` positions, `[T, T]` spans), `n_states` of
    each node, `dtype` (float32 or float64), `device`, and `lengths` where sequences differ in length.
    """

    part_terms = 1  # how many of the terms, from the first, are tables whose parts make up a configuration
    kept: Subset | None = None  # the states of the whole model that a sketch keeps
    _origin: Any = None  # the whole model of a sketch

    def __init_subclass__(cls, **how: Any) -> None:
        super().__init_subclass__(**how)
        keep_decorators(cls)

    # Required.

    @abstractmethod
    def terms(self) -> Terms:
        """The scores, without weights, zero in the padding. The first is a `Dense [*batch, *part]`."""

    @abstractmethod
    def total(self, terms: Terms, reduce: Reduce) -> Float[Tensor, "*batch"]:
        """The scores of all configurations, reduced to one number; with derivatives of every order for `log_sum_exp`.

        A configuration must use each entry of a table at most once. Terms have this model's batch shape, which after
        `in_batch` is larger than that of its tensors. The result may have more digits than the scores; operations round it to
        the model's dtype at the end.
        """

    # Where nodes have latent states.

    def gather(self: This, index: Int[Tensor, "*#batch_node k"]) -> This:
        """A new model over the states `index` of each node, without weights: `self.replaced(...)`."""
        raise ValueError(f"{type(self).__name__} has no latent states to restrict or sketch")

    # Where a configuration is not the state of each node.

    def read(self, used: Sequence[Float[Tensor, "..."]]) -> Configuration:
        """The configuration in local ids. `used` has ones at the parts of each part term that it uses, else zeros."""
        states = used[0].argmax(-1)
        return states.masked_fill(used[0].sum(-1) == 0, -1)  # pyright: ignore[reportReturnType]

    def used(self, configuration: Any) -> tuple[Float[Tensor, "..."], ...]:
        """The inverse of `read`."""
        one_hot = F.one_hot(configuration.clamp(min=0), self.n_states).to(self.dtype)
        return (one_hot.masked_fill((configuration < 0)[..., None], 0.0),)

    # Where fields have batch dimensions beside scores, lengths and tables of nodes `[*batch, *node, N]`.

    def after_batch(self) -> dict[str, Any]:
        """For each such field, how many of its dimensions follow those of the batch, or None if it has no batch dimensions."""
        return {}

    # For use by authors.

    @for_authors
    def replaced(self: This, **fields: object) -> This:
        """A new model with some fields replaced; nothing is checked again."""
        model = object.__new__(type(self))
        vars(model).update(vars(self) | fields)
        return model

    @for_authors
    def in_batch(self: This, shape: Sequence[int]) -> This:
        """The same model broadcast to a larger batch shape; its tensors stay as they are."""
        shape = torch.Size(shape)
        return self.replaced(batch_shape=shape, lengths=None if self.lengths is None else self.lengths.expand(shape))
