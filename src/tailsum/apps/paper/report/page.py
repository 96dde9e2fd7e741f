"""The report as one HTML file: pictures and style within, no scripts, nothing to load."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from tailsum.apps.paper.report.sections import Section
from tailsum.apps.paper.report.table import Table
from tailsum.apps.report.html import class_of, document, embedded, scrolling

TITLE = "Scaling Structured Inference with Randomization: reproduced"


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
    body = [
        _header(sections),
        "<main>",
        _about(about),
        _summary(headline),
        *(_section(section, shots, files) for section in sections),
        "</main>",
        "<footer>Errors are estimates less exact values, in nats.</footer>",
    ]
    return document(TITLE, body)


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
        parts += [embedded(shot.png, shot.caption) for shot in shots if shot.table == table.key]
    return "\n".join([*parts, "</section>"])


def to_html(table: Table) -> str:
    """The table in a box of its own, which scrolls where it is too wide, and its notes."""
    heads = "".join(
        f'<th scope="col"{class_of("name" if i < table.names else "ours" if i in table.ours else "")}>{escape(header)}</th>'
        for i, header in enumerate(table.headers)
    )
    notes = "".join(f'\n<p class="note">{escape(note)}</p>' for note in table.notes)
    return scrolling(table.caption, heads, _bodies(table)) + notes


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
            f"<td{class_of('ours' if column in table.ours else '')}>{escape(row[column])}</td>"
            for column in range(table.names, len(row))
        ]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return "\n".join(["<tbody>", *lines, "</tbody>"])
