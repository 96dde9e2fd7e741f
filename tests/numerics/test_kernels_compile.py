"""Kernels compiled without a GPU: the interpreter also runs kernels that no compiler accepts."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
SHARED = {80: 163 << 10, 90: 227 << 10}  # bytes of shared memory that a program may have
SPILLED = {80: 640, 90: 320}  # bytes of a thread, at most: tables of odd sizes spill a few
STREAMED = (
    1300  # the same, of kernels that make all scores from factors: their fastest tiles, measured on a card, spill
)


@pytest.mark.parametrize("capability", [90, pytest.param(80, marks=pytest.mark.slow)])
def test_every_kernel_is_compiled_and_fits(capability):
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    run = subprocess.run(
        [sys.executable, "-m", "harness.compiled_kernels", str(capability)],
        cwd=Path(__file__).parents[1], env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    *kernels, launched = (json.loads(line) for line in run.stdout.splitlines())
    assert not [kernel for kernel in kernels if "error" in kernel]
    assert {kernel["kernel"] for kernel in kernels} == set(launched["launched"])
    for kernel in kernels:
        assert kernel["shared"] <= SHARED[capability], kernel
        steps = kernel["kernel"].startswith("shared_steps")
        streamed = (steps and kernel["constants"]["SIZE"]) or kernel["kernel"].endswith("_factor_gradient_kernel")
        # The kernels that sum most chains do not spill.
        assert kernel["stack"] <= (STREAMED if streamed else 16 if steps else SPILLED[capability]), kernel
        # A long sum in one accumulator is too small (`fused.products`); gradients in tf32 are not that precise anyway.
        assert not kernel["carried"] or (kernel["constants"]["PRECISION"] == "tf32" and not steps), kernel
