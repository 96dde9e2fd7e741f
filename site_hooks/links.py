"""Pages of the studies, and links that leave a folder of pages: to source files, examples and the README.

The site shows `docs/`, and beside it `studies/docs/`, under the path that it has in the repository. Pages link to each other
and to source files as they lie in the repository, where that is browsed. A source file is no part of the site, so each that
is linked becomes a page of its own, `source/src/tailsum/chains/ctc.py.html`, and the link goes there. The README's page is the
site's first one. A link to what does not exist stays as it is, and fails the strict build.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

LINK = re.compile(r"(?<=\]\()(?P<target>\.\./[^)#\s]+)(?=[)#])")
LANGUAGES = {".py": "python", ".toml": "toml"}
STUDIES = "studies/docs/"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the studies, and a page for each source file that some page links to."""
    root = Path(config.docs_dir).parent
    for path in sorted((root / STUDIES).rglob("*")):
        if path.is_file():
            files.append(File(path.relative_to(root).as_posix(), str(root), config.site_dir, config.use_directory_urls))
    for file in list(files.documentation_pages()):
        for found in LINK.finditer(file.content_string):
            path = _in_repository(file.src_uri, found["target"])
            name = _in_site(path)
            if name.startswith("source/") and (root / path).is_file() and not files.get_file_from_path(name):
                page = File.generated(config, name, content=_listing(path, (root / path).read_text()))
                page.inclusion = InclusionLevel.NOT_IN_NAV
                files.append(page)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between places in the repository into links between pages of the site."""

    def inside(found: re.Match[str]) -> str:
        target = _in_site(_in_repository(page.file.src_uri, found["target"]))
        if files.get_file_from_path(target) is None:
            return found["target"]
        return posixpath.relpath(target, posixpath.dirname(page.file.src_uri) or ".")

    return LINK.sub(inside, markdown)


def on_post_build(config: MkDocsConfig) -> None:
    """Reports that are HTML already link to the Markdown files beside them: here these are pages."""
    root = Path(config.docs_dir).parent
    for report in (root / STUDIES).rglob("*.html"):
        copied = Path(config.site_dir) / report.relative_to(root)
        copied.write_text(re.sub(r'(?<=href=")([\w/]+)\.md(?=")', r"\1.html", report.read_text()))


def _in_repository(page: str, target: str) -> str:
    """The path of what a page of the site links to."""
    folder = posixpath.dirname(page if page.startswith(STUDIES) else f"docs/{page}")
    return posixpath.normpath(posixpath.join(folder, target))


def _in_site(path: str) -> str:
    """The page of the site for a file of the repository."""
    if path.startswith(STUDIES):
        return path
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path == "README.md":
        return "index.md"
    return f"source/{path if path.endswith('.md') else f'{path}.md'}"


def _listing(path: str, text: str) -> str:
    """The file as a page: Markdown as it is, anything else as code."""
    if path.endswith(".md"):
        return text
    fence = "`" * 6  # longer than any fence within
    return f"---\nsearch:\n  exclude: true\n---\n# {path}\n\n{fence}{LANGUAGES.get(Path(path).suffix, 'text')}\n{text}{fence}\n"
