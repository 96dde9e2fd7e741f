"""Whether Triton kernels replace plain torch, and how precise products on a GPU are.

Every kernel has a reference in plain torch with the same results, which runs without Triton, on a CPU and in float64.
"""

import contextlib
import contextvars
import functools
import importlib.util
from collections.abc import Iterator
from typing import Literal, TypeVar

import torch
from torch import Tensor

ALIGNED = 16  # Triton reads several numbers at once where strides are multiples of this
WIDEST = 64  # the most numbers of a factor that the tiles of kernels have room for

Use = Literal["auto", "never", "always"]
Precision = Literal["full", "fast"]
Value = TypeVar("Value")

_use: contextvars.ContextVar[Use] = contextvars.ContextVar("kernels", default="auto")
_precision: contextvars.ContextVar[Precision] = contextvars.ContextVar("precision", default="full")


def kernels(use: Use) -> contextlib.AbstractContextManager[None]:
    """Within it, Triton kernels are used on a GPU where they exist ("auto", the default), or "never".

    "always" is for tests: it uses kernels on a CPU too, which needs Triton's interpreter (`TRITON_INTERPRET=1`).

    >>> import tailsum as ts
    >>> with ts.kernels("never"):
    ...     ts.LinearChain(torch.zeros(5, 3), torch.zeros(3, 3)).log_partition().exp().round()
    tensor(243.)
    """
    if use not in {"auto", "never", "always"}:
        raise ValueError(f"kernels must be 'auto', 'never' or 'always': got {use!r}")
    return within(_use, use)


def precision(name: Precision) -> contextlib.AbstractContextManager[None]:
    """Within it, float32 products on a GPU are "full" (the default), or "fast" where kernels of chains multiply with messages.

    Full: log Z is within 1e-3 nats of float64 over 100 steps, for scores of standard deviation up to 3. Fast: within
    0.05 nats, with relative errors of gradients of about 1e-3, as those products are in tf32, on rounded operands. Scores
    made on the way keep 16 bits; what plain torch computes stays in full precision, and torch's own switches for tf32 change nothing.

    >>> import tailsum as ts
    >>> with ts.precision("fast"):
    ...     ts.LinearChain(torch.zeros(5, 3), torch.zeros(3, 3)).log_partition().exp().round()
    tensor(243.)
    """
    if name not in {"full", "fast"}:
        raise ValueError(f"precision must be 'full' or 'fast': got {name!r}")
    return within(_precision, name)


@contextlib.contextmanager
def within(variable: contextvars.ContextVar[Value], value: Value) -> Iterator[None]:
    """A context in which the variable has this value."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def is_fast() -> bool:
    """Whether the precision is "fast"."""
    return _precision.get() == "fast"


def fused(*tensors: Tensor) -> bool:
    """Whether kernels take these tensors: they are float32 and on the current GPU, and Triton is installed."""
    use = _use.get()
    if use == "never" or not tensors or not all(x.dtype == torch.float32 for x in tensors):
        return False
    if use == "always":
        return _has_triton()
    return all(x.is_cuda and x.device.index == torch.cuda.current_device() for x in tensors) and _has_triton()


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None
