"""Arguments in a form that ranks can compare: numbers and names themselves, tensors by their shape and a few sums."""

import math
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tailsum.numerics.kernels import is_fast
from tailsum.numerics.tensors import finite
from tailsum.numerics.tiles import budget
from tailsum.sketch.proposal import Proposal
from tailsum.sketch.selection import Subset


@dataclass(frozen=True)
class Contents:
    """A tensor's type and shape, a checksum of its integers or of where it is finite, and weighted sums of its floats.

    Ranks that compute the same numbers may differ in the last digits, so the sums may differ in half of their digits.
    """

    form: str
    sums: tuple[float, float] = (0.0, 0.0)
    tolerance: float = 0.0

    @classmethod
    def of(cls, x: Tensor) -> "Contents":
        kind, x, weights = f"{str(x.dtype)[6:]} {list(x.shape)}", x.detach().flatten(), _weights(x.numel(), x.device)
        integers = ~x.isfinite() if x.is_floating_point() else x
        form = f"{kind} {(integers * weights).sum().item() % 2**32:08x}"
        if not x.is_floating_point():
            return cls(form)
        numbers, weights = finite(x).double(), weights.double() / 2**63
        sums = (numbers * weights).sum(), (numbers * weights.flip(0)).sum()
        size = max(numbers.norm().item(), 1.0)
        return cls(form, (sums[0].item(), sums[1].item()), math.sqrt(torch.finfo(x.dtype).eps) * size)

    def __str__(self) -> str:
        return f"{self.form} {self.sums[0]:.6g} {self.sums[1]:.6g}" if self.tolerance else self.form


Form = Mapping[str, object]  # what must be equal on all ranks, by its name in errors


def form_of(operation: str, arguments: Mapping[str, object]) -> Form:
    """The name of an operation, its arguments, and the settings under which it is called."""
    form: dict[str, object] = {
        "the operation": operation,
        "whether gradients are recorded": torch.is_grad_enabled(),
        "the table budget": budget(),
        "the precision": "fast" if is_fast() else "full",
    }
    for name, value in arguments.items():
        if isinstance(value, Subset):
            form[f"{name}.index"] = Contents.of(value.index)
            form[f"{name}.log_weight"] = Contents.of(value.log_weight)
        elif isinstance(value, Tensor):
            form[name] = Contents.of(value)
        elif callable(value) and not isinstance(value, Proposal):
            form[name] = getattr(value, "__qualname__", type(value).__name__)
        else:
            form[name] = value
    return form


def numbers_of(form: Form) -> tuple[float, list[float], float]:
    """A number, the same for equal forms; two sums, and how far apart they may be."""
    contents = [value for value in form.values() if isinstance(value, Contents)]
    exact = {name: value.form if isinstance(value, Contents) else str(value) for name, value in form.items()}
    sums = [sum(c.sums[i] for c in contents) for i in range(2)]
    return float(zlib.crc32(repr(exact).encode())), sums, sum(c.tolerance for c in contents)


def different(forms: Iterable[Form]) -> str:
    """The text of an error that names the first difference among the forms of all ranks."""
    first, *others = forms
    for name in first:
        values = [first[name], *(other.get(name) for other in others)]
        if not all(_alike(values[0], value) for value in values):
            return f"{name} must be the same on every rank: got {', '.join(map(str, values))}"
    return "arguments must be the same on every rank"


def _alike(a: object, b: object) -> bool:
    if not isinstance(a, Contents) or not isinstance(b, Contents):
        return str(a) == str(b)
    apart = max(abs(x - y) for x, y in zip(a.sums, b.sums, strict=True))
    return a.form == b.form and apart <= max(a.tolerance, b.tolerance)


def _weights(n: int, device: torch.device) -> Tensor:
    """Integers of any sign that look random, the same on every device."""
    x = torch.arange(1, n + 1, device=device) * -0x61C8864680B583EB
    x = (x ^ (x >> 30)) * -0x40A7B892E31B1A47
    x = (x ^ (x >> 27)) * -0x6B2FB644ECCEEE15
    return x ^ (x >> 31)
