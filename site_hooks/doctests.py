"""Doctests in docstrings as code blocks of the API pages: Markdown would take `>>>` for a quotation."""

import re

from griffe import Docstring, Extension, Object

DOCTEST = re.compile(r"^>>> .*(?:\n(?!\s*$).+)*", re.MULTILINE)


class FencedDoctests(Extension):
    """Puts a fence around each doctest, which ends with an empty line."""

    def on_object(self, *, obj: Object, **kwargs: object) -> None:
        """Called for every module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring = _fenced(obj.docstring)


def _fenced(docstring: Docstring) -> Docstring:
    docstring.value = DOCTEST.sub(lambda found: f"```pycon\n{found[0]}\n```", docstring.value)
    return docstring
