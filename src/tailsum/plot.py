"""Pictures of one structure each: a chain, a segmentation, a tree, arcs, or a table of marginals.

Every function takes one structure (no batch), draws it on `ax`, or on a figure of fitting size of its own, and gives
the axes: `chain(states).figure.savefig("chain.svg", bbox_inches="tight")`. Pyplot is not needed and knows nothing of
the figures. On axes of yours, letters shrink to fit. A state has the same colour in every picture. Very long words are
cut short. All lengths are points (1/72 inch), x to the right, y up.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import LinearSegmentedColormap, to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import FancyBboxPatch, PathPatch, Polygon
from matplotlib.path import Path
from matplotlib.patheffects import Normal, Stroke
from matplotlib.textpath import text_to_path
from torch import Tensor

from tailsum.check import check_whole

Whole: TypeAlias = Tensor | Sequence[Any]
Names: TypeAlias = Sequence[str] | Callable[[int], str]


@runtime_checkable
class Segments(Protocol):
    """Segment i covers `durations[i]` positions from `starts[i]`; -1, 0 and -1 stand beyond the last segment."""

    @property
    def starts(self) -> Whole: ...
    @property
    def durations(self) -> Whole: ...
    @property
    def states(self) -> Whole: ...


@runtime_checkable
class Constituents(Protocol):
    """Node i covers the positions `spans[i]`, first to last; parents before children, -1 beyond the last node."""

    @property
    def spans(self) -> Whole: ...
    @property
    def states(self) -> Whole: ...


@runtime_checkable
class Heads(Protocol):
    """Position c hangs on `heads[c]`, a root on itself; -1 beyond the last position."""

    @property
    def heads(self) -> Whole: ...
    @property
    def labels(self) -> Whole | None: ...
    @property
    def states(self) -> Whole | None: ...


# Paul Tol's light palette: distinct for colour-blind eyes, and black text is legible on each.
PALETTE = ("#77AADD", "#EE8866", "#44BB99", "#EEDD88", "#FFAABB", "#BBCC33", "#99DDFF", "#CCCCCC")
PROBABILITY = LinearSegmentedColormap.from_list("probability", ("#F2F4F7", "#BCD3EA", "#6699CC", "#2F5E9E", "#0F2A52"))
INK, QUIET, LINE, ACCENT = "#1F2328", "#6B7380", "#8C95A1", "#1F5A99"
WORD, NAME, SMALL = 11.0, 9.5, 8.5  # font sizes
RISE = 0.36  # from the baseline to the middle of a capital, at font size 1
PILL, BLOCK = 16.0, 24.0  # the heights of a state's name with its background
MARGIN = 10.0
PORT, TIP = 7.0, 5.0  # between two arcs at one word; the length of an arrow's head
LONGEST = 32  # characters of a word or a name
COLUMNS = 48  # states in a table


def chain(
    states: Whole, *, words: Sequence[str] | None = None, names: Names | None = None, ax: Axes | None = None
) -> Axes:
    """One cell for each position, in the colour of its state; a long chain runs over several lines.

    >>> axes = chain([0, 1, 2, 3], words="the old man sleeps".split(), names=("DET", "ADJ", "NOUN", "VERB"))
    >>> [text.get_text() for text in axes.texts]
    ['DET', 'the', 'ADJ', 'old', 'NOUN', 'man', 'VERB', 'sleeps']
    """
    found = _before_padding("states", _whole("states", states, "[T]"))
    blocks = [range(place, place + 1) for place in range(len(found))]
    return _strip(blocks, found, _names("names", names, found), _Words.of(words, len(found)), ax)


def segmentation(
    segments: Segments, *, words: Sequence[str] | None = None, names: Names | None = None, ax: Axes | None = None
) -> Axes:
    """One block for each segment, over the positions that it covers, in the colour of its state.

    >>> from types import SimpleNamespace
    >>> segments = SimpleNamespace(starts=[0, 1, -1], durations=[1, 2, 0], states=[1, 0, -1])
    >>> axes = segmentation(segments, words=["in", "New", "York"], names=("place", "other"))
    >>> [text.get_text() for text in axes.texts]
    ['other', 'in', 'place', 'New', 'York']
    """
    starts, durations, states = (
        _whole(f"segments.{name}", _attribute("segments", segments, name), "[T]")
        for name in ("starts", "durations", "states")
    )
    n = len(_before_padding("segments.starts", starts))
    durations = _alongside("segments.durations", durations, n, least=1)
    states = _alongside("segments.states", states, n, least=0)
    blocks = [range(start, start + duration) for start, duration in zip(starts[:n], durations, strict=True)]
    end = 0
    for i, block in enumerate(blocks):
        if block.start != end:
            raise ValueError(
                f"segments.starts must follow each other without gaps: got {block.start} for segment {i}, not {end}"
            )
        end = block.stop
    return _strip(blocks, states, _names("names", names, states), _Words.of(words, end), ax)


def tree(
    tree: Constituents,
    *,
    words: Sequence[str] | None = None,
    names: Names | None = None,
    leaf_names: Names | None = None,
    ax: Axes | None = None,
) -> Axes:
    """A constituency tree over its words, which stand on one line. The states of the leaves are outlined, not filled.

    `names` names the states, `leaf_names` those of the leaves where they are states of another kind. A state of -1 is a
    node without a name.
    """
    spans, states = _nodes(tree)
    parents = _parents(spans)
    children = [[child for child, parent in enumerate(parents) if parent == i] for i in range(len(spans))]
    leaf = [not below for below in children]
    titles = _names("names", names, [-1 if leaf[i] and leaf_names else state for i, state in enumerate(states)])
    if leaf_names:
        below = _names("leaf_names", leaf_names, [state if leaf[i] else -1 for i, state in enumerate(states)])
        titles = [a or b for a, b in zip(titles, below, strict=True)]

    n = spans[0][1] + 1
    # A node stands between the outermost columns of its span: a name as narrow as both of them stays within the span.
    least = [0.0] * n
    for (first, last), title in zip(spans, titles, strict=True):
        for place in (first, last):
            least[place] = max(least[place], _pill_width(title) + 6.0)
    line = _Words.of(words, n).fitted(least, sum, ax)
    centres, width = _centres(line.columns(least))
    level, x = [0] * len(spans), [0.0] * len(spans)
    for i in reversed(range(len(spans))):
        level[i] = max((1 + level[child] for child in children[i]), default=0)
        ends = [x[child] for child in children[i]] or [centres[spans[i][0]]]
        x[i] = (min(ends) + max(ends)) / 2

    foot = MARGIN + line.height
    named_leaves = any(leaf[i] and title for i, title in enumerate(titles))
    step = min(32.0, max(25.0, 260.0 / max(1, level[0])))
    y = [foot + (4.0 + PILL / 2 if named_leaves else -PILL / 2) + step * height for height in level]
    canvas = _Canvas.on(ax, width, y[0] + PILL / 2 + MARGIN)
    line.write(canvas, centres, foot)
    for i, parent in enumerate(parents):
        if parent is not None:
            start = y[i] if titles[i] or not leaf[i] else foot + 3.0
            canvas.line(_elbow((x[i], start), (x[parent], y[parent])))
    for i, title in enumerate(titles):
        if title:
            canvas.pill(x[i], y[i], states[i], title, filled=not leaf[i])
        elif not leaf[i]:
            canvas.box(x[i], y[i], 5.0, 5.0, LINE)
    return canvas.ax


def dependencies(
    tree: Heads,
    *,
    words: Sequence[str] | None = None,
    names: Names | None = None,
    labels: Names | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Arcs from heads to children above the words, the longer the higher, and the states below the words.

    `labels` names the labels of the arcs, `names` the states. Arcs that meet at a word stand side by side, so that the
    arcs of a projective tree never cross.
    """
    arcs, roots, states = _hanging(tree, labels)
    n = len(arcs) + len(roots)
    titles = [""] * n if states is None else _names("names", names, states)
    ports = _ports([*arcs, *roots], n)
    least = [max(PORT * len(ports[place]), _pill_width(titles[place])) + 6.0 for place in range(n)]
    for root in roots:
        aside = abs(ports[root.child][root])
        least[root.child] = max(least[root.child], _width(root.label, SMALL) + 2 * aside + 10.0)
    line = _Words.of(words, n).fitted(least, lambda columns: _spread(arcs, ports, columns)[1], ax)
    centres, width = _spread(arcs, ports, line.columns(least))

    foot = MARGIN + line.height + (0.0 if states is None else PILL + 5.0)
    base = foot + 3.0
    step = 16.0 if any(arc.label for arc in arcs) else 12.0
    rise = {arc: base + 24.0 + step * arc.level for arc in arcs}
    top = max(rise.values(), default=base + 12.0) + step
    canvas = _Canvas.on(ax, width, (top + SMALL if roots else top - step / 2) + MARGIN)
    line.write(canvas, centres, foot)
    for place, state in enumerate(states or []):
        canvas.pill(centres[place], MARGIN + PILL / 2, state, titles[place])
    for root in roots:
        x, _ = root.legs(centres, ports)
        canvas.line(Path([(x, top - 3.0), (x, base + TIP)]), ACCENT)
        canvas.arrow(x, base, ACCENT)
        canvas.write(x, top + SMALL / 2, root.label, SMALL, ACCENT)
    for arc in reversed(arcs):
        left, right = arc.legs(centres, ports)
        ends = (left, base + TIP * (arc.child == arc.left)), (right, base + TIP * (arc.child == arc.right))
        canvas.line(_bracket(*ends, rise[arc]), QUIET, halo=True)
        canvas.arrow(left if arc.child == arc.left else right, base, QUIET)
        higher = [other.legs(centres, ports) for other in (*arcs, *roots) if other.level > arc.level]
        middle = _clear_middle(left, right, itertools.chain.from_iterable(higher))
        canvas.write(middle, rise[arc], arc.label, SMALL, INK, backed=True)
    return canvas.ax


def marginals(
    probabilities: Tensor | Sequence[Sequence[float]],
    *,
    words: Sequence[str] | None = None,
    names: Names | None = None,
    ax: Axes | None = None,
) -> Axes:
    """A table of probabilities as it stands in the tensor: a row for each position, a column for each state.

    Of very many states, the likeliest are shown. A square table without `names` joins positions with positions (arcs,
    spans): its columns are words too. The colours begin at zero and end at one, or at the largest probability where
    that is below a half.
    """
    table = _table(probabilities)
    n_rows, n = table.shape
    rows = columns = _Words.of(words, n_rows)
    square = n_rows == n and names is None
    if not square:
        likeliest = table.amax(0).topk(min(n, COLUMNS)).indices.sort().values
        table = table[:, likeliest]
        columns = _Words(_names("names", names, likeliest.tolist()), numbered=names is None)
    n_columns = len(columns.texts)
    widest = max(_width(text, NAME) for text in columns.texts)
    bar_ax = None
    if ax is None:
        high, wide = min(20.0, 640.0 / n_rows), min(20.0, 640.0 / n_columns)
        if square:
            high = wide = min(high, wide)
        elif n_columns * (widest + 8.0) <= 560.0:
            wide = max(wide, widest + 8.0)
        left, above = max(_width(text, NAME) for text in rows.texts), NAME if widest + 6.0 <= wide else widest
        ax, bar_ax = _table_axes(left, above, n_columns * wide, n_rows * high, 0.0 if n_columns == n else 16.0)
    else:
        wide, high = (size / count for size, count in zip(_size(ax), (n_columns, n_rows), strict=True))

    largest = table.max().item()
    end = largest if 0.0 < largest < 0.5 else 1.0
    shown = {"vmin": 0.0, "vmax": end, "aspect": "auto", "interpolation": "nearest", "origin": "upper"}
    image = ax.imshow(table.numpy(), PROBABILITY, **shown)
    ax.grid(visible=False)
    if min(wide, high) >= 7.0:  # the cells stand apart
        ax.vlines([i + 0.5 for i in range(n_columns - 1)], -0.5, n_rows - 0.5, "white", linewidth=1.0)
        ax.hlines([i + 0.5 for i in range(n_rows - 1)], -0.5, n_columns - 0.5, "white", linewidth=1.0)
    _ticks(ax.yaxis, rows, high, turned=False)
    _ticks(ax.xaxis, columns, wide, turned=widest + 6.0 > wide)
    ax.tick_params(length=0, pad=4, labeltop=True, labelbottom=False)
    if n_columns < n:
        ax.set_xlabel(f"the {n_columns} likeliest of {n:,} states", fontsize=SMALL, color=QUIET)
    bar = ax.figure.colorbar(image, cax=bar_ax, ax=None if bar_ax else ax, label="probability", ticks=[0, end / 2, end])
    bar.ax.set_yticklabels(f"{tick:.2g}" for tick in (0.0, end / 2, end))
    bar.ax.tick_params(length=0, labelsize=SMALL, labelcolor=QUIET)
    bar.ax.yaxis.label.set(fontsize=SMALL, color=QUIET)
    for spine in (*ax.spines.values(), bar.outline):
        spine.set_visible(False)
    return ax


@dataclass(frozen=True)
class _Canvas:
    """Axes that are measured in points; lines and letters shrink with them where there is too little room."""

    ax: Axes
    scale: float = 1.0

    @classmethod
    def on(cls, ax: Axes | None, width: float, height: float) -> "_Canvas":
        if ax is None:
            ax = _figure(width, height).add_axes((0, 0, 1, 1))
            canvas, (wide, high) = cls(ax), (width, height)
        else:
            size = _size(ax)
            canvas = cls(ax, min(1.0, size[0] / width, size[1] / height))
            wide, high = size[0] / canvas.scale, size[1] / canvas.scale
        ax.set_xlim((width - wide) / 2, (width + wide) / 2)
        ax.set_ylim((height - high) / 2, (height + high) / 2)
        ax.set_axis_off()
        return canvas

    def write(self, x: float, y: float, text: str, size: float, colour: str, *, backed: bool = False) -> None:
        """Text around a point: capitals reach as far above it as below."""
        if not text:
            return
        back = {"facecolor": "white", "edgecolor": "none", "boxstyle": "square,pad=0.18"} if backed else None
        font = {"fontsize": size * self.scale, "color": colour, "parse_math": False, "usetex": False}
        self.ax.text(x, y - RISE * size, text, ha="center", va="baseline", bbox=back, zorder=4, **font)

    def write_down(self, x: float, top: float, text: str, size: float, colour: str) -> None:
        """Text turned by a right angle, its end at the top."""
        font = {"fontsize": size * self.scale, "color": colour, "parse_math": False, "usetex": False}
        turn = {"rotation": 90, "rotation_mode": "anchor", "ha": "right", "va": "baseline"}
        self.ax.text(x + RISE * size, top, text, zorder=4, **turn, **font)

    def pill(self, x: float, y: float, state: int, title: str, *, filled: bool = True) -> None:
        """The name of a state on its colour, or within it; nothing for a state without a name."""
        if not title:
            return
        self.box(x, y, _pill_width(title), PILL, _colour(state), filled=filled)
        self.write(x, y, title, NAME, INK)

    def box(self, x: float, y: float, width: float, height: float, colour: str, *, filled: bool = True) -> None:
        line = 0.0 if filled else 1.6
        style = f"round,pad=0,rounding_size={min(4.0, height / 2) - line / 2}"
        corner, size = (x - (width - line) / 2, y - (height - line) / 2), (width - line, height - line)
        face, edge = (colour, "none") if filled else ("white", colour)
        self.ax.add_patch(
            FancyBboxPatch(
                corner, *size, boxstyle=style, facecolor=face, edgecolor=edge, linewidth=line * self.scale, zorder=3
            )
        )

    def line(self, path: Path, colour: str = LINE, *, halo: bool = False) -> None:
        patch = PathPatch(path, fill=False, edgecolor=colour, linewidth=1.2 * self.scale, zorder=2, capstyle="butt")
        if halo:  # where lines cross, the upper one is seen to
            patch.set_path_effects([Stroke(linewidth=4.0 * self.scale, foreground="white"), Normal()])
        self.ax.add_patch(patch)

    def arrow(self, x: float, y: float, colour: str) -> None:
        """The head of an arrow that points down at (x, y)."""
        corners = [(x, y), (x - 2.9, y + TIP + 1.0), (x + 2.9, y + TIP + 1.0)]
        self.ax.add_patch(Polygon(corners, facecolor=colour, edgecolor="none", zorder=2.5))


@dataclass(frozen=True)
class _Words:
    """The words of a sentence, or the numbers of its positions; turned by a right angle where they are too long."""

    texts: list[str]
    numbered: bool
    turned: bool = False

    @classmethod
    def of(cls, words: Sequence[str] | None, n: int) -> "_Words":
        if words is None:
            return cls([str(place) for place in range(n)], numbered=True)
        if len(words) != n:
            raise ValueError(f"words must be as many as there are positions, {n}: got {len(words)}")
        return cls([_visible(word) for word in words], numbered=False)

    @property
    def size(self) -> float:
        return SMALL if self.numbered else WORD

    @property
    def colour(self) -> str:
        return QUIET if self.numbered else INK

    @property
    def height(self) -> float:
        return max(_width(text, self.size) for text in self.texts) if self.turned else self.size + 3.0

    def of_places(self, places: range) -> "_Words":
        return _Words(self.texts[places.start : places.stop], self.numbered, self.turned)

    def columns(self, least: Sequence[float]) -> list[float]:
        """The width of each column, at least as asked for."""
        if self.turned:
            return [max(self.size + 4.0, width) for width in least]
        return [max(_width(text, self.size) + 9.0, width) for text, width in zip(self.texts, least, strict=True)]

    def fitted(self, least: Sequence[float], total: Callable[[list[float]], float], ax: Axes | None) -> "_Words":
        """These words, turned if that saves much where much is to be saved; columns take up `total` of them."""
        turned = _Words(self.texts, self.numbered, turned=True)
        wide, narrow = total(self.columns(least)), total(turned.columns(least))
        return turned if wide > (1080.0 if ax is None else 1.4 * _size(ax)[0]) and narrow < 0.8 * wide else self

    def write(self, canvas: _Canvas, centres: Sequence[float], top: float) -> None:
        for x, text in zip(centres, self.texts, strict=True):
            if self.turned:
                canvas.write_down(x, top, text, self.size, self.colour)
            else:
                canvas.write(x, top - self.size / 2, text, self.size, self.colour)


@dataclass(frozen=True)
class _Arc:
    """From a head to a child; a root is its own head. Arcs of higher level stand higher."""

    head: int
    child: int
    label: str
    level: int

    @property
    def left(self) -> int:
        return min(self.head, self.child)

    @property
    def right(self) -> int:
        return max(self.head, self.child)

    def overlaps(self, other: "_Arc") -> bool:
        return self.left < other.right and other.left < self.right

    def legs(self, centres: Sequence[float], ports: Sequence[Mapping["_Arc", float]]) -> tuple[float, float]:
        """Where the arc stands, left and right."""
        return centres[self.left] + ports[self.left][self], centres[self.right] + ports[self.right][self]


def _levelled(arcs: Iterable[_Arc]) -> list[_Arc]:
    """Shorter arcs first, each above all that are shorter; arcs of one length that overlap are on different levels."""
    done: list[_Arc] = []
    by_length = sorted(arcs, key=lambda arc: (arc.right - arc.left, arc.left))
    for _, equals in itertools.groupby(by_length, key=lambda arc: arc.right - arc.left):
        floor = 1 + max((arc.level for arc in done), default=-1)
        for arc in equals:
            taken = {other.level for other in done if other.overlaps(arc)}
            level = next(level for level in itertools.count(floor) if level not in taken)
            done.append(_Arc(arc.head, arc.child, arc.label, level))
    return done


def _ports(arcs: Sequence[_Arc], n: int) -> list[dict[_Arc, float]]:
    """Where each arc meets the word, relative to its middle: outer arcs in the middle, so that none crosses another."""
    ports: list[dict[_Arc, float]] = []
    for place in range(n):
        to_left = sorted((arc for arc in arcs if arc.left < arc.right == place), key=lambda arc: arc.level)
        to_right = sorted((arc for arc in arcs if place == arc.left < arc.right), key=lambda arc: -arc.level)
        here = [*to_left, *(arc for arc in arcs if arc.left == arc.right == place), *to_right]
        ports.append({arc: PORT * (i - (len(here) - 1) / 2) for i, arc in enumerate(here)})
    return ports


def _spread(
    arcs: Iterable[_Arc], ports: Sequence[Mapping[_Arc, float]], columns: Sequence[float]
) -> tuple[list[float], float]:
    """The middles of the columns, so far apart that every label fits between the legs of its arc, and the width of all.

    Shorter arcs come first: what they need is room for the longer ones too.
    """
    gaps = [0.0] * len(columns)
    for arc in arcs:
        left, right = arc.legs(_centres(columns, gaps)[0], ports)
        missing = (_width(arc.label, SMALL) + 18.0 if arc.label else 14.0) - (right - left)
        for place in range(arc.left, arc.right):
            gaps[place] += max(0.0, missing / (arc.right - arc.left))
    return _centres(columns, gaps)


def _strip(
    blocks: Sequence[range], states: Sequence[int], titles: Sequence[str], words: _Words, ax: Axes | None
) -> Axes:
    """Blocks over words, in as many lines as are needed; a block that is longer than a line is taken apart."""
    columns = words.columns([24.0] * len(words.texts))
    for block, title in zip(blocks, titles, strict=True):
        missing = _pill_width(title) + 4.0 - sum(columns[place] for place in block)
        for place in block:
            columns[place] += max(0.0, missing / len(block))
    limit = (740.0 if ax is None else _size(ax)[0]) - 2 * MARGIN
    limit = max(limit, *columns, 3 * max(_pill_width(title) for title in titles))
    pieces: list[tuple[range, int, str]] = []
    for block, state, title in zip(blocks, states, titles, strict=True):
        parts = _lines([columns[place] for place in block], limit)
        for i, part in enumerate(parts):
            shown = ("… " if i > 0 else "") + title + (" …" if i < len(parts) - 1 else "")
            pieces.append((block[part.start : part.stop], state, shown))
    widths = [sum(columns[place] for place in block) for block, _, _ in pieces]
    lines = _lines(widths, limit)

    pitch = BLOCK + words.height + 20.0
    width = max(sum(widths[line.start : line.stop]) for line in lines) + 2 * MARGIN
    canvas = _Canvas.on(ax, width, pitch * len(lines) - 16.0 + 2 * MARGIN)
    for down, line in zip(reversed(range(len(lines))), lines, strict=True):
        x, y = MARGIN, MARGIN + pitch * down + words.height
        for i in line:
            block, state, title = pieces[i]
            middle = x + widths[i] / 2, y + 4.0 + BLOCK / 2
            canvas.box(*middle, widths[i] - 2.0, BLOCK, _colour(state))
            canvas.write(*middle, title, NAME, INK)
            centres, _ = _centres([columns[place] for place in block], margin=x)
            words.of_places(block).write(canvas, centres, y)
            x += widths[i]
    return canvas.ax


def _lines(widths: Sequence[float], limit: float) -> list[range]:
    """Items in as few lines as the limit allows, and these as even as can be."""

    def fill(limit: float) -> list[range]:
        starts, used = [0], 0.0
        for i, width in enumerate(widths):
            if used + width > limit and i > starts[-1]:
                starts.append(i)
                used = 0.0
            used += width
        return [range(a, b) for a, b in itertools.pairwise([*starts, len(widths)])]

    best, low = fill(limit), 0.0
    for _ in range(16):
        middle = (low + limit) / 2
        lines = fill(middle)
        if len(lines) > len(best) or max(sum(widths[i] for i in line) for line in lines) > middle:
            low = middle
        else:
            best, limit = lines, middle
    return best


def _centres(
    columns: Sequence[float], gaps: Sequence[float] | None = None, margin: float = MARGIN
) -> tuple[list[float], float]:
    """The middles of columns side by side, a gap after each, and the width of the whole."""
    centres, x = [], margin
    for width, gap in zip(columns, gaps or [0.0] * len(columns), strict=True):
        centres.append(x + width / 2)
        x += width + gap
    return centres, x + margin


def _elbow(start: tuple[float, float], end: tuple[float, float]) -> Path:
    """Straight up, round a corner, and straight on."""
    (x, y), (to, top) = start, end
    bend = min(7.0, abs(to - x), top - y)
    corner = [(x, top - bend), (x, top), (x + math.copysign(bend, to - x), top)]
    return Path([start, *corner, end], [Path.MOVETO, Path.LINETO, Path.CURVE3, Path.CURVE3, Path.LINETO])


def _bracket(start: tuple[float, float], end: tuple[float, float], top: float) -> Path:
    """Up, across and down, round two corners."""
    (left, _), (right, _) = start, end
    bend = min(12.0, (right - left) / 2)
    rise = [(left, top - bend), (left, top), (left + bend, top)]
    fall = [(right - bend, top), (right, top), (right, top - bend)]
    turn = [Path.LINETO, Path.CURVE3, Path.CURVE3]
    return Path([start, *rise, *fall, end], [Path.MOVETO, *turn, *turn, Path.LINETO])


def _clear_middle(left: float, right: float, others: Iterable[float]) -> float:
    """The middle of the widest stretch between two legs that no other leg passes through."""
    edges = [left, *sorted(x for x in others if left < x < right), right]
    return max(((b - a, (a + b) / 2) for a, b in itertools.pairwise(edges)))[1]


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width / 72, height / 72))
    figure.set_layout_engine("none")
    return figure


def _table_axes(left: float, above: float, width: float, height: float, below: float) -> tuple[Axes, Axes]:
    """Axes for a table with room for words around it, and axes for a bar of colours at its right."""
    bar = min(150.0, max(height, 64.0))
    over = max(0.0, bar - height) / 2
    left, above, below = MARGIN + left + 6.0, MARGIN + max(above + 4.0, over), MARGIN + max(below, over)
    wide, high = left + width + 68.0, above + height + below
    figure = _figure(wide, high)
    table_ax = figure.add_axes((left / wide, below / high, width / wide, height / high))
    bottom = below + height + over - bar
    bar_ax = figure.add_axes(((left + width + 14.0) / wide, bottom / high, 9.0 / wide, bar / high))
    return table_ax, bar_ax


def _ticks(axis: Axis, words: _Words, room: float, *, turned: bool) -> None:
    """Words along an axis, each with so much room; where that is too little, every second, fifth or tenth of them."""
    crowd = (NAME + 1.0) / room
    stride = next(10**i * step for i in range(9) for step in (1, 2, 5) if 10**i * step >= min(crowd, 1e8))
    font = {"fontsize": NAME, "color": words.colour, "parse_math": False, "rotation": 90 if turned else 0}
    axis.set_ticks(range(len(words.texts))[::stride], words.texts[::stride], **font)


def _size(ax: Axes) -> tuple[float, float]:
    box = ax.get_window_extent()
    return float(box.width * 72 / ax.figure.dpi), float(box.height * 72 / ax.figure.dpi)


def _width(text: str, size: float) -> float:
    """The width of a text, and a little more: on a screen, letters are set on whole pixels."""
    return 1.06 * text_to_path.get_text_width_height_descent(text, FontProperties(size=size), ismath=False)[0]


def _pill_width(title: str) -> float:
    return max(22.0, _width(title, NAME) + 12.0) if title else 0.0


def _colour(state: int) -> str:
    """The state's colour: beyond the palette, lighter tints of it."""
    tint = (0.1, 0.4, 0.6)[state // len(PALETTE) % 3]
    red, green, blue = ((1 - tint) * part + tint for part in to_rgb(PALETTE[state % len(PALETTE)]))
    return to_hex((red, green, blue))


def _visible(text: str) -> str:
    """On one line, not too long, every character visible."""
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _names(argument: str, names: Names | None, numbers: Iterable[int]) -> list[str]:
    """The name of each number; nothing for -1."""
    if isinstance(names, Sequence):
        largest = max(numbers := list(numbers), default=-1)
        if largest >= len(names):
            raise ValueError(f"{argument} must have a name for {largest}, which occurs: got {len(names)} names")
        names = names.__getitem__
    name = names or str
    return ["" if number < 0 else _visible(name(number)) for number in numbers]


def _attribute(argument: str, value: object, name: str) -> Any:
    if not hasattr(value, name):
        raise ValueError(f"{argument} must have the attribute {name}: got {type(value).__name__}")
    return getattr(value, name)


def _whole(argument: str, value: Whole, shape: str) -> list[Any]:
    """Integers of one structure, as lists."""
    try:
        tensor = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"{argument} must be integers, {shape}: got {type(value).__name__}") from None
    dimensions = shape.count(",") + 1
    if tensor.dim() != dimensions or (dimensions == 2 and tensor.shape[-1] != 2):
        hint = " (a batch? choose one element first)" if tensor.dim() > dimensions else ""
        raise ValueError(f"{argument} must be {shape}, of one structure: got {list(tensor.shape)}{hint}")
    if tensor.numel() == 0:
        raise ValueError(f"{argument} must have at least one position: got {list(tensor.shape)}")
    return check_whole(argument, tensor).tolist()


def _before_padding(argument: str, numbers: list[int]) -> list[int]:
    """What stands before the first -1; nothing else may stand behind."""
    n = next((i for i, number in enumerate(numbers) if number < 0), len(numbers))
    if n == 0 or any(number != -1 for number in numbers[n:]):
        raise ValueError(f"{argument} must be at least 0, and -1 only beyond the last position: got {numbers}")
    return numbers[:n]


def _alongside(argument: str, numbers: list[int], n: int, *, least: int) -> list[int]:
    """One number for each of n items; what stands beyond them is padding."""
    if len(numbers) < n or min(numbers[:n]) < least:
        raise ValueError(f"{argument} must have {n} numbers of at least {least}: got {numbers}")
    return numbers[:n]


def _nodes(tree: Constituents) -> tuple[list[tuple[int, int]], list[int]]:
    """The spans and states of the nodes."""
    spans = [(first, last) for first, last in _whole("tree.spans", _attribute("tree", tree, "spans"), "[2T-1, 2]")]
    n = len(_before_padding("tree.spans[:, 0]", [first for first, _ in spans]))
    states = _whole("tree.states", _attribute("tree", tree, "states"), "[2T-1]")
    return spans[:n], _alongside("tree.states", states, n, least=-1)


def _parents(spans: Sequence[tuple[int, int]]) -> list[int | None]:
    """The parent of each node: the smallest span before it that holds it."""
    parents: list[int | None] = []
    below: list[list[tuple[int, int]]] = [[] for _ in spans]
    for i, (first, last) in enumerate(spans):
        holding = [j for j in range(i) if spans[j][0] <= first and last <= spans[j][1]]
        parent = min(holding, key=lambda j: (spans[j][1] - spans[j][0], -j), default=None)
        if first > last or (parent is None) != (i == 0) or (i == 0 and first > 0):
            raise ValueError(
                "tree.spans must begin with the root, from position 0, and have parents before children: "
                f"got {[first, last]} as number {i}"
            )
        parents.append(parent)
        if parent is not None:
            below[parent].append((first, last))
    for span, parts in zip(spans, below, strict=True):
        places = [place for first, last in sorted(parts) for place in range(first, last + 1)] or [span[0]]
        if places != list(range(span[0], span[1] + 1)):
            raise ValueError(f"tree.spans must be split into their parts: got {list(span)} with parts {sorted(parts)}")
    return parents


def _hanging(tree: Heads, labels: Names | None) -> tuple[list[_Arc], list[_Arc], list[int] | None]:
    """The arcs, lowest first, the roots, and the states."""
    heads = _before_padding("tree.heads", _whole("tree.heads", _attribute("tree", tree, "heads"), "[T]"))
    n = len(heads)
    if max(heads) >= n:
        raise ValueError(f"tree.heads must be positions, below {n}: got {heads}")
    labelled, states = (
        None if value is None else _alongside(f"tree.{name}", _whole(f"tree.{name}", value, "[T]"), n, least=-1)
        for name, value in ((name, _attribute("tree", tree, name)) for name in ("labels", "states"))
    )
    texts = [""] * n if labelled is None else _names("labels", labels, labelled)
    arcs = [_Arc(head, child, text, 0) for child, (head, text) in enumerate(zip(heads, texts, strict=True))]
    roots = [
        _Arc(arc.head, arc.child, f"root: {arc.label}" if arc.label.lower() not in {"", "root"} else "root", n * n)
        for arc in arcs
        if arc.head == arc.child
    ]
    return _levelled(arc for arc in arcs if arc.head != arc.child), roots, states


def _table(probabilities: Tensor | Sequence[Sequence[float]]) -> Tensor:
    table = torch.as_tensor(probabilities).detach().to("cpu", torch.float64)
    if table.dim() != 2 or table.numel() == 0:
        hint = " (a batch? choose one element first)" if table.dim() > 2 else ""
        raise ValueError(f"probabilities must be [T, N] or [T, T], of one structure: got {list(table.shape)}{hint}")
    wrong = ~((table >= -1e-4) & (table <= 1 + 1e-4))
    if wrong.any():
        raise ValueError(f"probabilities must lie between 0 and 1: got {table[wrong][0].item()}")
    return table.clamp(0.0, 1.0)
