"""Public names are there, and torch is loaded only when one of them is asked for."""

import re
import subprocess
import sys

import pytest
import torch

import tailsum
import tailsum.hmm
import tailsum.hmm.public
import tailsum.nn
import tailsum.nn.public
import tailsum.public


def alone(code):
    """What a process of its own prints; here everything has been loaded before."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("module", [tailsum, tailsum.nn, tailsum.hmm])
def test_every_public_name(module):
    public = sys.modules[f"{module.__name__}.public"]
    assert module.__all__ == public.__all__
    assert set(public.__all__) <= set(dir(module))
    for name in public.__all__:
        assert getattr(module, name) is getattr(public, name)
    with pytest.raises(AttributeError, match=f"module '{module.__name__}' has no attribute 'Nothing'"):
        module.Nothing  # noqa: B018


def test_every_public_name_can_be_imported():
    code = """
from tailsum import LinearChain, nn
print(LinearChain.__name__, nn.Decoder.__name__)
from tailsum import *
from tailsum.nn import *
print(HMM.__name__, CRFInference.__name__)
"""
    assert alone(code) == "LinearChain Decoder\nHMM CRFInference\n"


def test_rooms_are_there_without_an_import_of_their_own():
    pytest.importorskip("matplotlib")
    assert {"distributed", "formats", "nn", "plot"} <= set(dir(tailsum))
    code = "print(ts.nn.__name__, ts.plot.__name__, ts.distributed.ShardedChain.__name__, ts.formats.Node.__name__)"
    assert alone(f"import tailsum as ts; {code}") == "tailsum.nn tailsum.plot ShardedChain Node\n"


def test_torch_is_loaded_with_the_first_name_and_the_studies_are_not():
    code = """
import sys
import tailsum as ts
import tailsum.hmm
import tailsum.nn
print("torch" in sys.modules)
ts.LinearChain
print("torch" in sys.modules)
import tailsum.nn.public
print(any(name.startswith("tailsum_studies") for name in sys.modules), "transformers" in sys.modules)
print("huggingface" in dir(tailsum.nn))
"""
    assert alone(code) == "False\nTrue\nFalse False\nTrue\n"


@pytest.mark.parametrize(
    ("studies", "said"), [("types.ModuleType('it')", "run `tailsum --help`"), ("None", "pip install ./studies")]
)
def test_the_module_says_what_is_installed_and_where_the_command_line_is(studies, said):
    shown = alone(f"""
import importlib.machinery, runpy, sys, types
sys.modules["tailsum_studies"] = found = {studies}
if found:
    found.__spec__ = importlib.machinery.ModuleSpec("tailsum_studies", None)
runpy.run_module("tailsum", run_name="__main__")
""")
    assert shown.startswith(f"tailsum {tailsum.__version__}, torch {torch.__version__}\ndevices: cpu")
    assert re.search(r"^Triton kernels: they (do not )?run here", shown, re.MULTILINE)
    assert said in shown.splitlines()[-1]


CLASSES = {name: getattr(tailsum, name) for name in tailsum.__all__ if isinstance(getattr(tailsum, name), type)}


@pytest.mark.parametrize("name", CLASSES)
def test_representations_have_no_addresses(name):
    assert CLASSES[name].__repr__ is not object.__repr__


def test_representations_of_what_holds_functions():
    class Function:
        def __call__(self, i, j):
            return i + j

    class Own(tailsum.Selection):
        def __call__(self, log_q, generator=None):
            return tailsum.TopK(1)(log_q)

    chain = tailsum.LinearChain(torch.zeros(4, 3), torch.zeros(3, 3))
    small = chain.sketch(2, proposal=tailsum.Local())
    found = [
        tailsum.Scored(Function(), 3, 3), tailsum.Scored(Function().__call__, 3, 3), tailsum.Local(), tailsum.Uniform(),
        Own(), tailsum.Lookahead(neighbours=tailsum.Neighbours(torch.zeros(3, 3))), chain, small, small.kept, chain.support,
        small.refine(), chain.topk(1), chain.rsample(), chain.terms(), tailsum.estimate(chain, "entropy", k=2, replicates=2),
    ]  # fmt: skip
    assert not any(" at 0x" in repr(x) for x in found)
    assert repr(tailsum.Local()) == "Local()"
    assert repr(small.refine()) == "Refined(batch=[], T=4, N=2 of 3)"
