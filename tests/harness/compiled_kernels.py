"""Every Triton kernel compiled for a GPU, on a machine that need not have one: `python -m harness.compiled_kernels 90`, or, for the
declared kernels of some modules alone, `python -m harness.compiled_kernels 90 spans lattices`.

The interpreter runs kernels that no compiler would take, and says nothing of registers. Here models of ordinary and odd sizes are
asked for what kernels serve, each kernel is compiled for the architecture (90: Hopper) in place of being launched, and a line
of JSON says what it takes of a multiprocessor. Results mean nothing.

It needs a process of its own, without TRITON_INTERPRET.
"""

import importlib
import json
import pkgutil
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

import tailsum as ts
from harness.declared import all_declared
from harness.poison import fill_empty
from tailsum.numerics import fused
from tailsum.numerics.fused.kernel import Kernel

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
MULTIPROCESSORS = 132


class NoDriver:
    """A device to compile for, and nothing to run on."""

    def __init__(self, capability: int) -> None:
        self.target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: int) -> int:
        return 0


def modules() -> list[Any]:
    names = (module.name for module in pkgutil.iter_modules(fused.__path__, f"{fused.__name__}."))
    return [importlib.import_module(name) for name in names]


def entries() -> set[str]:
    """The kernels that are launched, as module.name: all but those that others call."""
    found = {
        f"{module.__name__.split('.')[-1]}.{name}": value
        for module in modules()
        for name, value in vars(module).items()
        if isinstance(value, JITFunction) and value.fn.__module__ == module.__name__
    }
    sources = "\n".join(re.sub(r"def \w+\(", "", value.src) for value in found.values())
    return {name for name in found if not re.search(rf"\b{name.split('.')[-1]}\(", sources)}


def usage(cubin: bytes) -> dict[str, int]:
    """Registers of a thread, and the bytes of its stack, which is where registers are spilled to."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        told = subprocess.run(
            [TOOLS / "cuobjdump", "-res-usage", file.name], capture_output=True, text=True, check=True
        )
    registers, stack = re.findall(r"REG:(\d+) STACK:(\d+)", told.stdout)[0]
    return {"registers": int(registers), "stack": int(stack)}


def carried(code: str) -> int:
    """How many products in a kernel's intermediate code have an accumulator that goes through a loop."""
    loops = re.findall(r"scf\.for .*iter_args\((.*?)\) ->", code)
    through = {name for arguments in loops for name in re.findall(r"(%[\w#]+) =", arguments)}
    products = re.findall(r"= (?:tt\.dot|ttng\.warp_group_dot) %[\w#]+, %[\w#]+, (%[\w#]+)", code)
    return sum(accumulator in through for accumulator in products)


def compile_in_place_of_launching(capability: int, tell: Callable[[dict[str, Any]], None]) -> None:
    """From here on; `tell` hears of every kernel that was compiled, once, and of every one that could not be."""
    driver.set_active(NoDriver(capability))
    run, seen = JITFunction.run, set[int]()

    def compiled(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        name = f"{self.fn.__module__.split('.')[-1]}.{self.fn.__name__}"
        try:
            made = run(self, *args, grid=grid, warmup=True, **options)
        except Exception as error:
            tell({"kernel": name, "error": f"{type(error).__name__}: {error}"})
            raise
        if made is not None and id(made) not in seen:
            seen.add(id(made))
            constants = {key: value for key, value in options.items() if isinstance(value, int | str)}
            found = {"shared": made.metadata.shared, "warps": made.metadata.num_warps, "constants": constants}
            tell({"kernel": name, **usage(made.asm["cubin"]), "carried": carried(made.asm["ttgir"]), **found})
        return made

    JITFunction.run = compiled
    fill_empty(setattr, lambda x: x.fill_(1))  # in place of results: sums that nothing is wrong with
    for module in modules():  # as if programs could wait for one another, which they can on a GPU alone
        for name, value in (
            ("meets", lambda: True),
            ("at_once", lambda *_: 2 * MULTIPROCESSORS),
            ("before_hopper", lambda *_: capability < 90),
        ):
            if hasattr(module, name):
                setattr(module, name, value)


def chains(n: int) -> Iterator[ts.LinearChain]:
    """Chains of n states, with all kinds of transitions."""
    batch, length, size = 17, 3, 24

    def leaf(*shape: int) -> torch.Tensor:
        return torch.randn(shape).requires_grad_()

    yield ts.LinearChain(leaf(batch, length, n), leaf(n, n))
    yield ts.LinearChain(leaf(batch, length, n), ts.Factored(leaf(n, size), leaf(n, size)))
    if n <= 600:
        yield ts.LinearChain(leaf(2, length, n), leaf(2, length - 1, n, n))
        own = ts.Factored(leaf(2, length - 1, n, size), leaf(2, length - 1, n, size))
        yield ts.LinearChain(leaf(2, length, n), own)


def trees() -> Iterator[Any]:
    """Trees and grammars."""
    batch, length, n, p, rank = 2, 5, 3, 4, 6

    def leaf(*shape: int) -> torch.Tensor:
        return torch.randn(shape).requires_grad_()

    yield ts.SpanTree(leaf(batch, length, length, n))
    root, emission = leaf(n), leaf(batch, length, p)
    yield ts.PCFG(root, leaf(n, n + p, n + p), emission)
    yield ts.PCFG(root, ts.LowRankRule(leaf(n, rank), leaf(n + p, rank), leaf(n + p, rank)), emission)
    for projective in (True, False):
        for multiroot in (True, False):
            yield ts.DependencyTree(leaf(batch, length, length), projective=projective, multiroot=multiroot)
    for pairs in (leaf(n, n), leaf(batch, length, length, n, n)):
        yield ts.DependencyTree(leaf(batch, length, length), node=leaf(batch, length, n), transition=pairs)


def lattices() -> Iterator[Any]:
    """Paths by levels."""

    def leaf(*shape: int) -> torch.Tensor:
        return torch.randn(shape).requires_grad_()

    yield ts.CTC(leaf(2, 5, 4), torch.tensor([[1, 2], [3, 1]]))
    yield ts.Alignment(leaf(2, 40, 3), leaf(2, 40), leaf(2, 3))
    yield ts.Lattice(torch.tensor([[0, 0, 1], [1, 2, 2]]), leaf(2, 3))


def asked(model: Any) -> Iterator[Callable[[], Any]]:
    """What to ask a model for; gradients too."""
    for name in ("log_partition", "argmax", "sample", "entropy"):

        def ask(name: str = name) -> None:
            found = getattr(model, name)()
            if found.requires_grad:
                found.sum().backward()

        yield ask


def chosen() -> Iterator[Callable[[], Any]]:
    """What choosing the states of a sketch asks for."""
    states = torch.randn(600, 24)
    for pairs in (ts.Factored(states, states), ts.Dense(torch.randn(600, 600))):
        chain = ts.LinearChain(torch.randn(3, 4, 600), pairs)
        yield lambda chain=chain: chain.sketch(20, proposal=ts.Lookahead(16, rounds=1, neighbours=4))
        yield lambda chain=chain: chain.sketch(20, proposal=ts.Lookahead(16, rounds=1, neighbours=0))


def streamed(n: int) -> Iterator[Callable[[], None]]:
    """Sums over many states by scores that are made from factors on the way."""
    chain = ts.LinearChain(torch.randn(3, 3, n), ts.Factored(*(torch.randn(n, 24).requires_grad_() for _ in range(2))))

    def ask() -> None:
        with ts.table_budget(0):
            chain.log_partition().sum().backward()

    yield ask


def tried(names: list[str]) -> Iterator[Callable[[], None]]:
    """The declared kernels on their examples, with gradients; those of the modules of these names, if there are any."""
    for kernel in all_declared():
        for sizes in (*kernel.sizes, kernel.large) if not names or kernel.module in names else ():
            inputs, settings = kernel.example(**sizes)

            def ask(kernel: Kernel = kernel, inputs: Any = inputs, settings: Any = settings) -> None:
                found = kernel(*(x.requires_grad_(kernel.differentiable) for x in inputs), **settings)
                if kernel.differentiable:
                    total = (found[0] if isinstance(found, tuple) else found).sum()
                    slopes = torch.autograd.grad(total, inputs, create_graph=True)
                    if hasattr(kernel.launches, "curve"):
                        torch.autograd.grad([x.sum() for x in slopes], inputs)

            yield ask


def main() -> None:
    def tell(found: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(found) + "\n")

    compile_in_place_of_launching(int(sys.argv[1]), tell)
    if len(sys.argv) > 2:
        with ts.kernels("always"):
            for ask in tried(sys.argv[2:]):
                with suppress(Exception):
                    ask()
        return
    questions = [ask for n in (20, 130, 600, 1024) for chain in chains(n) for ask in asked(chain)]
    questions += [ask for model in (*trees(), *lattices()) for ask in asked(model)]
    questions += [*chosen(), *streamed(600), *tried([])]
    fast = [*(ask for chain in chains(600) for ask in asked(chain)), *streamed(600)]
    with ts.kernels("always"):
        for precision, some in (("full", questions), ("fast", fast)):
            for ask in some:
                with (
                    ts.precision(precision),
                    suppress(Exception),
                ):  # results mean nothing; what cannot be compiled was told
                    ask()
    tell({"launched": sorted(entries())})


if __name__ == "__main__":
    main()
