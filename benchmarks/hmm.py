"""A step of EM beside hmmlearn: `python -m benchmarks.hmm [--double] [--scaling] [--repeats N]`.

Hidden Markov models with 100 symbols or with vectors of 4 numbers, fitted for one step from the same start. Figures are hmmlearn's
processor time over ours, on one thread, medians of runs in turn, behind a check that both have the same parameters after the
step. Ours are in float32 by default; hmmlearn is always in float64. `--scaling` takes hmmlearn's other implementation, which is
faster than its default.
"""

import argparse
import copy
import logging
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from hmmlearn import hmm
from torch import Tensor

from tailsum.hmm import Categorical, Gaussian, HiddenMarkov

SYMBOLS, D = 100, 4
ONCE: dict[str, Any] = {"init_params": "", "n_iter": 1, "tol": -np.inf}


class Case(NamedTuple):
    """Two models of the same parameters, and the data in the form that each of them takes."""

    name: str
    ours: HiddenMarkov
    theirs: Any
    batch: Tensor
    column: np.ndarray[Any, Any]
    lengths: list[int]


def probabilities(*shape: int) -> Tensor:
    return torch.randn(*shape).double().softmax(-1)


def case_of(kind: str, n: int, batch: int, length: int, dtype: torch.dtype, implementation: str) -> Case:
    """`kind` is "categorical", or a Gaussian's "diagonal" or "full"."""
    torch.manual_seed(0)
    initial, transition = probabilities(n), probabilities(n, n)
    start: dict[str, Any] = {"initial": initial.log().to(dtype), "transition": transition.log().to(dtype)}
    own: dict[str, Any] = {**ONCE, "implementation": implementation}
    if kind == "categorical":
        says, data = probabilities(n, SYMBOLS), torch.randint(SYMBOLS, (batch, length))
        ours = HiddenMarkov(n, Categorical(SYMBOLS, logits=says.log().to(dtype)), **start)
        theirs = hmm.CategoricalHMM(n, n_features=SYMBOLS, **own)
        theirs.emissionprob_ = says.numpy()
    else:
        means = 3.0 * torch.randn(n, D).double()
        data = (means[torch.randint(n, (batch, length))] + torch.randn(batch, length, D)).to(dtype)
        ours = HiddenMarkov(n, Gaussian(D, kind, means=means.to(dtype)).to(dtype), **start)  # pyright: ignore[reportArgumentType]
        theirs = hmm.GaussianHMM(n, {"diagonal": "diag"}.get(kind, kind), **own)
        theirs.means_ = means.numpy()
        theirs.covars_ = np.ones((n, D)) if kind == "diagonal" else np.tile(np.eye(D), (n, 1, 1))
    theirs.startprob_, theirs.transmat_ = initial.numpy(), transition.numpy()
    column = data.reshape(batch * length, -1).numpy().astype(np.int64 if kind == "categorical" else np.float64)
    name = f"{kind}, {n} states, {batch:,} x {length:,}"
    return Case(name, ours.to(dtype), theirs, data, column, [length] * batch)


def step(case: Case) -> list[Tensor]:
    """Our parameters after a step; the model of the case stays as it is."""
    model = copy.deepcopy(case.ours).fit(case.batch, steps=1, start="keep", tolerance=-np.inf, progress=False)
    with torch.no_grad():
        emission = model.emission
        if isinstance(emission, Gaussian):
            says = [emission.means, emission.covariances]
        else:
            assert isinstance(emission, Categorical)
            says = [emission.logits.softmax(-1)]
        return [model.initial.exp(), model.transition_table().exp(), *says]


def peer_step(case: Case) -> list[Tensor]:
    """The parameters of hmmlearn after a step."""
    model = copy.deepcopy(case.theirs).fit(case.column, case.lengths)
    gaussian = isinstance(case.ours.emission, Gaussian)  # whose `covars_` are matrices, unlike `_covars_`
    says = [model.means_, model._covars_] if gaussian else [model.emissionprob_]
    return [torch.as_tensor(x) for x in (model.startprob_, model.transmat_, *says)]


def seconds(run: Callable[[Case], Any], case: Case) -> float:
    start = time.process_time()
    run(case)
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hmm", description=__doc__)
    parser.add_argument("--double", action="store_true", help="ours in float64, as hmmlearn; default float32")
    parser.add_argument("--scaling", action="store_true", help="hmmlearn's implementation='scaling'; default 'log'")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("hmmlearn").setLevel(logging.ERROR)
    dtype = torch.float64 if options.double else torch.float32
    rounding = 1e-8 if options.double else 1e-3
    print("| model, sequences x positions | hmmlearn | tailsum | times faster |\n|---|---|---|---|")
    for kind, n, batch, length in [
        ("categorical", 8, 1, 100_000),
        ("categorical", 50, 1, 100_000),
        ("categorical", 8, 1_000, 100),
        ("diagonal", 10, 1, 100_000),
        ("full", 10, 1, 100_000),
    ]:
        case = case_of(kind, n, batch, length, dtype, "scaling" if options.scaling else "log")
        for result, expected in zip(step(case), peer_step(case), strict=True):
            torch.testing.assert_close(result.double(), expected.double(), rtol=rounding, atol=rounding)
        both = [(seconds(peer_step, case), seconds(step, case)) for _ in range(options.repeats)]
        before, after = (statistics.median(x) for x in zip(*both, strict=True))
        print(f"| {case.name} | {before * 1e3:.0f} ms | {after * 1e3:.0f} ms | {before / after:.1f} |", flush=True)


if __name__ == "__main__":
    main()
