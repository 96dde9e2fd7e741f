"""Draw what a sketch keeps, and how states are selected: `python examples/draw_sketch.py [FOLDER]`."""

import sys
from pathlib import Path

import torch
from matplotlib.figure import Figure

import tailsum as ts

INK, LIGHT, BLUE, ORANGE = "#222222", "#dddddd", "#0072b2", "#d55e00"


def kept_states(path: Path) -> None:
    """Marginals of a chain of 60 states, and the 8 that a sketch keeps at each position."""
    torch.manual_seed(3)
    n, length = 60, 24
    place = torch.linspace(0, 1, n)
    far = (place[:, None] - place).abs()
    centre = 0.5 + 0.35 * torch.sin(torch.linspace(0, 6, length))
    emission = -60 * (place - centre[:, None]).square() + 0.7 * torch.randn(length, n)
    chain = ts.LinearChain(emission, -12 * far)
    small = chain.sketch(8)
    ax = Figure(figsize=(7.0, 3.0)).subplots()
    ax.imshow(chain.marginals().T.sqrt(), aspect="auto", origin="lower", cmap="Greys", vmax=0.8)
    at = torch.arange(length)[:, None].expand_as(small.states).flatten()
    weight = small.log_weight.exp().flatten()
    sure = weight < 1.001
    states = small.states.flatten()
    ax.scatter(at[sure], states[sure], s=14, color=BLUE, label="kept for certain, weight 1")
    ax.scatter(
        at[~sure],
        states[~sure],
        s=10 * weight[~sure].sqrt(),
        color=ORANGE,
        alpha=0.7,
        label="kept by chance, larger with the weight",
    )
    ax.set(xlabel="position", ylabel="state")
    ax.legend(loc="upper right", fontsize=8, framealpha=0.9, scatterpoints=1)
    _save(ax, path)


def systematic_draw(path: Path) -> None:
    """Inclusion probabilities laid end to end, and the marks that select five of twelve states."""
    q = torch.tensor([0.30, 0.22, 0.12, 0.09, 0.07, 0.05, 0.04, 0.035, 0.03, 0.02, 0.015, 0.01])
    k, mark = 5, 0.37
    inclusion = ts.inclusion_probability(q.log(), k).tolist()
    ax = Figure(figsize=(7.0, 1.5)).subplots()
    start = 0.0
    for state, width in enumerate(inclusion):
        kept = int(start + width - mark + 1) > int(start - mark + 1)
        colour = BLUE if width > 0.999 else ORANGE if kept else LIGHT
        ax.barh(0, width, left=start, color=colour, edgecolor="white", linewidth=1.5)
        ax.text(
            start + width / 2,
            0,
            str(state) if width > 0.1 else "",
            ha="center",
            va="center",
            fontsize=8,
            color="white" if kept else INK,
        )
        start += width
    for place in range(k):
        ax.plot([mark + place] * 2, [-0.6, 0.6], color=INK, linewidth=1.2)
        ax.text(mark + place, 0.68, f"u + {place}" if place else "u", ha="center", va="bottom", fontsize=8)
    ax.set(xlim=(0, k), ylim=(-0.6, 0.95), yticks=[], xlabel="cumulative inclusion probability")
    for side in ("top", "left", "right"):
        ax.spines[side].set_visible(False)
    _save(ax, path)


def _save(ax, path: Path) -> None:  # noqa: ANN001  (axes of matplotlib)
    path.parent.mkdir(parents=True, exist_ok=True)
    ax.figure.savefig(path, dpi=110, bbox_inches="tight")
    print(path)


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("pictures")
    kept_states(folder / "sketch.png")
    systematic_draw(folder / "systematic.png")
