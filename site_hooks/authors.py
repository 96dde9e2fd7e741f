"""Pages about structures without the methods for their authors: those of `StructureModel`, and those marked `for_authors`.

`docs/api/extend.md` names them one by one. Here their names become a filter for the members of all other classes.
"""

import ast
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority

SOURCE = Path(__file__).parents[1] / "src" / "tailsum"
MODEL = SOURCE / "structure" / "model.py"  # what an author writes
DECORATOR = "for_authors"  # what an author may call or override


@event_priority(100)  # before mkdocstrings reads its options
def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the filter to the options of the API pages."""
    options = config.plugins["mkdocstrings"].config.handlers["python"]["options"]
    options["filters"] = ["!^_", f"!^({'|'.join(sorted(for_authors()))})$"]
    return config


def for_authors() -> set[str]:
    """The names of these methods."""
    names = {method.name for method in _methods(MODEL)}
    return names | {
        method.name
        for path in SOURCE.rglob("*.py")
        for method in _methods(path)
        if any(isinstance(x, ast.Name) and x.id == DECORATOR for x in method.decorator_list)
    }


def _methods(path: Path) -> list[ast.FunctionDef]:
    classes = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]
    return [x for node in classes for x in node.body if isinstance(x, ast.FunctionDef) and not x.name.startswith("_")]
