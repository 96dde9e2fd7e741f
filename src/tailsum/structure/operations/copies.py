"""Copies of a model: a part of its batch, a larger batch, on another device, in another precision."""

import copy
from collections.abc import Callable, Iterator, Sequence
from types import EllipsisType
from typing import Any, TypeVar

import torch
from torch import Tensor

from tailsum.audience import for_authors
from tailsum.structure.check import broadcasts_to
from tailsum.structure.fields import changed, over_batch
from tailsum.structure.model import Configuration, StructureModel
from tailsum.structure.terms import Terms, tensors_in

Item = int | slice | EllipsisType | Tensor | Sequence[int] | None
This = TypeVar("This", bound="Copies")


class Copies(StructureModel[Terms, Configuration]):
    """A model that can be indexed, expanded, moved and copied. Copies share tensors that do not change."""

    def __deepcopy__(self: This, memo: dict[int, Any]) -> This:
        # torch refuses to copy tensors that were computed; their clones stay in the graph.
        for tensor in tensors_in(vars(self)):
            if not tensor.is_leaf:
                memo.setdefault(id(tensor), tensor.clone())
        return self.replaced(**copy.deepcopy(vars(self), memo))

    # The batch.

    def expand(self: This, batch_shape: Sequence[int], _instance: object = None) -> This:
        """The same model for a larger batch, without copies of its scores; samples of the batch are independent.

        >>> from tailsum import LinearChain
        >>> LinearChain(torch.randn(5, 3), torch.randn(3, 3)).expand((4, 2)).sample().shape
        torch.Size([4, 2, 5])
        """
        before, after = self.batch_shape, list(batch_shape) if isinstance(batch_shape, Sequence) else batch_shape
        if not isinstance(after, list) or min(after, default=0) < 0 or not broadcasts_to(before, after):
            raise ValueError(f"batch_shape must be one that {list(before)} broadcasts to: got {after}")
        shape = torch.Size(after)
        fields = over_batch(self, lambda x, after: x.expand(*shape, *x.shape[x.dim() - after :]))
        whole = None if self._origin is None else self._origin.expand(shape)
        return self.replaced(**fields).replaced(batch_shape=shape, _origin=whole)

    def __getitem__(self: This, index: Item | tuple[Item, ...]) -> This:
        """The models at some places of the batch. The index is one into a tensor of the batch's shape.

        >>> from tailsum import LinearChain
        >>> chain = LinearChain(torch.randn(7, 5, 3), torch.randn(3, 3))
        >>> chain[0], chain[1:3]
        (LinearChain(batch=[], T=5, N=3), LinearChain(batch=[2], T=5, N=3))
        """
        batch, place = self.batch_shape, _explicit(index, len(self.batch_shape))

        def at(x: Tensor, after: int) -> Tensor:
            if x.dim() < after:
                return x
            lead, rest = x.shape[: x.dim() - after], x.shape[x.dim() - after :]
            if lead != batch and lead.numel() == 1:  # shared by the batch
                return x.reshape(rest)
            return x.expand(*batch, *rest)[place]

        shape = torch.empty((), device=self.device).expand(batch)[place].shape
        whole = None if self._origin is None else self._origin.expand(batch)[place]
        return self.replaced(**over_batch(self, at, at)).replaced(batch_shape=shape, _origin=whole)

    def __iter__(self: This) -> Iterator[This]:
        if not self.batch_shape:
            raise TypeError(f"{self} has no batch to iterate over")
        return (self[i] for i in range(self.batch_shape[0]))

    # Devices and dtypes.

    def to(self: This, *to: Any, **named: Any) -> This:
        """The model on another device, in float32 or float64, or both, as for a tensor: `to("cuda", torch.float64)`.

        Tensors that a user's scoring function uses have to be moved by hand.
        """
        example = torch.empty((), dtype=self.dtype, device=self.device).to(*to, **named)  # torch reads the arguments
        dtype, device = example.dtype, example.device
        if dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"a model is computed in float32 or float64, also from scores in half precision: got {dtype}"
            )

        def moved(value: Any) -> Any:
            if isinstance(value, torch.device):
                return device
            if isinstance(value, torch.dtype):
                return dtype if value.is_floating_point else value
            return value.to(device, dtype if value.is_floating_point() else value.dtype)

        return self.with_leaves(moved, {})

    @for_authors
    def with_leaves(self: This, change: Callable[[Any], Any], memo: dict[int, Any]) -> This:
        """A copy with `change` applied to all tensors, dtypes and devices, in the whole model of a sketch too."""
        fields = {name: value for name, value in vars(self).items() if name != "_origin"}
        whole = None if self._origin is None else self._origin.with_leaves(change, memo)
        return self.replaced(**changed(fields, change, memo), _origin=whole)

    def cpu(self: This) -> This:
        """The model on the CPU."""
        return self.to("cpu")

    def cuda(self: This, device: torch.device | str | int = "cuda") -> This:
        """The model on a GPU."""
        return self.to(torch.device(device))

    def float(self: This) -> This:
        """The model in float32."""
        return self.to(torch.float32)

    def double(self: This) -> This:
        """The model in float64."""
        return self.to(torch.float64)

    def detach(self: This) -> This:
        """The model without gradients in its tensors; a function that computes scores keeps its own."""
        return self.with_leaves(lambda x: x.detach() if isinstance(x, Tensor) else x, {})


def _explicit(index: Any, dims: int) -> tuple[Any, ...]:
    """An index as a tuple without an ellipsis, with an entry for every batch dimension."""
    items = index if isinstance(index, tuple) else (index,)
    used = sum(x.dim() if _is_mask(x) else x is not None and x is not ... for x in items)
    if used > dims:
        raise IndexError(f"index must be of the {dims} dimensions of the batch: got {index}")
    where = next((i for i, x in enumerate(items) if x is ...), len(items))
    return (*items[:where], *[slice(None)] * (dims - used), *(x for x in items[where + 1 :]))


def _is_mask(item: object) -> bool:
    return isinstance(item, Tensor) and item.dtype == torch.bool
