"""The structure of the page "Write your own structure": code of a user's, which says its scores and its sum alone."""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor

import tailsum as ts
from harness.case import Case, Counted, Kind, Row
from harness.truth import Truth, counts, total

PAGE = Path(__file__).parents[2] / "docs" / "your_own_structure.md"


def from_page() -> Any:
    """The class that the page's first block of code defines."""
    names: dict[str, Any] = {"__name__": "your_own_structure"}
    exec(compile(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0], PAGE.name, "exec"), names)
    return names["Ring"]


Ring = from_page()


class RingTruth(Truth):
    """All closed paths with scores of nodes `[T, N]` and of pairs `[T, N, N]`, the last from the last node to the first."""

    def __init__(self, nodes: Tensor, pairs: Tensor):
        length, n = nodes.shape
        configurations = list(itertools.product(range(n), repeat=length))
        uses = [list(enumerate(c)) for c in configurations]
        steps = [[(t, c[t], c[(t + 1) % length]) for t in range(length)] for c in configurations]
        super().__init__(configurations, total(nodes, uses) + total(pairs, steps), counts(nodes.shape, uses))


class RingCase(Case):
    """Pair scores shared by all steps, or of each step."""

    name = "ring"
    has_lengths = False
    small = {"shared": {"n": 2}, "of each step": {"n": 3, "lead": "time"}}
    few = ("shared",)
    large = {"shared": {"length": 3, "n": 6, "scale": 0.8}}
    replicates = 2_000

    @classmethod
    def sizes(cls, r: Random) -> Kind:
        n = r.randint(1, 3)
        return {"n": n, "length": r.randint(1, 4), "lead": r.choice(["shared", "time"])}

    @classmethod
    def random(cls, r: Random) -> "RingCase":
        batch, size = r.choice([(), (1,), (3,), (2, 2)]), cls.sizes(r)
        return cls(batch=batch, forbidden=r.choice([0.0, 0.15]), seed=r.randint(0, 2**32), **size)

    @classmethod
    def counted(cls, length: int) -> Iterator[Counted]:
        for n in (1, 3):
            yield Counted(Ring(torch.zeros(length, n).double(), ts.Dense(torch.zeros(n, n).double())), n**length)

    def draw(self, n: int, lead: str = "shared", shared: bool = False) -> None:
        self.n = n
        self.leaf(*self.batch, self.length, n)
        self.leaf(*(() if lead == "shared" else (self.length,)), n, n)
        self.fields = {"states": (self.length,)}

    def build(self, *leaves: Tensor) -> Any:
        return Ring(leaves[0], ts.Dense(leaves[1]))

    def truth(self, b: int, leaves: list[Tensor]) -> RingTruth:
        nodes, pairs = leaves
        return RingTruth(self.of_batch(nodes, self.length, self.n)[b], pairs.expand(self.length, self.n, self.n))

    def nodes(self, truth: Truth) -> list[list[tuple[int, ...]]]:
        return [list(enumerate(c)) for c in truth.configurations]

    def row(self, configuration: tuple) -> Row:
        return list(configuration)

    def configuration(self, row: Row, length: int) -> tuple:
        return tuple(row)

    def block(self, b: int) -> None:
        self.banned[0][b, 0] = True
