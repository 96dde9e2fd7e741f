"""Structures inside the transforms of `torch.func`: grad, jacrev, jacfwd, hessian, vmap.

The recursions read the values of scores and call autograd themselves, and transforms allow neither. So an operation is one
function of the tensors in its model, called with plain tensors (`transformed.py`). Under `vmap` the dimension that is mapped
over becomes the first batch dimension of the model.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from tailsum.numerics.transforms import is_mapped, transforming
from tailsum.scores.base import Scores
from tailsum.sketch.model import Model
from tailsum.structure.fields import changed, each_scores, over_batch
from tailsum.structure.terms import tensors_in
from tailsum.structure.transformed import Function, Looped, mapped_size, transformed

Result = TypeVar("Result")


def with_recordable(value: Any) -> Any:
    """A model, or another argument, with copies of tensors made in inference mode, which autograd cannot keep."""
    fields = vars(value) if isinstance(value, Model) else value
    if not torch.is_grad_enabled() or not any(x.is_inference() for x in tensors_in(fields)):
        return value

    def copied(x: Any) -> Any:
        return x.clone() if isinstance(x, Tensor) and x.is_inference() else x

    return changed(value, copied, {}) if fields is value else value.with_leaves(copied, {})  # pyright: ignore[reportAttributeAccessIssue]


def differentiable(operation: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Marks an operation whose result, one tensor, may be differentiated: by autograd, and inside transforms."""
    recorded = _recorded(operation)

    @functools.wraps(operation)
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        if not transforming():
            return recorded(self, *arguments, **named)
        arguments = (*arguments, *named.values())  # a model to compare with, or configurations
        models = [_evaluated(x) for x in (self, *arguments) if isinstance(x, Model)]
        configurations = [x for x in arguments if not isinstance(x, Model)]
        function = _OfModels(lambda *inputs: [recorded(*inputs)], models, configurations)
        return transformed(function, function.tensors())[0]

    return _marked(call, differentiable)


def chosen_by_value(operation: Callable[..., Result]) -> Callable[..., Result]:
    """Marks an operation whose results, states or configurations, have no gradient."""

    @functools.wraps(operation)
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        return by_value(self, lambda model: operation(model, *arguments, **named), operation.__name__)

    return _marked(call, chosen_by_value)


def outside_transforms(operation: Callable[..., Result]) -> Callable[..., Result]:
    """Marks an operation that does not run inside transforms of `torch.func`; autograd may differentiate its results."""
    recorded = _recorded(operation)

    @functools.wraps(operation)
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        if transforming():
            raise RuntimeError(_advice(operation.__name__, "the transforms of torch.func"))
        return recorded(self, *arguments, **named)

    return _marked(call, outside_transforms)


def keep_decorators(structure: type) -> None:
    """Decorate the methods of a class of structures as the operations that they override."""
    for name in dir(structure):
        owner, *bases = (kind for kind in structure.__mro__ if name in vars(kind))
        if not hasattr(vars(owner)[name], _MARK):
            decorators = (getattr(vars(base)[name], _MARK, None) for base in bases)
            if decorate := next(filter(None, decorators), None):
                setattr(structure, name, decorate(vars(owner)[name]))


_MARK = "_decorated_as_operation"


def _marked(call: Callable[..., Any], decorator: Callable[..., Any]) -> Callable[..., Any]:
    setattr(call, _MARK, decorator)
    return call


def by_value(model: Any, operation: Callable[[Any], Result], name: str) -> Result:
    """`operation(model)`, whose result has no gradient; inside a transform, on plain tensors."""
    if not transforming():
        return operation(model)
    result = list[Any]()

    def run(plain: Any) -> list[Tensor]:
        result[:] = [operation(plain)]
        return list(tensors_in(result[0]))

    function = _OfModels(run, [_evaluated(model)], [])
    if any(map(is_mapped, function.tensors())):
        raise RuntimeError(_advice(name, "vmap"))
    function.differentiable = False
    plain = iter(transformed(function, function.tensors()))
    return changed(result[0], lambda x: next(plain) if isinstance(x, Tensor) else x, {})


def _recorded(operation: Callable[..., Result]) -> Callable[..., Result]:
    """The operation with arguments that autograd can keep."""

    @functools.wraps(operation)
    def call(self: Any, *arguments: Any, **named: Any) -> Result:
        kept = [with_recordable(x) for x in (self, *arguments)]
        return operation(*kept, **{name: with_recordable(x) for name, x in named.items()})

    return call


def _advice(name: str, where: str) -> str:
    return (
        f"{name} does not run inside {where}: call it outside, on one model with a batch dimension in place of "
        f"the mapped one, or differentiate by torch.autograd.grad"
    )


def _evaluated(model: Any) -> Any:
    """The model with tables in place of gates and functions, as a transform does not see the tensors that functions use."""

    def table(scores: Scores) -> Scores:
        return scores.without_nan().evaluated()

    return _remade(model, {name: each_scores(value, table) for name, value in vars(model).items()}, _evaluated)


def _remade(model: Any, fields: dict[str, Any], change: Callable[[Any], Any]) -> Any:
    """The model with other fields, and the same change of the model that it is a sketch of."""
    whole = None if model.whole is model else change(model.whole)
    return model.replaced(**(fields | {"_origin": whole}))


class _OfModels(Function):
    """A function of models and configurations, seen as a function of the tensors in them."""

    def __init__(self, run: Callable[..., list[Tensor]], models: Sequence[Any], configurations: Sequence[Any]) -> None:
        self.run, self.models, self.configurations = run, models, configurations

    def tensors(self) -> list[Tensor]:
        """The tensors, in the order of the arguments of this function."""
        tensors = list[Tensor]()

        def note(x: Tensor, _: int) -> Tensor:
            tensors.append(x)
            return x

        for model in self.models:
            _with_tensors(model, note)
        return [*tensors, *tensors_in(self.configurations)]

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        tensors = iter(inputs)
        models = [_with_tensors(model, lambda *_: next(tensors)) for model in self.models]
        filled = changed(self.configurations, lambda x: next(tensors) if isinstance(x, Tensor) else x, {})
        return self.run(*models, *filled)

    def batched(self, mapped: Sequence[bool]) -> Function:
        return Looped(self, mapped) if self.configurations else _OfBatches(self.run, self.models, mapped)


class _OfBatches(Function):
    """A function of models that all have one more batch dimension, the first."""

    def __init__(self, run: Callable[..., list[Tensor]], models: Sequence[Any], mapped: Sequence[bool]) -> None:
        self.run, self.models, self.mapped = run, models, mapped

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        size, tensors = mapped_size(inputs, self.mapped), zip(inputs, self.mapped, strict=True)
        return self.run(*(_wider(model, tensors, size) for model in self.models))


def _wider(model: Any, tensors: Iterator[tuple[Tensor, bool]], size: int) -> Any:
    """The model with a new first batch dimension, which the mapped tensors have before all of their own dimensions."""
    dims = len(model.batch_shape)

    def wider(x: Tensor, after: int) -> Tensor:
        new, mapped = next(tensors)
        new = new if mapped else new.expand(size, *x.shape)
        return new.reshape(size, *(1,) * (dims + after - x.dim()), *x.shape)

    def shared(x: Tensor, after: int) -> Tensor:
        new, mapped = next(tensors)
        return new.reshape(size, *(1,) * (dims + after - x.dim()), *x.shape) if mapped else new

    fields = over_batch(model, wider, shared) | {"batch_shape": torch.Size((size, *model.batch_shape))}
    return _remade(model, fields, lambda whole: _wider(whole, tensors, size))


def _with_tensors(model: Any, change: Callable[[Tensor, int], Tensor]) -> Any:
    """The model with other tensors, in the whole model of a sketch too."""
    return _remade(model, over_batch(model, change, change), lambda whole: _with_tensors(whole, change))
