"""Every declared kernel beside its reference in plain torch, on the card and at the size that its declaration calls large."""

import importlib
import pkgutil
from collections.abc import Callable, Iterator

import torch

import tailsum
from benchmarks.measure import Figure, seconds
from tailsum.numerics.fused.kernel import Kernel, declared
from tailsum.numerics.kernels import Use

ROOMS = ("sketch", "chains", "trees", "dependencies", "graphs")  # where kernels are declared, each beside its reference


def kernel_figures() -> Iterator[Figure]:
    """How many times faster than its reference each kernel is, with its gradients."""
    if not torch.cuda.is_available():
        return
    for room in ROOMS:
        for module in pkgutil.walk_packages([f"{tailsum.__path__[0]}/{room}"], f"tailsum.{room}."):
            importlib.import_module(module.name)
    for kernel in declared():
        uses: tuple[Use, ...] = ("auto", "never")
        runs = {use: _run(kernel, use) for use in uses}
        taken = {use: seconds(run) * 1e3 for use, run in runs.items()}
        ratio = taken["never"] / taken["auto"]
        measured = f"{taken['auto']:.2f} ms, {ratio:.0f} times faster"
        yield Figure(f"kernel {kernel.module}, {dict(kernel.large)}", measured, "faster than plain torch", ratio > 1)


def _run(kernel: Kernel, use: Use) -> Callable[[], object]:
    inputs, settings = kernel.example(**kernel.large)
    leaves = [x.cuda().requires_grad_(kernel.differentiable) for x in inputs]
    moved = {name: x.cuda() if isinstance(x, torch.Tensor) else x for name, x in settings.items()}

    def run() -> object:
        with tailsum.kernels(use):
            result = kernel(*leaves, **moved)
            result = result[0] if kernel.differentiable and isinstance(result, tuple) else result
            return torch.autograd.grad(result.sum(), leaves) if kernel.differentiable else result

    return run
