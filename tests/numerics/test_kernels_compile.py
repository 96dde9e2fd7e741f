"""Kernels compiled for a GPU that need not be there: the interpreter also runs what no compiler takes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
SHARED = {80: 163 << 10, 90: 227 << 10}  # bytes of shared memory that a program may have
SPILLED = {80: 640, 90: 320}  # bytes of a thread, at most: tables of odd sizes spill some


@pytest.mark.parametrize("capability", [90, pytest.param(80, marks=pytest.mark.slow)])
def test_every_kernel_is_compiled_and_fits(capability):
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    told = subprocess.run(
        [sys.executable, "-m", "harness.compiled_kernels", str(capability)],
        cwd=Path(__file__).parents[1], env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    *kernels, launched = (json.loads(line) for line in told.stdout.splitlines())
    assert not [kernel for kernel in kernels if "error" in kernel]
    assert {kernel["kernel"] for kernel in kernels} == set(launched["launched"])
    for kernel in kernels:
        assert kernel["shared"] <= SHARED[capability], kernel
        assert kernel["stack"] <= SPILLED[capability], kernel
    # What most chains are summed by keeps to its registers.
    assert not [kernel for kernel in kernels if kernel["kernel"].startswith("shared_steps") and kernel["stack"] > 16]
