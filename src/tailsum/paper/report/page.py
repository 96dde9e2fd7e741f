"""The report as one HTML file: pictures and style within, no scripts, nothing to load."""

import base64
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from tailsum.paper.report.sections import Section
from tailsum.paper.report.table import Table

TITLE = "Scaling Structured Inference with Randomization: reproduced"

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


@dataclass(frozen=True)
class Shot:
    """A picture that was saved."""

    table: str
    caption: str
    png: bytes


def page(
    about: Mapping[str, str],
    headline: Table | None,
    sections: Sequence[Section],
    shots: Sequence[Shot],
    files: Sequence[str],
) -> str:
    """The whole page; `files` lie beside it, and each section links to its own."""
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en-GB">',
        "<head>",
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(TITLE)}</title>",
        f"<style>{STYLE}</style>",
        "</head>",
        "<body>",
        _header(sections),
        "<main>",
        _about(about),
        _summary(headline),
        *(_section(section, shots, files) for section in sections),
        "</main>",
        "<footer>Errors are estimates less exact values, in nats.</footer>",
        "</body>",
        "</html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _header(sections: Sequence[Section]) -> str:
    entries = "".join(f'<li><a href="#{escape(s.name)}">{escape(s.title)}</a></li>' for s in sections)
    nav = f'<nav aria-label="Sections"><ul>{entries}</ul></nav>' if entries else ""
    return (
        f"<header>\n<h1>{escape(TITLE)}</h1>\n"
        '<p class="lead">The tables of Fu, Cunningham and Lapata (ICML 2022), measured again: what the paper prints, the '
        f"paper's method as it runs here, and tailsum's own (“ours”).</p>\n{nav}\n</header>"
    )


def _about(about: Mapping[str, str]) -> str:
    if not about:
        return ""
    entries = "\n".join(f"<dt>{escape(_title(key))}</dt><dd>{escape(value)}</dd>" for key, value in about.items())
    return f'<section id="about">\n<h2>What was run</h2>\n<dl>\n{entries}\n</dl>\n</section>'


def _title(key: str) -> str:
    return key[:1].upper() + key[1:]


def _summary(headline: Table | None) -> str:
    if headline is None:
        return ""
    words = (
        "How many times smaller our error is than that of the paper's method, measured here on the same models: the "
        "smallest and the median over the models of each kind. Exact means an error of zero to the last bit; squared errors "
        "of some 1e-10 and less are the rounding of single precision."
    )
    return f'<section id="summary">\n<h2>In short</h2>\n<p>{escape(words)}</p>\n{to_html(headline)}\n</section>'


def _section(section: Section, shots: Sequence[Shot], files: Sequence[str]) -> str:
    name = escape(section.name)
    own = [file for file in (f"{name}.md", f"{name}.csv") if file in files]
    links = ", ".join(f'<a href="{file}">{file}</a>' for file in own)
    parts = [
        f'<section id="{name}">',
        f"<h2>{escape(section.title)}</h2>",
        f"<p>{escape(section.words)}</p>",
        f'<p class="files">Files: {links}</p>',
    ]
    for table in section.tables:
        parts.append(to_html(table))
        parts += [_figure(shot) for shot in shots if shot.table == table.key]
    return "\n".join([*parts, "</section>"])


def _figure(shot: Shot) -> str:
    data = base64.b64encode(shot.png).decode("ascii")
    width, height = _size(shot.png)
    text = escape(shot.caption)
    return (
        f'<figure>\n<img src="data:image/png;base64,{data}" alt="Plot. {text}" width="{width}" height="{height}">\n'
        f"<figcaption>{text}</figcaption>\n</figure>"
    )


def _size(png: bytes) -> tuple[int, int]:
    """Width and height on the page, from the head of a PNG file: two thirds of its pixels, for sharp screens."""
    width, height = (int.from_bytes(png[at : at + 4]) for at in (16, 20))
    return round(width / 1.5), round(height / 1.5)


def to_html(table: Table) -> str:
    """The table in a box of its own, which scrolls where it is too wide, and its notes."""
    caption = escape(table.caption)
    heads = "".join(
        f'<th scope="col"{_class("name" if i < table.names else "ours" if i in table.ours else "")}>{escape(header)}</th>'
        for i, header in enumerate(table.headers)
    )
    notes = "".join(f'\n<p class="note">{escape(note)}</p>' for note in table.notes)
    return (
        f'<div class="scroll" role="region" aria-label="{caption}" tabindex="0">\n<table>\n<caption>{caption}</caption>\n'
        f"<thead><tr>{heads}</tr></thead>\n{_bodies(table)}\n</table>\n</div>{notes}"
    )


def _bodies(table: Table) -> str:
    """The rows; where two columns name them, the first spans a group of rows, and each group is a body."""
    if table.names < 2:
        return _body(table, table.rows, spans=False)
    groups = [list(group) for _, group in itertools.groupby(table.rows, key=lambda row: row[0])]
    return "\n".join(_body(table, group, spans=True) for group in groups)


def _body(table: Table, rows: Sequence[tuple[str, ...]], *, spans: bool) -> str:
    lines: list[str] = []
    for place, row in enumerate(rows):
        cells = [f'<th scope="row">{escape(cell)}</th>' for cell in row[spans : table.names]]
        if spans and place == 0:
            cells.insert(0, f'<th scope="rowgroup" rowspan="{len(rows)}">{escape(row[0])}</th>')
        cells += [
            f"<td{_class('ours' if column in table.ours else '')}>{escape(row[column])}</td>"
            for column in range(table.names, len(row))
        ]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return "\n".join(["<tbody>", *lines, "</tbody>"])


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""
