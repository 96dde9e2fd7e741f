"""Kernels are interpreted where there is no GPU."""

import pytest
import torch

from harness import interpreter


@pytest.fixture(scope="session", autouse=True)
def _interpreted():
    if not torch.cuda.is_available():
        interpreter.install()
