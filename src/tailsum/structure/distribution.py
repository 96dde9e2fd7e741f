"""Structures as `torch.distributions.Distribution`, for code that takes any distribution.

A configuration is one event. `batch_shape`, `log_prob`, `sample`, `entropy` and `expand` have their usual meanings.
`rsample` gives relaxed samples, which are not draws from the model, so `has_rsample` is False.
"""

import itertools
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.distributions.constraints import Constraint


class DistributionFace(Distribution):
    """The interface of distributions, by the operations of structures."""

    # torch has a property here; structures set a field.
    batch_shape = torch.Size()  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]
    node_shape: torch.Size
    has_rsample = False
    has_enumerate_support = False

    @property
    def arg_constraints(self) -> dict[str, Constraint]:
        """None: scores may be any number, or minus infinity."""
        return {}

    @property
    def event_shape(self) -> torch.Size:
        """The shape of the nodes: `[T]` positions or words, `[T, T]` spans."""
        return self.node_shape

    @property
    def support(self) -> "Configurations":
        """The configurations that the model allows: `support.check(value)`."""
        return Configurations(self)

    @property
    def mode(self) -> Any:
        """The configuration of highest score, `argmax()`."""
        return self.argmax()  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def mean(self) -> NoReturn:
        """None: a NotImplementedError."""
        raise NotImplementedError(self._no_numbers("mean"))

    @property
    def variance(self) -> NoReturn:
        """None: a NotImplementedError."""
        raise NotImplementedError(self._no_numbers("variance"))

    def _no_numbers(self, what: str) -> str:
        name = type(self).__name__
        return f"{name} has no {what}: states are names, not numbers. marginals() has the probability of each part"

    def enumerate_support(self, expand: bool = True) -> NoReturn:
        """None: a NotImplementedError. There are too many configurations; `topk` has the best of them."""
        name = type(self).__name__
        raise NotImplementedError(f"{name} has too many configurations to list. topk(k) has the best of them")


class Configurations(Constraint):
    """The configurations that a model allows, of finite score."""

    is_discrete = True

    def __init__(self, model: Any) -> None:
        self.model = model

    @property
    def event_dim(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The number of dimensions of an event."""
        return len(self.model.event_shape)

    def check(self, value: Any) -> Tensor:
        """Whether each configuration of a batch is allowed; invalid ones are not."""
        try:
            return self.model.score(value) > -torch.inf
        except ValueError:
            return self._one_by_one(value)

    def _one_by_one(self, value: Any) -> Tensor:
        fields = [value] if isinstance(value, Tensor) else [x for x in value if x is not None]
        lead = fields[-1].shape[: -self.event_dim] if isinstance(value, Tensor) else fields[-1].shape[:-1]
        shape = torch.broadcast_shapes(lead, self.model.batch_shape)
        if not shape:
            return torch.zeros((), dtype=torch.bool, device=self.model.device)
        models = self.model.expand(shape)
        allowed = torch.zeros(shape, dtype=torch.bool, device=self.model.device)
        for place in itertools.product(*map(range, shape)):
            here = tuple(0 if size == 1 else i for size, i in zip(lead[::-1], place[::-1], strict=False))[::-1]
            allowed[place] = models[place].support.check(value[here] if isinstance(value, Tensor) else value.at(here))
        return allowed

    def __repr__(self) -> str:
        return f"Configurations({self.model})"
