"""Triton's interpreter, at a cost that tests can bear.

It puts its own functions into Triton's language at every call of a kernel and of every function within it: about a third of
the time of the small kernels tested here. All kernels of the tests are interpreted, so once is enough.
"""

import importlib.util
from types import SimpleNamespace


def install() -> None:
    """Where Triton is there, and after TRITON_INTERPRET is set."""
    if importlib.util.find_spec("triton") is None:
        return
    import triton.language as tl  # noqa: PLC0415
    from triton.runtime import interpreter  # noqa: PLC0415

    interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    interpreter._patch_lang = lambda _: interpreter._LangPatchScope()  # nothing to restore


def with_fast_numbers(monkeypatch) -> None:
    """Triton's random numbers, of ten rounds, take most of the interpreter's time: two rounds of a simple hash in their place."""
    import triton.language as tl  # noqa: PLC0415

    def rand(seed, place):
        for _ in range(2):
            place = (((place + seed) % 2147483647) * 48271) % 2147483647
            place = place ^ (place >> 15)
        return (place % 16777216).to(tl.float32) / 16777216.0

    monkeypatch.setattr(tl, "rand", rand)
