"""Draw the best configuration of a small model of each kind: `python examples/draw_structures.py [FOLDER]`."""

import sys
from pathlib import Path

import torch

import tailsum as ts
from tailsum import plot

WORDS = ["the", "old", "man", "the", "boats", "near", "the", "harbour"]
NAMES = ["A", "B", "C", "D", "E"]


def draw(folder: Path) -> list[Path]:
    g = torch.Generator().manual_seed(7)
    folder.mkdir(parents=True, exist_ok=True)
    length, n = len(WORDS), len(NAMES)

    segment = torch.randn(length, 4, n, generator=g) + torch.tensor([0.0, 1.2, 1.4, 0.8])[:, None]
    segments = ts.SemiMarkov(segment, torch.randn(n, n, generator=g)).argmax()

    grammar = ts.PCFG(
        torch.randn(n, generator=g), torch.randn(n, 2 * n, 2 * n, generator=g), torch.randn(length, n, generator=g)
    )

    arc = torch.randn(length, length, 3, generator=g) * 2
    parser = ts.DependencyTree(
        arc, node=torch.randn(length, n, generator=g), transition=torch.randn(n, n, generator=g), labelled=True
    )
    axes = {
        "segmentation": plot.segmentation(segments, words=WORDS, names=NAMES),
        "tree": plot.tree(grammar.argmax(), words=WORDS, names=NAMES, leaf_names=[name.lower() for name in NAMES]),
        "dependencies": plot.dependencies(
            parser.argmax(), words=WORDS, names=NAMES, labels=["subject", "object", "modifier"]
        ),
    }
    paths = []
    for name, ax in axes.items():
        paths.append(folder / f"{name}.png")
        figure = ax.get_figure(root=True)
        assert figure is not None
        figure.savefig(paths[-1], dpi=110, bbox_inches="tight")
    return paths


if __name__ == "__main__":
    for path in draw(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("pictures")):
        print(path)
