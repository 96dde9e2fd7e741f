"""Who a method is for: users of a structure, or authors of one."""

from typing import TypeVar

Method = TypeVar("Method")


def for_authors(method: Method) -> Method:
    """Marks a method that structures override or call, and users do not need.

    The pages about structures leave it and its overrides out; `docs/api/extend.md` has those that matter.
    """
    return method
