"""Pages and other text from the templates beside this file."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from tailsum.apps.files import whole
from tailsum.apps.report.wording import capital, markdown

TEMPLATES = Environment(
    loader=PackageLoader("tailsum.apps.report"),
    autoescape=select_autoescape(["html"]),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
TEMPLATES.filters |= {"capital": capital, "md": markdown}


def write(path: Path, template: str, **content: Any) -> Path:
    """Fill in a template and write it to a file, whole or not at all; gives the file's path."""
    with whole(path) as file:
        file.write(TEMPLATES.get_template(template).render(content))
    return path
