"""Links that leave `docs/`: to source files, examples and the README.

Pages link to `../src/tailsum/chains/ctc.py`, which works where the repository is browsed. The site has no such file, so each
linked file becomes a page of its own, `source/src/tailsum/chains/ctc.py.html`, and the link goes there. The README's
page is the site's first one. A link to what does not exist stays as it is, and fails the strict build.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

LINK = re.compile(r"(?<=\]\()(?P<target>\.\./[^)#\s]+)(?=[)#])")
LANGUAGES = {".py": "python", ".toml": "toml"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each file outside `docs/` that some page links to."""
    root = Path(config.docs_dir).parent
    for file in list(files.documentation_pages()):
        for found in LINK.finditer(file.content_string):
            path = _outside(file.src_uri, found["target"])
            target = root / path if path else root
            if path and path != "README.md" and target.is_file() and not files.get_file_from_path(_page_of(path)):
                page = File.generated(config, _page_of(path), content=_listing(path, target.read_text()))
                page.inclusion = InclusionLevel.NOT_IN_NAV
                files.append(page)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links that leave `docs/` into links to those pages."""

    def inside(found: re.Match[str]) -> str:
        path = _outside(page.file.src_uri, found["target"])
        if path is None:
            return found["target"]
        target = "index.md" if path == "README.md" else _page_of(path)
        if files.get_file_from_path(target) is None:
            return found["target"]
        return posixpath.relpath(target, posixpath.dirname(page.file.src_uri) or ".")

    return LINK.sub(inside, markdown)


def on_post_build(config: MkDocsConfig) -> None:
    """Reports in `docs/` that are HTML already link to the Markdown files beside them: here these are pages."""
    for report in Path(config.docs_dir).rglob("*.html"):
        copied = Path(config.site_dir) / report.relative_to(config.docs_dir)
        copied.write_text(re.sub(r'(?<=href=")([\w/]+)\.md(?=")', r"\1.html", report.read_text()))


def _outside(page: str, target: str) -> str | None:
    """The path of a linked file in the repository, None if it is within `docs/`."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target))
    return None if path.startswith("docs/") else path


def _page_of(path: str) -> str:
    return f"source/{path if path.endswith('.md') else f'{path}.md'}"


def _listing(path: str, text: str) -> str:
    """The file as a page: Markdown as it is, anything else as code."""
    if path.endswith(".md"):
        return text
    fence = "`" * 6  # longer than any fence within
    return f"---\nsearch:\n  exclude: true\n---\n# {path}\n\n{fence}{LANGUAGES.get(Path(path).suffix, 'text')}\n{text}{fence}\n"
