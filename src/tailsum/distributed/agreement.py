"""Agreement among ranks: before an operation they compare its arguments, and an error on one rank is raised on all.

Each operation begins with one all-reduce of a few numbers, a fingerprint of its name and arguments. If ranks call
different operations, or one with different arguments, all of them raise there; only then do they exchange more, to name
what differs. Errors in arguments or in a user's function are reported there as well. The ranks are then still in step, and
the group can be used. An error later on, between the exchanges of an operation, leaves the other ranks waiting:
`Shards.abandon` makes them raise too, and the group cannot be used any more.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

import torch
import torch.distributed as dist

from tailsum.distributed.fingerprint import Form, different, form_of, numbers_of
from tailsum.distributed.shards import Group, Shards, rank_and_count


class RanksError(ValueError):
    """An error that all ranks raise at the same place, so that no rank waits for another."""


P = ParamSpec("P")
Result = TypeVar("Result")


def together(
    prepare: Callable[..., Mapping[str, Any]] = lambda _: {}, unshared: tuple[str, ...] = ()
) -> Callable[[Callable[P, Result]], Callable[P, Result]]:
    """Decorate a method of an object with `_shards`, called by every rank with the same arguments unless `unshared`.

    `prepare` checks the user's arguments, and returns the arguments of the method by name.
    """

    def decorated(method: Callable[P, Result]) -> Callable[P, Result]:
        @functools.wraps(method)
        def operation(*args: P.args, **kwargs: P.kwargs) -> Result:
            self: Any = args[0]
            shards: Shards = self._shards
            arguments = agreed(shards, method.__name__, functools.partial(prepare, *args, **kwargs), unshared)
            try:
                return method(self, **arguments)  # pyright: ignore[reportCallIssue]
            except RanksError:
                raise
            except BaseException as error:
                shards.abandon(error)
                raise

        return operation

    return decorated


def agreed(
    shards: Shards, operation: str, prepare: Callable[[], Mapping[str, Any]], unshared: tuple[str, ...] = ()
) -> Mapping[str, Any]:
    """The arguments that `prepare` returns, the same on every rank unless `unshared`. Its errors are raised on all ranks."""
    if shards.count == 1:
        return prepare()
    begun, arguments, form, error = shards.exchanges, dict[str, Any](), dict[str, object](), None
    try:
        arguments = prepare()
        form = form_of(operation, {name: x for name, x in arguments.items() if name not in unshared})
    except RanksError:
        raise
    except Exception as wrong:
        if shards.exchanges > begun:  # a user's function: the other ranks may be within any of its exchanges
            shards.abandon(wrong)
            raise
        error = wrong
    compare(shards, form, error)
    return arguments


def compare(shards: Shards, form: Form, error: Exception | None) -> None:
    """Raise on every rank if forms differ, or if any rank has an error."""
    exact, sums, tolerance = numbers_of(form)
    row = torch.tensor([float(error is not None), tolerance, exact, *sums], dtype=torch.float64, device=shards.place)
    highest, lowest = shards.all_reduce(torch.stack((row, -row)), dist.ReduceOp.MAX).unbind()
    (failed, tolerance, *_), apart = highest.tolist(), (highest + lowest).tolist()  # the same on every rank
    if not failed and not apart[2] and max(apart[3:]) <= tolerance:
        return
    text = None if error is None else _text(error)
    reported: list[tuple[Form, str | None]] = [(form, text)] * shards.count
    dist.all_gather_object(reported, (form, text), group=shards.group)
    if text is not None:
        raise RanksError(text) from error
    for p, (_, wrong) in enumerate(reported):
        if wrong is not None:
            raise RanksError(f"rank {p}: {wrong}")
    raise RanksError(different(form for form, _ in reported))


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"


def shards_of(group: Group | None, size: int, form: Mapping[str, object], error: Exception | None) -> Shards:
    """The slices of all ranks, from the number of this rank's states. `form` and `error` are compared."""
    rank, count = rank_and_count(group)
    if rank < 0:
        raise ValueError("group must be a process group that this process belongs to")

    def prepare() -> Mapping[str, object]:
        if error is not None:
            raise error
        return form

    shards = Shards([size] * count, rank, group)
    agreed(shards, "ShardedChain", prepare)
    sizes = shards.stacked(torch.tensor(size, device=shards.place))
    return Shards(sizes.tolist(), rank, group)
