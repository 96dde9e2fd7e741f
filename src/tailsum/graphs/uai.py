"""Models in the UAI file format of public benchmarks.

A `.uai` file is a list of words: `MARKOV` or `BAYES`, the number of variables, the number of states of each, the number of
factors, the size and the variables of each, and a table for each: its size, and its entries (not logarithms) in row-major
order. A `.uai.evid` file holds one line of observations: their number, then pairs of a variable and its state; in an
older form, the number of such lines comes first.
"""

import contextlib
import math
import re
from decimal import Decimal, InvalidOperation
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tailsum.graphs.factor_graph import FactorGraph


def read_uai(
    path: str | PathLike[str],
    evidence: str | PathLike[str] | None = None,
    dtype: torch.dtype = torch.float64,
    **how: Any,
) -> FactorGraph:
    """The model in a `.uai` file, given the observations of a `.uai.evid` file.

    Observed variables keep all their states; all but the observed one are forbidden, so the log-partition is the
    log-probability of the evidence. Factors over the same variables are added. `how` are options of `FactorGraph`.
    """
    words = _Words(Path(path))
    kind, _ = words.next("MARKOV or BAYES")
    if kind.upper() not in ("MARKOV", "BAYES"):
        raise ValueError(f"{path} must begin with MARKOV or BAYES: got {kind!r}")
    sizes = [words.whole("a number of states", 1) for _ in range(words.whole("the number of variables", 1))]
    scopes = [_scope(words, len(sizes)) for _ in range(words.whole("the number of factors", 0))]
    read = [_table(words, scope, sizes, dtype) for scope in scopes]
    words.end()
    _check_size(words, sizes)
    unary = [torch.zeros(size, dtype=dtype) for size in sizes]
    tables: dict[tuple[int, ...], Tensor] = {}
    for scope, table in zip(scopes, read, strict=True):
        if len(scope) < 2:  # a constant is added to the first variable
            variable = scope[0] if scope else 0
            unary[variable] = unary[variable] + table
        else:
            order = sorted(range(len(scope)), key=lambda a: scope[a])
            key = tuple(scope[a] for a in order)
            tables[key] = tables.get(key, torch.zeros((), dtype=dtype)) + table.permute(order)
    if evidence is not None:
        for variable, state in read_evidence(evidence, sizes).items():
            observed = torch.full_like(unary[variable], -math.inf)
            observed[state] = unary[variable][state]
            unary[variable] = observed
    return FactorGraph(unary, _alike(tables), **how)


def read_evidence(path: str | PathLike[str], sizes: list[int]) -> dict[int, int]:
    """The observed variables and their states in a `.uai.evid` file, checked against the numbers of states."""
    words = _Words(Path(path))
    first = words.whole("the number of observations", 0)
    left = words.left()
    if left == 2 * first:
        count = first
    elif first == 1 and left > 0:
        count = words.whole("the number of observations", 0)
    else:
        raise ValueError(f"{path} must hold {first} pairs of a variable and its state: got {left} numbers")
    observed: dict[int, int] = {}
    for _ in range(count):
        variable = words.whole("an observed variable", 0, len(sizes) - 1)
        state = words.whole(f"the state of variable {variable}", 0, sizes[variable] - 1)
        if observed.setdefault(variable, state) != state:
            raise ValueError(
                f"{path} must give each variable one state: got {observed[variable]} and {state} for {variable}"
            )
    words.end()
    return observed


def _scope(words: "_Words", n_nodes: int) -> tuple[int, ...]:
    size = words.whole("the number of variables of a factor", 0)
    scope = tuple(words.whole("a factor's variable", 0, n_nodes - 1) for _ in range(size))
    if len(set(scope)) < size:
        raise ValueError(f"{words.path} must have factors over different variables: got {list(scope)}")
    return scope


def _table(words: "_Words", scope: tuple[int, ...], sizes: list[int], dtype: torch.dtype) -> Tensor:
    shape = [sizes[v] for v in scope]
    size = words.whole("the size of a table", 0)
    if size != math.prod(shape):
        raise ValueError(
            f"{words.path} must have a table of {math.prod(shape)} numbers over variables {list(scope)}: got {size}"
        )
    return torch.tensor([words.log_potential() for _ in range(size)], dtype=torch.float64).to(dtype).reshape(shape)


def _check_size(words: "_Words", sizes: list[int]) -> None:
    """The unary scores, padded to the largest variable, must be few or in proportion to the length of the file."""
    most, count = max(sizes), len(words.words)
    if len(sizes) * most > max(1 << 24, 1000 * count):
        raise ValueError(
            f"{words.path} must have numbers of states that its {count} words can be the tables of: got {most} states of "
            f"variable {sizes.index(most)}, with {len(sizes)} variables"
        )


def _alike(tables: dict[tuple[int, ...], Tensor]) -> list[tuple[Tensor, Tensor]]:
    """The factors, grouped by shape."""
    by_shape: dict[torch.Size, list[tuple[int, ...]]] = {}
    for scope, table in tables.items():
        by_shape.setdefault(table.shape, []).append(scope)
    return [(torch.tensor(scopes), torch.stack([tables[scope] for scope in scopes])) for scopes in by_shape.values()]


class _Words:
    """A reader of the words of a file, with errors that name the line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            text = path.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError:
            raise ValueError(f"{path} must be a text file: got something else") from None
        self.words = [(word, n) for n, line in enumerate(text.splitlines(), 1) for word in line.split()]
        self.taken = 0

    def left(self) -> int:
        return len(self.words) - self.taken

    def next(self, expected: str) -> tuple[str, int]:
        """The next word and its line."""
        if not self.left():
            raise ValueError(f"{self.path} must go on with {expected}: got the end of the file")
        self.taken += 1
        return self.words[self.taken - 1]

    def whole(self, name: str, least: int, most: int | None = None) -> int:
        word, line = self.next(name)
        limits = f"at least {least}" if most is None else f"{least} to {most}"
        number = int(word) if re.fullmatch("[+-]?[0-9]{1,4000}", word) else least - 1  # more digits fail in int
        if number < least or (most is not None and number > most):
            raise ValueError(f"{self.path}, line {line}: {name} must be a whole number, {limits}: got {word!r}")
        return number

    def log_potential(self) -> float:
        """The logarithm of a number, which may be out of the range of float64."""
        word, line = self.next("a number of a table")
        number = None
        if re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", word):
            with contextlib.suppress(InvalidOperation):  # an exponent of twenty digits
                number = Decimal(word)
        if number is None or number < 0:
            raise ValueError(f"{self.path}, line {line}: tables must hold numbers from 0 up: got {word!r}")
        value = float(word)
        if 0 < value < math.inf:
            return math.log(value)
        return float(number.ln()) if number else -math.inf

    def end(self) -> None:
        if self.left():
            word, line = self.next("")
            raise ValueError(f"{self.path}, line {line}: the model ends here: got {word!r} after it")
