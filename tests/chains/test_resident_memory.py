"""What operations hold beyond the table budget, of the memory of the whole process: never as much as a table of all pairs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.resident import FEW

ROOT = Path(__file__).parents[1]
KINDS = ["factored", "dense", "hmm"]


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the kernel does not tell")
@pytest.mark.parametrize(
    ("kind", "operations"),
    [("dense", FEW), *(pytest.param(k, (), marks=pytest.mark.slow) for k in KINDS)],
)
def test_no_table_of_all_pairs(kind, operations):
    command = [sys.executable, "-m", "harness.resident", kind, "4000", *operations]
    found = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout)
    assert found
    assert max(found.values()) < 0.9, found
