"""Changes to every tensor in the fields of a model, or to every tensor that has batch dimensions.

The tensors of a field have the shape `[*batch, ...]`, where batch dimensions may be 1 or missing as in broadcasting. How
many dimensions follow the batch is known for scores, kept states, lengths and tables of nodes `[*batch, *node, N]`; a
structure with other fields defines `after_batch`.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tailsum.scores.base import Scores
from tailsum.sketch.selection import Subset

ChangeBatch = Callable[[Tensor, int], Tensor]  # from a tensor and how many of its dimensions follow the batch


def changed(value: Any, change: Callable[[Any], Any], memo: dict[int, Any]) -> Any:
    """A copy of a value with `change` applied to all tensors, dtypes and devices in it, at any depth.

    Users' functions and modules stay as they are.
    """
    if isinstance(value, torch.dtype | torch.device):
        return change(value)
    if isinstance(value, Mapping):
        return {key: changed(x, change, memo) for key, x in value.items()}
    if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
        return remade(value, lambda x: changed(x, change, memo))
    if not isinstance(value, Tensor) and not _is_ours(value):
        return value
    if id(value) not in memo:
        memo[id(value)] = change(value) if isinstance(value, Tensor) else _copied(value, change, memo)
    return memo[id(value)]


def _is_ours(value: Any) -> bool:
    """Whether it is an object of this package, or a user's scores."""
    ours = isinstance(value, Scores) or type(value).__module__.startswith("tailsum.")
    return ours and hasattr(value, "__dict__") and not isinstance(value, nn.Module)


def _copied(value: Any, change: Callable[[Any], Any], memo: dict[int, Any]) -> Any:
    copy = object.__new__(type(value))
    vars(copy).update(changed(vars(value), change, memo))
    return copy


def remade(items: list[Any] | tuple[Any, ...], change: Callable[[Any], Any]) -> Any:
    """The same kind of list or tuple with every item changed."""
    new = [change(x) for x in items]
    return type(items)(*new) if hasattr(items, "_fields") else type(items)(new)


def each_scores(value: Any, change: Callable[[Scores], Scores]) -> Any:
    """The value with `change` applied to scores, alone or in lists and tuples."""
    if isinstance(value, Scores):
        return change(value)
    if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
        return remade(value, lambda x: each_scores(x, change))
    return value


def over_batch(model: Any, change: ChangeBatch, change_scores: ChangeBatch | None = None) -> dict[str, Any]:
    """The fields of a model with `change` applied to every tensor that may have batch dimensions.

    `change_scores` applies to the tensors of scores and of kept states; if None, they stay as they are.
    """
    reported, scores = model.after_batch(), change_scores or (lambda x, _: x)

    def of(name: str, value: Any, count: Any) -> Any:
        if isinstance(value, Tensor):
            return change(value, _after_batch(model, name, value) if count == "unknown" else count)
        if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
            counts = iter(count if isinstance(count, tuple) else [count] * len(value))
            return remade(value, lambda x: of(name, x, next(counts)))
        if isinstance(value, Subset):
            tensors = (scores(x, len(model.node_shape) + 1) for x in (value.index, value.log_weight))
            index, log_weight = torch.broadcast_tensors(*tensors)  # only one of them may have been changed
            return Subset(index, log_weight, of(name, value.pilot, count))
        return each_scores(
            value, lambda own: own.map(lambda x: scores(x, own.after_batch if count == "unknown" else count))
        )

    counts = {name: reported.get(name, "unknown") for name in vars(model)}
    return {name: x if counts[name] is None else of(name, x, counts[name]) for name, x in vars(model).items()}


def _after_batch(model: Any, name: str, tensor: Tensor) -> int:
    """How many dimensions of a field follow the batch, by its name or shape."""
    if name == "lengths":
        return 0
    table = (*model.node_shape, model.n_states)
    if tensor.shape[-len(table) :] == table:
        return len(table)
    raise ValueError(
        f"{type(model).__name__} must say how many dimensions of its field {name}, {list(tensor.shape)}, follow those of "
        f"the batch: add after_batch(self), which returns {{{name!r}: count}}, or None if the batch shares it"
    )
