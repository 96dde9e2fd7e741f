"""Checks of parameters that a user gives to start from."""

from jaxtyping import Float
from torch import Tensor

from tailsum.numerics.check import check_floating


def given_numbers(name: str, given: Float[Tensor, "..."] | None, shape: tuple[int, ...]) -> Float[Tensor, "..."] | None:
    """A copy of finite parameters of this shape, if there are any given."""
    if given is None:
        return None
    check_floating(name, given)
    if given.shape != shape:
        raise ValueError(f"{name} must be {list(shape)}: got {list(given.shape)}")
    if not bool(given.isfinite().all()):
        raise ValueError(f"{name} must be finite: got one that is not")
    return given.detach().clone()


def not_below_zero(**named: float) -> None:
    """Checks that each named value is a number of at least zero."""
    for name, value in named.items():
        if not value >= 0:
            raise ValueError(f"{name} must be at least 0: got {value}")
