"""Depth from two views with 192 labels for each pixel, exact and sketched: `python examples/stereo.py [PICTURE]`.

A textured scene (a slanted floor, a disc and a bar before it) is seen by two cameras side by side. The nearer a point is,
the further it moves between the views: its disparity, in 192 steps, is the label of its pixel. `unary` says how well the
views agree around the pixel at each disparity. `pairwise` says that neighbours lie on the same surface more often than not,
less so where the brightness changes: so it differs from edge to edge, and the whole graph needs a table of 192 x 192 for
each. Belief propagation on the grid of pixels puts the two together; a sketch does it with 16 labels of each pixel.
"""

import itertools
import sys
import time
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

import tailsum as ts


class Scene(NamedTuple):
    """Two views, `[height, width]` of brightness, and the disparity of each pixel of the left one."""

    left: Tensor
    right: Tensor
    disparity: Tensor


def scene(height: int, width: int, most: float, noise: float, generator: torch.Generator) -> Scene:
    """A scene whose disparities lie between 0 and `most` pixels."""
    y, x = torch.meshgrid(torch.linspace(0, 1, height), torch.linspace(0, 1, width), indexing="ij")
    disc = (x - 0.65).square() + (y - 0.4).square() < 0.05
    bar = ((x - 0.25).abs() < 0.08) & (y > 0.2)
    disparity = torch.where(disc, 0.75 + 0.2 * (x - 0.65), torch.where(bar, 0.55, 0.1 + 0.25 * y)) * most
    texture = torch.rand(height, width, generator=generator)
    left = 0.6 * texture + torch.where(disc, 0.4, torch.where(bar, 0.0, 0.2))
    right, nearest = torch.rand(height, width, generator=generator), torch.full((height, width), -1.0)
    for row, column in itertools.product(range(height), range(width)):  # nearer points hide the others
        near = disparity[row, column]
        place = round(column - near.item())
        if 0 <= place < width and near > nearest[row, place]:
            right[row, place], nearest[row, place] = left[row, column], near
    left, right = (view + noise * torch.randn(height, width, generator=generator) for view in (left, right))
    return Scene(left, right, disparity)


def sampled(image: Tensor, columns: Tensor) -> Tensor:
    """The image `[height, w]` between its columns, at `columns [height, ...]`."""
    flat = columns.reshape(len(columns), -1).clamp(0, image.shape[1] - 1.001)
    low = flat.floor().long()
    value = torch.lerp(image.gather(1, low), image.gather(1, low + 1), flat - low)
    return value.reshape(columns.shape)


def model(views: Scene, n_labels: int, most: float) -> ts.PairwiseGraph:
    """The grid of pixels: views that agree, and neighbours on one surface, score high."""
    height, width = views.left.shape
    labels = torch.linspace(0, most, n_labels)
    seen = sampled(views.right, torch.arange(width)[:, None] - labels.expand(height, width, -1))
    unary = -40 * smoothed((views.left[..., None] - seen).abs().clamp(max=0.6))
    brightness = smoothed(views.left[..., None]).flatten()
    first, second = brightness[ts.grid_edges(height, width)].unbind(-1)
    weight = 0.4 + 0.6 * (-((first - second) / 0.1).square()).exp()

    def pairwise(i: Tensor, j: Tensor, weight: Tensor) -> Tensor:
        return -weight[..., 0] * ((labels[i] - labels[j]).abs() * 4).clamp(max=6.0)

    pairs = ts.Scored(pairwise, n_labels, n_labels, context=weight[:, None])
    return ts.PairwiseGraph.grid(height, width, unary, pairs, damping=0.2, tolerance=1e-2)


def smoothed(image: Tensor) -> Tensor:
    """The mean `[height, width, c]` over 3 x 3 pixels."""
    return F.avg_pool2d(image.movedim(-1, 0), 3, 1, 1, count_include_pad=False).movedim(0, -1)


def estimate(graph: ts.PairwiseGraph, n_labels: int, most: float, height: int) -> tuple[Tensor, float]:
    """The likeliest label of each pixel, as a disparity, and how long it took."""
    start = time.perf_counter()
    with torch.no_grad():
        best = graph.marginals().argmax(-1)
        states = graph.states.gather(-1, best[..., None])[..., 0]
    return (states * most / (n_labels - 1)).reshape(height, -1), time.perf_counter() - start


def draw(
    path: Path, height: int = 40, width: int = 60, n_labels: int = 192, k: int = 16, most: float = 10.0
) -> dict[str, float]:
    """Make the picture; gives the share of pixels that are off by more than one pixel, for each estimate."""
    import matplotlib.pyplot as plt  # noqa: PLC0415

    generator = torch.Generator().manual_seed(3)
    views = scene(height, width, most, 0.03, generator)
    graph = model(views, n_labels, most)
    alone = graph.node_scores().argmax(-1).reshape(height, width) * most / (n_labels - 1)
    exact, slow = estimate(graph, n_labels, most, height)
    start = time.perf_counter()
    small = graph.sketch(k, proposal=ts.Lookahead(landmarks=32), generator=generator)
    choosing = time.perf_counter() - start
    kept, fast = estimate(small, n_labels, most, height)
    estimates = {
        "each pixel alone": (alone, ""),
        f"all {n_labels} labels": (exact, f", {slow:.1f} s"),
        f"{k} labels kept": (kept, f", {choosing:.1f} + {fast:.1f} s"),
    }
    wrong = {name: ((x - views.disparity).abs() > 1.0).double().mean().item() for name, (x, _) in estimates.items()}
    panels = {
        "left view": views.left,
        "true disparity": views.disparity,
        **{f"{name}{took}\n{wrong[name]:.1%} of pixels wrong": x for name, (x, took) in estimates.items()},
        "difference of the last two": (exact - kept).abs(),
    }
    figure, axes = plt.subplots(2, 3, figsize=(10.5, 5.2), layout="constrained")
    for ax, (title, image) in zip(axes.flat, panels.items(), strict=True):
        grey = title == "left view"
        ax.imshow(image, cmap="gray" if grey else "viridis", vmin=0, vmax=1 if grey else most, interpolation="nearest")
        ax.set_axis_off()
        ax.set_title(title, fontsize=9.5)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return wrong


if __name__ == "__main__":
    picture = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("stereo.png")
    for name, share in draw(picture).items():
        print(f"{name}: {share:.1%} of pixels off by more than one pixel")
    print(picture)
