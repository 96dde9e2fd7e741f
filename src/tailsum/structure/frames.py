"""The stack level for warnings that point at the user's line."""

import inspect


def frames_of_ours() -> int:
    """The stack level, for `warnings.warn` in the calling function, of the first caller outside this package."""
    frame, count = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").split(".")[0] in ("tailsum", "torch"):
        frame, count = frame.f_back, count + 1
    return count
