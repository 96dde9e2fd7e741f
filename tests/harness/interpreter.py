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
