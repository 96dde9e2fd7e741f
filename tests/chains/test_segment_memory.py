"""Segmentations whose scores of pairs are streamed: what they find, and what they hold, with very many states."""

import subprocess
import sys

import pytest
import torch

import tailsum as ts
from harness.agree import close
from harness.registry import SMALL, possible

CHILD = """
import sys
from pathlib import Path

import torch

import tailsum as ts
from tailsum.numerics import tiles as table

LENGTH, LONGEST, SIZE = 2, 2, 8


def model(form, n, seed, recorded=True):
    g = torch.Generator().manual_seed(seed)
    own = [(LENGTH, LONGEST, n)] if form == "table" else [(LENGTH, n), (LONGEST, n)]
    *own, left, right = (
        torch.randn(shape, generator=g).mul_(0.5).requires_grad_(recorded) for shape in (*own, (n, SIZE), (n, SIZE))
    )
    with torch.no_grad():
        own[0][..., 0] = -torch.inf  # divergences ask what is forbidden
    return ts.SemiMarkov(own[0] if form == "table" else ts.Durations(*own), ts.Factored(left, right))


def every_operation(form, n):
    own, other, plain = model(form, n, 0), model(form, n, 1), model(form, n, 0, recorded=False)
    values = torch.ones(LENGTH, LONGEST, n)
    recorded = [
        own.log_partition, own.entropy, own.max, lambda: own.marginals().square(), lambda: own.kl(other),
        lambda: own.label_marginals().square(), lambda: own.cross_entropy(other), lambda: own.expectation(values),
        lambda: own.expectation(other), lambda: own.rsample(0.5).weights.square(), lambda: own.sketch(20).entropy(),
    ]
    for operation in recorded:
        operation().sum().backward()
    for operation in (plain.log_partition, plain.marginals, plain.entropy, plain.argmax):
        operation()
    plain.topk(2), plain.sample((3,)), plain.sample_distinct(2)


def resident(which):
    # Not getrusage, which counts what the process held that started this one.
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(which))


torch.set_num_threads(1)
table._TILE = {"cpu": 1 << 16}  # small beside the table
form, n = sys.argv[1], int(sys.argv[2])
with ts.table_budget(0):
    every_operation(form, 10)
    before = resident("VmRSS")
    every_operation(form, n)
print(resident("VmHWM") - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("form", ["table", pytest.param("durations", marks=pytest.mark.slow)])
def test_no_operation_holds_the_table_of_all_pairs(form):
    n = 1000
    run = subprocess.run([sys.executable, "-c", CHILD, form, str(n)], check=True, capture_output=True, text=True)
    assert int(run.stdout) < 6 * 4 * n * n  # with the table, 25 times its size


@pytest.mark.parametrize("way", ["whole", "restricted"])
@pytest.mark.parametrize("name", [name for name in SMALL if name.startswith("segments")])
def test_streamed_scores_change_nothing(name, way, monkeypatch):
    """Values, and gradients of the entropy, which is a gradient itself; a column at a time."""
    case, plain = possible(name, way)
    leaves = [x.clone().requires_grad_() for x in case.leaves]

    def results():
        model = case.model(*leaves) if plain.kept is None else case.model(*leaves).restrict(plain.kept)
        entropy = model.entropy()
        slopes = torch.autograd.grad(entropy.sum(), leaves, materialize_grads=True)
        return model.log_partition(), entropy, *slopes, model.max(), model.topk(2).scores, model.argmax().labels()

    expected = results()
    monkeypatch.setattr("tailsum.scores.potential.tile_rows", lambda *_: 1)
    with ts.table_budget(0):
        for one, other in zip(results(), expected, strict=True):
            close(one, other)
