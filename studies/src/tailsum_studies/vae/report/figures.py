"""The page's pictures: how the states are used (the paper's Figure 2), how they follow one another, and how training went."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from tailsum.plot import state_colour
from tailsum_studies.report.axes import WHOLE, log_axis
from tailsum_studies.report.canvas import box, canvas, text_width, visible, write
from tailsum_studies.report.picture import Picture, is_narrow, page_width
from tailsum_studies.report.style import INK, LINE, QUIET, SMALL, WORD
from tailsum_studies.vae.report.findings import WORDS, Findings, bound, curve
from tailsum_studies.vae.report.layout import arrange, bend, choose

NODES, ARROWS = 20, 40  # of the graph
QUIET_ON_COLOUR = "#3D444D"
BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"
CURVES = {
    "total": ("ELBO, the sum", "#C5CBD2"),
    "words": ("log p(words | states)", ORANGE),
    "states": ("log p(states)", GREEN),
    "entropy": ("entropy of q", "#CC79A7"),
}


def pictures(findings: Findings) -> list[Picture]:
    """All that there is something to draw for."""
    found = findings.occurrences
    counts, pairs = found.counts.numpy(), found.transitions()
    train, dev, parts = curve(findings.losses, "train"), curve(findings.losses, "dev"), bound(findings.losses)
    nodes, kept = choose(pairs, NODES, ARROWS)
    numbers = {"kept": len(kept), "pairs": len(pairs), "nodes": len(nodes)}
    drawn = [
        ("states", "use", True, lambda: use_of_states(counts)),
        ("transitions", "transitions", bool(kept), lambda: transition_graph(findings, nodes, kept)),
        ("learning", "training", not train.empty, lambda: learning_curve(train, dev)),
        ("bound", "training", not parts.empty, lambda: bound_curve(parts)),
    ]
    captions = {name: text.format(**numbers) for name, text in WORDS["pictures"].items()}
    return [Picture(name, section, captions[name], draw) for name, section, there, draw in drawn if there]


# How the states are used.


def use_of_states(counts: np.ndarray) -> Figure:
    """The frequencies of the states, sorted, and the share that the first of them cover."""
    share = np.sort(counts)[::-1] / counts.sum()
    used = int((counts > 0).sum())
    figure = Figure(figsize=(page_width(), 6.2 if is_narrow() else 3.3), layout="constrained")
    left, right = figure.subplots(2, 1) if is_narrow() else figure.subplots(1, 2, width_ratios=(3, 2))
    ranks = np.arange(1, used + 1)
    floor = min(share[used - 1], 1 / len(counts)) / 2
    left.bar(ranks, share[:used] - floor, bottom=floor, width=1.0 if used > 60 else 0.8, color=BLUE, linewidth=0)
    log_axis(left, "y", [float(floor), float(share[0])])
    left.set_ylim(floor, share[0] * 1.6)
    left.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.3g}%"))
    _ranks(left, len(counts))
    if unused := len(counts) - used:
        left.axvspan(used + 0.5, len(counts) + 0.5, facecolor="#F0F2F4", hatch="///", edgecolor="#DDE1E5", linewidth=0)
    text = f"{unused:,} never occur" if unused else "every state occurs"
    left.text(0.985, 0.95, text, transform=left.transAxes, ha="right", va="top", fontsize=8.5, color=INK)
    left.axhline(1 / len(counts), color=QUIET, linewidth=1.0, linestyle="--", zorder=2.5)
    left.text(
        0.985, 1 / len(counts), "if all were used alike", transform=left.get_yaxis_transform(), ha="right", va="bottom",
        fontsize=7.5, color=QUIET,
    )  # fmt: skip
    left.set(title="Frequency", xlabel="states, the most frequent first", ylabel="share of all words (log scale)")
    right.step([0, *range(1, len(counts) + 1)], [0.0, *np.cumsum(share)], where="pre", color=BLUE)
    right.yaxis.set_major_formatter(PercentFormatter(1.0))
    right.set_ylim(0, 1.03)
    _ranks(right, len(counts))
    right.set(title="Share covered", xlabel="so many states, the most frequent", ylabel="share of all words")
    return figure


def _ranks(ax: Axes, count: int) -> None:
    ax.set_xlim(0.5 if count < 30 else 0, count + 0.5)
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    ax.xaxis.set_major_formatter(WHOLE)
    ax.grid(visible=False, axis="x")


# How they follow one another.


def transition_graph(findings: Findings, nodes: Sequence[int], pairs: Sequence[tuple[int, int, int]]) -> Figure:
    """States as boxes, with their most frequent words, and the pairs that follow one another as arrows."""
    found, best = findings.occurrences, findings.occurrences.words_of(1)
    words = [findings.vocabulary.words[best[state][0][0]] for state in nodes]
    short = [word if len(word) <= 14 else visible(word)[:13] + "…" for word in words]
    counts, late = found.counts[list(nodes)].numpy(), found.how_late()[list(nodes)].numpy()
    texts = list(zip(map(str, nodes), short, strict=True))
    size = WORD - 1 + 3.5 * np.sqrt(counts / counts.max())
    boxes = np.array(
        [
            (max(text_width(number, SMALL), text_width(word, s), 18.0) + 14.0, SMALL + s + 11.0)
            for (number, word), s in zip(texts, size, strict=True)
        ]
    )
    width, height = 72 * page_width(), 72 * (1.5 + (6.0 if is_narrow() else 4.7) * min(1.0, len(nodes) / NODES))
    margin = 34.0  # loops reach out of the boxes
    index = {state: place for place, state in enumerate(nodes)}
    most = max(count for _, _, count in pairs)
    links = [(index[a], index[b], count / most) for a, b, count in pairs]
    places = margin + arrange(links, boxes, late, (width - 2 * margin, height - 2 * margin))
    ax = canvas(width, height)
    # What arrows end at, not seen itself: a little outside the box.
    outer = boxes + 3.0
    corners = places - outer / 2
    outlines = [Rectangle((x, y), *box, fill=False, linewidth=0) for (x, y), box in zip(corners, outer, strict=True)]
    for outline in outlines:
        ax.add_patch(outline)
    for first, second, weight in sorted(links, key=lambda link: link[2]):
        bent = 0.0 if first == second else bend(first, second, places, boxes)
        _arrow(ax, outlines[first], outlines[second], bent, weight)
    for (x, y), (wide, high), s, (number, word), state in zip(places, boxes, size, texts, nodes, strict=True):
        box(ax, x, y, wide, high, state_colour(state))
        write(ax, x, y + high / 2 - SMALL / 2 - 4, number, SMALL, QUIET_ON_COLOUR)
        write(ax, x, y - high / 2 + s / 2 + 3.5, word, s, INK)
    return ax.figure  # type: ignore[return-value]


def _arrow(ax: Axes, leaves: Rectangle, meets: Rectangle, bent: float, weight: float) -> None:
    """An arrow from box to box, where one in the other direction bends to the other side; or above a box, to itself."""
    start, end = ((float(x), float(y)) for x, y in (leaves.get_center(), meets.get_center()))
    if leaves is meets:
        top, reach = leaves.get_y() + leaves.get_height(), min(0.3 * leaves.get_width(), 13.0)
        start, end, bent = (start[0] - reach, top), (start[0] + reach, top), -17 / reach
    line = 0.7 + 3.1 * weight
    pale, dark = (np.array(to_rgb(colour)) for colour in ("#BCC3CB", "#4A5360"))
    arrow = FancyArrowPatch(
        start,
        end,
        arrowstyle=f"-|>,head_length={4.0 + 1.1 * line:.2f},head_width={1.7 + 0.7 * line:.2f}",
        connectionstyle=f"arc3,rad={bent:.3f}",
        patchA=None if leaves is meets else leaves,
        patchB=None if leaves is meets else meets,
        mutation_scale=1.0,
        linewidth=line,
        color=to_hex(tuple(pale + (dark - pale) * math.sqrt(weight))),
        zorder=2 + 0.5 * weight,  # rare pairs are paler, and stay behind the others
        shrinkA=0,
        shrinkB=0,
        capstyle="butt",
        joinstyle="miter",
    )
    ax.add_patch(arrow)


# How training went.


def learning_curve(train: pd.Series, dev: pd.Series) -> Figure:
    """The loss of each training batch, its running mean, and the dev part's; all by step."""
    figure = Figure(figsize=(page_width(), 3.1), layout="constrained")
    ax = figure.subplots()
    smooth = running_mean(train)
    ax.plot(train, color=BLUE, linewidth=0.7, alpha=0.35)
    ax.plot(smooth, color=BLUE, label="train, running mean")
    if not dev.empty:
        best = dev[dev == dev.min()].iloc[:1]
        name = f"dev (best: {best.iloc[0]:.3f} at step {best.index[0]:,})"
        ax.plot(dev, color=ORANGE, marker="o" if len(dev) <= 40 else "", label=name)
        ax.plot(best, marker="o", markersize=10, color=ORANGE, markerfacecolor="none")
    _limits(ax, pd.concat([smooth, dev]), pd.concat([train, dev]))
    ax.legend(loc="upper right")
    return figure


def bound_curve(parts: pd.DataFrame) -> Figure:
    """The parts of the bound, and their sum."""
    figure = Figure(figsize=(page_width(), 3.4), layout="constrained")
    ax = figure.subplots()
    smooth = {name: running_mean(each) for name, each in {"total": parts.sum(axis=1), **parts}.items()}
    for name, each in smooth.items():
        label, colour = CURVES[name]
        ax.plot(each, color=colour, linewidth=4.5 if name == "total" else 1.6, label=label)
    ax.axhline(0, color=LINE, linewidth=0.8)
    everything = pd.concat(list(smooth.values()))
    _limits(ax, everything, everything)
    figure.legend(loc="outside lower center", ncols=2 if is_narrow() else 4)
    return figure


def running_mean(values: pd.Series) -> pd.Series:
    """The mean of each value and some of those around it, a fiftieth of all."""
    return values.rolling(2 * (len(values) // 100) + 1, center=True, min_periods=1).mean()


def _limits(ax: Axes, wanted: pd.Series, everything: pd.Series) -> None:
    """Room for what matters, by step: the first losses of all may be far above the rest."""
    low, high = everything.min(), max(wanted.quantile(0.985), everything.quantile(0.95))
    room = max(0.08 * (high - low), 0.02)
    ax.set_ylim(low - room, high + room)
    ax.set_ylabel("nats per word")
    ax.set_xlim(min(0, *everything.index), max(1, *everything.index) * 1.01)
    ax.xaxis.set_major_locator(MaxNLocator(5 if is_narrow() else 8, integer=True))
    ax.xaxis.set_major_formatter(WHOLE)
    ax.set_xlabel("step")
