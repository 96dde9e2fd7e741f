"""Losses as single operators of the graphs of `torch.compile`, also of those that must be whole."""

import contextlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_numbers = itertools.count()


class Operator:
    """A function of tensors to a number, such as a loss, as one operator: nothing within it is traced.

    Under `torch.compile` other code of this package runs between compiled parts, which it may be told not to allow. An operator is
    part of the graph. It computes its gradients together with its value, if any are needed; they cannot be differentiated again.

    >>> @Operator
    ... def loss(emission, transition, tags):
    ...     return -LinearChain(emission, transition).log_prob(tags).mean()
    >>> from tailsum import LinearChain
    >>> step = torch.compile(lambda *inputs: 2 * loss(*inputs), fullgraph=True, backend="aot_eager")
    >>> emission = torch.zeros(1, 3, 2, requires_grad=True)
    >>> step(emission, torch.zeros(2, 2), torch.tensor([[0, 1, 0]])).backward()
    >>> emission.grad[0, 0]
    tensor([-1.,  1.])
    """

    def __init__(self, function: Callable[..., Tensor]) -> None:
        self.function = function
        name = f"tailsum::{getattr(function, '__name__', 'operator').strip('<>')}_{next(_numbers)}"

        def value(inputs: Sequence[Tensor]) -> Tensor:
            with torch.no_grad():
                return _number(function(*inputs), inputs)

        def with_slopes(inputs: Sequence[Tensor], wanted: Sequence[int]) -> list[Tensor]:
            with _recording(), torch.enable_grad():
                leaves = [x.detach() for x in inputs]
                for place in wanted:
                    leaves[place].requires_grad_()
                result = _number(function(*leaves), inputs)
                slopes = torch.autograd.grad(result, [leaves[place] for place in wanted], materialize_grads=True)
            return [result.detach(), *(x.contiguous() for x in slopes)]

        schema = "(Tensor[] inputs) -> Tensor", "(Tensor[] inputs, int[] wanted) -> Tensor[]"
        tags = (torch.Tag.cudagraph_unsafe,) if hasattr(torch.Tag, "cudagraph_unsafe") else ()  # it looks at values
        self._value = torch.library.custom_op(f"{name}_value", value, mutates_args=(), schema=schema[0], tags=tags)
        self._with_slopes = torch.library.custom_op(
            f"{name}_slopes", with_slopes, mutates_args=(), schema=schema[1], tags=tags
        )
        self._value.register_fake(_like)
        self._with_slopes.register_fake(
            lambda inputs, wanted: [_like(inputs), *(torch.empty_like(inputs[i]).contiguous() for i in wanted)]
        )

    def __repr__(self) -> str:
        return f"Operator({getattr(self.function, '__name__', 'function')})"

    def __call__(self, *inputs: Tensor) -> Tensor:
        if not inputs or not all(isinstance(x, Tensor) for x in inputs):
            raise ValueError(f"the arguments of an operator must be tensors: got {[type(x).__name__ for x in inputs]}")
        wanted = [place for place, x in enumerate(inputs) if x.requires_grad]
        if not wanted or not torch.is_grad_enabled():
            return self._value(list(inputs))
        result, *slopes = self._with_slopes([x.detach() for x in inputs], wanted)
        return _Number.apply(result, len(wanted), *slopes, *(inputs[place] for place in wanted))


class _Number(torch.autograd.Function):
    """Gives a number its gradients."""

    @staticmethod
    def forward(result: Tensor, count: int, *tensors: Tensor) -> Tensor:  # noqa: ARG004
        return result.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        ctx.save_for_backward(*inputs[2 : 2 + inputs[1]])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        if torch.is_grad_enabled():
            raise RuntimeError("the gradients of an Operator cannot be differentiated again: call its function instead")
        slopes = ctx.saved_tensors
        return None, None, *(None for _ in slopes), *(grads[0] * slope for slope in slopes)


def _recording() -> contextlib.AbstractContextManager[None]:
    """Autograd within an operator, whose code runs below it."""
    core = torch._C  # noqa: SLF001  (there is no public way)
    excluded = core._dispatch_tls_local_exclude_set()  # noqa: SLF001
    for key in ("AutogradFunctionality", "ADInplaceOrView", "AutogradOther"):
        excluded = excluded.remove(getattr(core.DispatchKey, key))
    return core._ForceDispatchKeyGuard(core._dispatch_tls_local_include_set(), excluded)  # noqa: SLF001


def _like(inputs: Sequence[Tensor]) -> Tensor:
    """A number of the type of the first tensor of scores."""
    first = next((x for x in inputs if x.is_floating_point()), None)
    if first is None:
        raise ValueError(f"an operator needs an argument of a floating-point type: got {[x.dtype for x in inputs]}")
    return first.new_empty(())


def _number(result: Tensor, inputs: Sequence[Tensor]) -> Tensor:
    expected = _like(inputs)
    if result.dim() or result.dtype != expected.dtype:
        got = f"{list(result.shape)} of {result.dtype}"
        raise ValueError(
            f"an operator's function must return a number, of the type of its first scores {expected.dtype}: got {got}"
        )
    return result
