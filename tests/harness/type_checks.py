"""Shapes and types of the package's functions, checked while the tests run, at a cost that tests can bear.

Checking every call takes twice as long as all the rest of the tests. So each function is checked in its first calls of
each test, and functions within functions, which would be decorated anew at every call, are not.
"""

import functools
import inspect
from collections import Counter

import jaxtyping

CALLS = 3  # of a function in one test
COMPILED = (
    "tailsum.numerics.fused",
    "tailsum.nn.scripted",
    "tailsum.operator",
)  # compilers read these functions, not what is around them
SCRIPTED = ("CRF.forward", "CRF.decode", "CRF._tables")
_calls: Counter[object] = Counter()
_jaxtyped = jaxtyping.jaxtyped


def install() -> None:
    """Before the first import of the packages."""
    jaxtyping.jaxtyped = _checked_at_first
    jaxtyping.install_import_hook(["tailsum", "tailsum_studies"], "beartype.beartype").__enter__()
    from tailsum.structure.when_loaded import when_loaded  # noqa: PLC0415  (after the hook)

    when_loaded("torch._dynamo.trace_rules", _leave_checks_eager)


def _leave_checks_eager(rules):
    """The compiler is not to trace the checks either."""
    for package in ("harness", "jaxtyping", "beartype"):
        rules.add(package)


def begin_test() -> None:
    _calls.clear()


def _checked_at_first(thing=None, **options):
    if thing is None:
        return functools.partial(_checked_at_first, **options)
    if not inspect.isfunction(thing) or inspect.isgeneratorfunction(thing):
        return _jaxtyped(thing, **options)
    if "<locals>" in thing.__qualname__ or thing.__qualname__ in SCRIPTED or thing.__module__.startswith(COMPILED):
        return thing
    checked = _jaxtyped(thing, **options)

    @functools.wraps(thing)
    def call(*args, **kwargs):
        if _calls[thing] < CALLS:
            _calls[thing] += 1
            return checked(*args, **kwargs)
        return thing(*args, **kwargs)

    return call
