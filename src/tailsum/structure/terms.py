"""Terms: the scores of a structure, a named tuple with a field for each kind of part."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from tailsum.scores.base import Scores

Terms = TypeVar("Terms", bound=tuple[Scores, ...])


def each(change: Callable[..., Scores], terms: Terms, *others: Terms) -> Terms:
    """`change` applied to every field, together with the same field of the others."""
    return _remade(terms, map(change, terms, *others))


def with_tables(terms: Terms, tables: Sequence[Tensor]) -> Terms:
    """The terms with `tables` in place of the first ones."""
    changed = [term.tabled().with_tensors([table]) for term, table in zip(terms, tables, strict=False)]
    return _remade(terms, (*changed, *terms[len(tables) :]))


def _remade(terms: Terms, fields: Any) -> Terms:
    return cast("Callable[..., Terms]", type(terms))(*fields)


def recordable(terms: Terms) -> Terms:
    """The same scores; tensors made in inference mode are cloned, as autograd cannot keep them."""

    def cloned(term: Scores) -> Scores:
        return term.map(torch.clone) if any(x.is_inference() for x in term.tensors) else term

    return each(cloned, terms)


def in_float64(terms: Terms) -> Terms:
    """Scores in float64, minus infinity in place of finite masks."""
    return each(lambda term: term.map(lambda x: x.double() if x.is_floating_point() else x).unmasked(), terms)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in a value: in containers, and in the fields of objects that are not marked `scoreless`."""
    left = [value]  # the next value is the last; recursive generators are several times slower
    while left:
        x = left.pop()
        if isinstance(x, Tensor):
            yield x
        elif isinstance(x, list | tuple) and not isinstance(x, torch.Size):
            left.extend(reversed(x))
        elif x is None or isinstance(x, (int, float, str, torch.Size)) or getattr(type(x), "scoreless", False):
            pass
        elif isinstance(x, Mapping):
            left.extend(reversed(list(x.values())))
        elif type(x).__module__.startswith("tailsum.") and hasattr(x, "__dict__"):
            left.extend(reversed(vars(x).values()))


def requires_grad(*terms: tuple[Scores, ...]) -> bool:
    """Whether any of the scores requires a gradient."""
    return any(term.requires_grad for fields in terms for term in fields)
