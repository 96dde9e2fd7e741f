"""Tables of marginal probabilities."""

import itertools
from collections.abc import Sequence

import torch
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import LinearSegmentedColormap
from torch import Tensor

from tailsum.plot.canvas import new_figure, size_of
from tailsum.plot.lettering import Names, named, text_width
from tailsum.plot.read import of_one_structure
from tailsum.plot.style import MARGIN, NAME, QUIET, SMALL
from tailsum.plot.words import Words

PROBABILITY = LinearSegmentedColormap.from_list("probability", ("#F2F4F7", "#BCD3EA", "#6699CC", "#2F5E9E", "#0F2A52"))
COLUMNS = 48  # states in a table


def marginals(
    probabilities: Tensor | Sequence[Sequence[float]],
    *,
    words: Sequence[str] | None = None,
    names: Names | None = None,
    ax: Axes | None = None,
) -> Axes:
    """A table of probabilities, laid out like the tensor: a row for each position, a column for each state.

    Of very many states, only the likeliest are shown. A square table without `names` is taken as pairs of positions (arcs,
    spans), whose columns are words too. Colours range from zero to one, or to the largest probability if below a half.
    """
    table = _table(probabilities)
    n_rows, n = table.shape
    rows = columns = Words.of(words, n_rows)
    if n_rows != n or names is not None:
        likeliest = table.amax(0).topk(min(n, COLUMNS)).indices.sort().values
        table = table[:, likeliest]
        columns = Words(named("names", names, likeliest.tolist()), numbered=names is None)
    n_columns = len(columns.texts)
    bar_ax = None
    if ax is None:
        ax, bar_ax = _new_axes(rows, columns, below=0.0 if n_columns == n else 16.0)
    wide, high = (size / count for size, count in zip(size_of(ax), (n_columns, n_rows), strict=True))

    largest = table.max().item()
    end = largest if 0.0 < largest < 0.5 else 1.0
    image = ax.imshow(
        table.numpy(), PROBABILITY, vmin=0.0, vmax=end, aspect="auto", interpolation="nearest", origin="upper"
    )
    ax.grid(visible=False)
    if min(wide, high) >= 7.0:  # lines between the cells
        ax.vlines([i + 0.5 for i in range(n_columns - 1)], -0.5, n_rows - 0.5, "white", linewidth=1.0)
        ax.hlines([i + 0.5 for i in range(n_rows - 1)], -0.5, n_columns - 0.5, "white", linewidth=1.0)
    _ticks(ax.yaxis, rows, high, turned=False)
    _ticks(ax.xaxis, columns, wide, turned=_widest(columns) + 6.0 > wide)
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


def _table(probabilities: Tensor | Sequence[Sequence[float]]) -> Tensor:
    table = torch.as_tensor(probabilities).detach().to("cpu", torch.float64)
    if table.dim() != 2 or table.numel() == 0:
        raise ValueError(f"probabilities must be [T, N] or [T, T], {of_one_structure(table, 2)}")
    wrong = ~((table >= -1e-4) & (table <= 1 + 1e-4))
    if wrong.any():
        raise ValueError(f"probabilities must lie between 0 and 1: got {table[wrong][0].item()}")
    return table.clamp(0.0, 1.0)


def _widest(words: Words) -> float:
    return max(text_width(text, NAME) for text in words.texts)


def _new_axes(rows: Words, columns: Words, *, below: float) -> tuple[Axes, Axes]:
    """Axes for a table with room for words around it, and axes for a colour bar at its right."""
    n_rows, n_columns, widest = len(rows.texts), len(columns.texts), _widest(columns)
    row, column = min(20.0, 640.0 / n_rows), min(20.0, 640.0 / n_columns)
    if columns is not rows and n_columns * (widest + 8.0) <= 560.0:
        column = max(column, widest + 8.0)
    width, height = n_columns * column, n_rows * row
    bar = min(150.0, max(height, 64.0))
    over = max(0.0, bar - height) / 2
    left = MARGIN + _widest(rows) + 6.0
    above = MARGIN + max((NAME if widest + 6.0 <= column else widest) + 4.0, over)
    below = MARGIN + max(below, over)
    wide, high = left + width + 68.0, above + height + below
    figure = new_figure(wide, high)
    table_ax = figure.add_axes((left / wide, below / high, width / wide, height / high))
    bottom = below + height + over - bar
    bar_ax = figure.add_axes(((left + width + 14.0) / wide, bottom / high, 9.0 / wide, bar / high))
    return table_ax, bar_ax


def _ticks(axis: Axis, words: Words, room: float, *, turned: bool) -> None:
    """Words along an axis, each with this much room; if it is too little, only every second, fifth or tenth word."""
    crowd = (NAME + 1.0) / room
    stride = next(10**i * step for i in itertools.count() for step in (1, 2, 5) if 10**i * step >= crowd)
    font = {"fontsize": NAME, "color": words.colour, "parse_math": False, "rotation": 90 if turned else 0}
    axis.set_ticks(range(len(words.texts))[::stride], words.texts[::stride], **font)
