"""`python -m tailsum`: the installed versions, the devices, and where to find the command line."""

import sys
from collections.abc import Iterator
from importlib.util import find_spec

import torch

import tailsum
from tailsum.numerics.kernels import fused


def lines() -> Iterator[str]:
    """The lines of the report."""
    yield f"tailsum {tailsum.__version__}, torch {torch.__version__}"
    devices = ["cpu", *(f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(torch.cuda.device_count()))]
    yield f"devices: {', '.join(devices)}"
    yield f"Triton kernels: {_kernels()}"
    if find_spec("tailsum_studies"):
        yield "The command line is installed: run `tailsum --help`."
    else:
        yield "The command line is a distribution of its own, tailsum-studies, in the repository's folder studies/:"
        yield "pip install ./studies"


def _kernels() -> str:
    if not torch.cuda.is_available():
        return "they do not run here, as there is no GPU; the same sums run in PyTorch"
    if not fused(torch.zeros((), device="cuda")):
        return "they do not run here, as Triton is not installed; the same sums run in PyTorch"
    return "they run here"


if __name__ == "__main__":
    sys.stdout.write("\n".join(lines()) + "\n")
