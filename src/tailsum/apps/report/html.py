"""What all pages share: one HTML file each, with pictures and style within, no scripts, nothing to load."""

import base64
from collections.abc import Sequence
from html import escape

STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --quiet: #59636e; --line: #d8dde3; --back: #ffffff;
  --soft: #f5f7f9; --ours: #e8f2fb; --link: #0b5cad; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ed; --quiet: #9aa4af; --line: #363d45; --back: #14171b; --soft: #1d2126; --ours: #14304a;
    --link: #78b8f0; }
}
* { box-sizing: border-box; }
html { scroll-behavior: smooth; -webkit-text-size-adjust: 100%; }
@media (prefers-reduced-motion: reduce) { html { scroll-behavior: auto; } }
body { margin: 0; background: var(--back); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
header, main, footer { max-width: 948px; margin: 0 auto; padding: 0 24px; }
header { padding-top: 40px; }
h1 { font-size: 1.8rem; line-height: 1.2; margin: 0 0 .5rem; letter-spacing: -.01em; }
h2 { font-size: 1.35rem; margin: 0 0 .5rem; }
section { margin: 48px 0 0; padding-top: 24px; border-top: 1px solid var(--line); }
p { margin: .5rem 0; max-width: 72ch; }
a { color: var(--link); }
a:focus-visible, .scroll:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
.lead, .files, footer { color: var(--quiet); }
.files, .note, footer { font-size: .875rem; }
.note { color: var(--quiet); }
nav ul { list-style: none; display: flex; flex-wrap: wrap; gap: 4px 20px; margin: 20px 0 0; padding: 0; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 20px; margin: 12px 0; font-size: .9375rem; }
dt { color: var(--quiet); }
dd { margin: 0; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; margin: 28px 0 8px; border: 1px solid var(--line); border-radius: 8px; }
table { border-collapse: collapse; width: 100%; font-size: .875rem; line-height: 1.4;
  font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: 10px 12px; background: var(--soft);
  border-bottom: 1px solid var(--line); }
th, td { padding: 6px 12px; text-align: right; vertical-align: top; }
td { white-space: nowrap; }
tbody th { text-align: left; font-weight: 400; white-space: nowrap; }
thead th { font-weight: 600; vertical-align: bottom; border-bottom: 1px solid var(--line); }
thead th.name { text-align: left; }
tbody + tbody { border-top: 1px solid var(--line); }
.ours { background: var(--ours); }
figure { margin: 20px 0; }
figure img { display: block; max-width: 100%; height: auto; background: #ffffff; border-radius: 8px; }
figcaption { font-size: .875rem; color: var(--quiet); margin-top: 6px; max-width: 80ch; }
footer { padding-top: 32px; padding-bottom: 48px; }
@media (max-width: 600px) { header, main, footer { padding-left: 14px; padding-right: 14px; } h1 { font-size: 1.4rem; } }
@media print { section { break-before: auto; } .scroll, figure { break-inside: avoid; } .scroll { overflow: visible; } }
"""


def document(title: str, body: Sequence[str], style: str = "") -> str:
    """A whole page of these parts, those that are empty left out; `style` is added to what all pages share."""
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en-GB">',
        "<head>",
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE}{style}</style>",
        "</head>",
        "<body>",
        *body,
        "</body>",
        "</html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def embedded(png: bytes, caption: str) -> str:
    """A picture within the page, and what is said of it."""
    data = base64.b64encode(png).decode("ascii")
    width, height = _size(png)
    text = escape(caption)
    return (
        f'<figure>\n<img src="data:image/png;base64,{data}" alt="Plot. {text}" width="{width}" height="{height}">\n'
        f"<figcaption>{text}</figcaption>\n</figure>"
    )


def _size(png: bytes) -> tuple[int, int]:
    """Width and height on the page, from the head of a PNG file: two thirds of its pixels, for sharp screens."""
    width, height = (int.from_bytes(png[at : at + 4]) for at in (16, 20))
    return round(width / 1.5), round(height / 1.5)


def scrolling(caption: str, heads: str, bodies: str) -> str:
    """A table in a box of its own, which scrolls where it is too wide; its head and bodies are HTML already."""
    text = escape(caption)
    return (
        f'<div class="scroll" role="region" aria-label="{text}" tabindex="0">\n<table>\n<caption>{text}</caption>\n'
        f"<thead><tr>{heads}</tr></thead>\n{bodies}\n</table>\n</div>"
    )


def class_of(name: str) -> str:
    """The attribute of a tag that has a class, or nothing.

    >>> class_of("ours"), class_of("")
    (' class="ours"', '')
    """
    return f' class="{name}"' if name else ""
