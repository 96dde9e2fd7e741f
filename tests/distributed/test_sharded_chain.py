"""Sharded chains on one, two and four ranks: `sharded_cases.py` has the checks, which each group of ranks runs once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sharded_cases import AMONG_SEVERAL, CHECKS, run


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
def test_one_rank_alone(check):
    """Here, without a process group: shapes and types are checked."""
    check()


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_agree_with_one(world, tmp_path):
    """All checks by one group of ranks, which takes seconds to start."""
    found = run(world, tmp_path)
    assert set(found) == {check.__name__ for check in CHECKS + AMONG_SEVERAL}
    errors = [f"{name}, rank {r}: {error}" for name, ranks in found.items() for r, error in enumerate(ranks) if error]
    assert not errors, "\n".join(errors)


def test_the_example_learns_on_two_ranks():
    example = Path(__file__).parents[2] / "examples" / "distributed.py"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(example)]
    ran = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=200, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert ran.returncode == 0, ran.stderr
    before, after = [float(word) for word in ran.stdout.split() if word[0].isdigit() and "." in word][-2:]
    assert after < before - 1
