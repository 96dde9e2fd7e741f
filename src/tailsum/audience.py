"""Who a method is for: users of a structure, or authors of one."""

from typing import TypeVar

Method = TypeVar("Method")


def for_authors(method: Method) -> Method:
    """Marks what structures override or call, and users have no need of.

    The pages about structures leave these methods out, here and in every override; `docs/api/extend.md` has them.
    """
    return method
