"""A module with structures inside under `torch.compile`: in a process of its own, without the tests' type checks."""

import json
import subprocess
import sys

CODE = """
import json, sys
import torch
import tailsum as ts

class Tagger(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.score, self.transition = torch.nn.Linear(4, 5), torch.nn.Parameter(torch.randn(5, 5))

    def forward(self, words, tags):
        chain = ts.LinearChain(self.score(words).tanh(), self.transition)
        tree = ts.SpanTree(chain.marginals()[:, :, None] * self.score(words)[:, None])
        return (chain.entropy() - chain.log_prob(tags) + tree.log_partition()).sum()

torch.manual_seed(0)
tagger = Tagger()
tagger(torch.randn(2, 3, 4), torch.randint(5, (2, 3)))
before = "torch._dynamo" in sys.modules
from torch._dynamo.testing import CompileCounter
counter = CompileCounter()
compiled, frames, apart = torch.compile(tagger, backend=counter), [], []
for length in (3, 4, 5, 6):
    words, tags = torch.randn(2, length, 4), torch.randint(5, (2, length))
    found = []
    for module in (compiled, tagger):
        tagger.zero_grad()
        value = module(words, tags)
        value.backward()
        found.append(torch.cat([value.detach()[None], *(p.grad.flatten() for p in tagger.parameters())]))
    frames.append(counter.frame_count)
    apart.append((found[0] - found[1]).abs().max().item())
print(json.dumps({"before": before, "frames": frames, "apart": max(apart), "ops": counter.op_count}))
"""


def test_a_compiled_module_is_right_and_is_not_compiled_again_for_every_length():
    out = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True).stdout
    result = json.loads(out)
    assert not result["before"]  # the compiler takes seconds to load: not before somebody compiles
    assert result["apart"] < 1e-4
    assert result["ops"] > 5  # the module's own operations are compiled
    first, second, *later = result["frames"]
    assert second <= 2 * first <= 20  # once for a first length, once for any length
    assert later == [second] * 2


INSIDE = """
import torch
import tailsum as ts

torch._logging.set_logs(recompiles=True)
rule = torch.randn(4, 7, 7)
best = torch.compile(lambda emission: ts.PCFG(torch.zeros(4), rule, emission).mbr().states, backend="eager")
for length in (3, 4, 5):
    best(torch.randn(2, length, 3))
"""


def test_nothing_inside_is_compiled():
    """Other packages' code that this one calls, such as a context manager with a tensor, would be compiled for every shape."""
    said = subprocess.run([sys.executable, "-c", INSIDE], capture_output=True, text=True, check=True).stderr
    recompiled = [line.partition("Recompiling function ")[2] for line in said.splitlines() if "Recompiling" in line]
    assert recompiled  # for a second length, of the lambda
    assert all(line.startswith("<lambda>") for line in recompiled), recompiled


WHOLE = """
import json
import torch
import tailsum as ts

def plain(emission, transition, tags):
    return -ts.LinearChain(emission, transition).log_prob(tags).mean() + ts.SpanTree(emission[:, :, None] * emission[:, None]).log_partition().sum()

loss = ts.Operator(plain)
step = lambda words, weight, transition, tags: 2 * loss(words @ weight, transition, tags)
whole = torch.compile(step, fullgraph=True, backend="aot_eager")
truth = lambda words, weight, transition, tags: 2 * plain(words @ weight, transition, tags)
torch.manual_seed(0)
apart = []
for length in (3, 4):
    inputs = [torch.randn(2, length, 4), torch.randn(4, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True), torch.randint(3, (2, length))]
    for function in (whole, step):
        values = [f(*inputs) for f in (function, truth)]
        slopes = [torch.autograd.grad(value, inputs[1:3]) for value in values]
        apart += [(a - b).abs().max().item() for a, b in zip((values[0], *slopes[0]), (values[1], *slopes[1]))]
        with torch.no_grad():
            apart.append((function(*inputs) - truth(*inputs)).abs().item())
errors = []
for ask in (
    lambda: ts.Operator(lambda x: x)(torch.zeros(2)),
    lambda: ts.Operator(lambda x: x.double().sum())(torch.zeros(2, requires_grad=True)),
    lambda: ts.Operator(lambda x: x.sum())(torch.zeros(2).long()),
    lambda: ts.Operator(lambda x, n: x.sum())(torch.zeros(2), 3),
    lambda: torch.autograd.grad(torch.autograd.grad(step(*inputs), inputs[1], create_graph=True)[0].sum(), inputs[1]),
):
    try:
        ask()
    except (ValueError, RuntimeError) as error:
        errors.append(str(error))
print(json.dumps({"apart": max(apart), "errors": errors}))
"""


def test_an_operator_is_part_of_a_whole_graph():
    out = subprocess.run([sys.executable, "-c", WHOLE], capture_output=True, text=True, check=True).stdout
    result = json.loads(out)
    assert result["apart"] < 1e-5
    assert "must return a number, of the type of its first scores torch.float32: got [2]" in result["errors"][0]
    assert "torch.float32: got [] of torch.float64" in result["errors"][1]
    assert "needs an argument of a floating-point type: got [torch.int64]" in result["errors"][2]
    assert "must be tensors: got ['Tensor', 'int']" in result["errors"][3]
    assert "cannot be differentiated again" in result["errors"][4]
