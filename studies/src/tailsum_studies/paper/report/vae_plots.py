"""The picture of Figure 2: how often states occur, for each split of the kept states and each seed."""

from collections.abc import Iterator
from functools import partial

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from tailsum_studies.paper.report.vae import WORDS, figure_key
from tailsum_studies.report.axes import handles_of, label_edges, legend_below, panels
from tailsum_studies.report.picture import Picture
from tailsum_studies.report.style import INK
from tailsum_studies.report.table import groups
from tailsum_studies.report.wording import capital

_SEEDS = ("-", "--", ":", "-.")
_COLOURS = ("#7F7F7F", "#E69F00", "#D55E00", "#CC79A7")


def figure2(name: str, rows: pd.DataFrame) -> Iterator[Picture]:
    """A picture for each number of states."""
    for (scale, states), group in groups(rows, "scale", "states"):
        key, caption = figure_key(name, scale, states), WORDS["pictures"]["figure2"].format(states=states)
        yield Picture(key, key, caption, partial(frequencies, group, states))


def frequencies(group: pd.DataFrame, states: int) -> Figure:
    """Shares of all words by rank: a panel for each split, a line for each seed, which ends at the last state in use."""
    splits = list(groups(group, "row"))
    made = panels([capital(row) for row, _ in splits], 2.4, min(len(splits), 4))
    for place, (ax, (_, found)) in enumerate(zip(made.axes, splits, strict=True)):
        colour = _COLOURS[place % len(_COLOURS)]
        for seed, each in groups(found, "seed"):
            used, style = each[each.share > 0].sort_values("rank"), _SEEDS[int(seed) % len(_SEEDS)]
            ax.plot(used["rank"], used.share, color=colour, linestyle=style, linewidth=1.2)
            ax.plot(used["rank"].iloc[-1], used.share.iloc[-1], "o", color=colour, markersize=3)
            ax.plot([], [], color=INK, linestyle=style, label=f"seed {seed}")
        ax.set(xscale="log", yscale="log", xlim=(0.8, 1.3 * states))
    label_edges(made, "states, by frequency", "share of all words")
    last = Line2D([], [], linestyle="none", marker="o", color=INK, markersize=3, label="last state in use")
    legend_below(made.figure, [*handles_of(made.axes), last])
    return made.figure
