"""Sharded chains on one, two and three ranks: `sharded_cases.py` has the checks, which each group of ranks runs once."""

import contextlib
import os
import runpy
import socket
from pathlib import Path

import pytest
import torch
from sharded_cases import AMONG_SEVERAL, CHECKS, run, start

EXAMPLE = Path(__file__).parents[2] / "examples" / "distributed.py"


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
def test_one_rank_alone(check):
    """Here, without a process group: shapes and types are checked."""
    check()


@pytest.mark.parametrize("world", [2, *(pytest.param(world, marks=pytest.mark.slow) for world in (3, 4))])
def test_ranks_agree_with_one(world, tmp_path):
    """All checks by one group of ranks, which takes seconds to start."""
    found = run(world, tmp_path)
    assert set(found) == {check.__name__ for check in CHECKS + AMONG_SEVERAL}
    errors = [f"{name}, rank {r}: {error}" for name, ranks in found.items() for r, error in enumerate(ranks) if error]
    assert not errors, "\n".join(errors)


def run_example(rank, port, folder):
    """As torchrun starts it."""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.update(address, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
    torch.set_num_threads(1)
    with (Path(folder) / f"rank{rank}").open("w") as file, contextlib.redirect_stdout(file):
        runpy.run_path(str(EXAMPLE), run_name="__main__")


def test_the_example_learns_on_two_ranks(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    start(run_example, (port, str(tmp_path)), 2)
    said = [(tmp_path / f"rank{rank}").read_text() for rank in range(2)]
    before, after = [float(word) for word in said[0].split() if word[0].isdigit() and "." in word][-2:]
    assert after < before - 1
    assert not said[1]  # the first speaks for all
