r"""Formulas as MathML, written when the site is built: browsers show it without scripts or fonts from elsewhere.

`pymdownx.arithmatex` marks `$a$` and `$$b$$` as `\(a\)` and `\[b\]` in the page; here they are replaced.
"""

import html
import re

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
DISPLAY = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL)


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace the formulas of a page."""
    content = INLINE.sub(lambda found: _mathml(found[1], "inline"), content)
    return DISPLAY.sub(lambda found: f'<div class="formula">{_mathml(found[1], "block")}</div>', content)


def _mathml(latex: str, display: str) -> str:
    found = convert(html.unescape(latex).strip(), display=display)
    return found.replace("<mi>log</mi>", '<mi>log</mi><mspace width="0.17em"/>')  # "log Z", not "logZ"
