"""Numbers of configurations: by the library, and in the enumeration that all other tests compare with."""

import math

import pytest
import torch

import tailsum as ts
from harness.agree import close
from harness.registry import CASES


@pytest.mark.parametrize("length", range(1, 9))
@pytest.mark.parametrize("structure", CASES, ids=lambda kind: kind.name)
def test_counts(structure, length):
    """The log-partition of models whose configurations all score zero, whole and sketched with all states."""
    models = list(structure.counted(length))
    assert models
    for model, count, has_states in models:
        expected = torch.tensor(math.log(count) if count else -math.inf, dtype=torch.float64)
        close(model.log_partition(), expected)
        if has_states:
            sketch = model.sketch(model.n_states, proposal=ts.Uniform())
            close(sketch.log_partition(), expected)
