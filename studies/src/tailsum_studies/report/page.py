"""Pages and other text from the templates beside this file."""

import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from tailsum_studies.files import whole
from tailsum_studies.report.wording import markdown, number, percent

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TEMPLATES = Environment(
    loader=PackageLoader("tailsum_studies.report"),
    autoescape=select_autoescape(["html"]),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
TEMPLATES.filters |= {"md": markdown, "number": number, "percent": percent}


def write(path: Path, template: str, **content: Any) -> Path:
    """Fill in a template and write it to a file, whole or not at all; gives the file's path."""
    with whole(path) as file:
        file.write(TEMPLATES.get_template(template).render(content))
    return path


def words(name: str) -> dict[str, dict[str, str]]:
    """The texts of a report that are not in its templates, by their tables: `paper.toml` and so on, beside these."""
    return tomllib.loads((files("tailsum_studies.report") / "templates" / f"{name}.toml").read_text("utf-8"))
