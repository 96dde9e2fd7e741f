"""Long chains of few states beside hmmlearn: `python -m benchmarks.long_chains [STATES ..] [--double]`.

Log-likelihood, state probabilities, best path, expected counts (what a step of EM needs) and a random path of hidden Markov
models with 100 symbols. Figures are hmmlearn's processor time over ours, on one thread, medians of runs in turn, behind a check
that the results agree.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from hmmlearn.hmm import CategoricalHMM
from torch import Tensor

import tailsum as ts

SYMBOLS = 100
SHAPES = [(1, 100_000), (32, 3_125), (1_000, 100)]


class Model(NamedTuple):
    """Probabilities and observations `[B, T]`."""

    initial: Tensor
    transition: Tensor
    emission: Tensor
    observations: Tensor


def make_model(batch: int, length: int, n: int) -> Model:
    torch.manual_seed(0)
    tables = (torch.randn(n).softmax(-1), (2 * torch.randn(n, n)).softmax(-1), torch.randn(n, SYMBOLS).softmax(-1))
    initial, transition, emission = (x.double() / x.double().sum(-1, keepdim=True) for x in tables)
    return Model(initial, transition, emission, torch.randint(SYMBOLS, (batch, length)))


def theirs(model: Model) -> dict[str, Callable[[], Any]]:
    hmm = CategoricalHMM(len(model.initial), n_features=SYMBOLS, init_params="", n_iter=1, tol=-np.inf)
    hmm.startprob_, hmm.transmat_, hmm.emissionprob_ = (x.numpy() for x in model[:3])
    symbols, lengths = (
        model.observations.reshape(-1, 1).numpy(),
        [model.observations.shape[1]] * len(model.observations),
    )

    def counts() -> Any:  # of one step of EM, whose model is thrown away
        other = CategoricalHMM(len(model.initial), n_features=SYMBOLS, init_params="", n_iter=1, tol=-np.inf)
        other.startprob_, other.transmat_, other.emissionprob_ = (x.numpy().copy() for x in model[:3])
        return other.fit(symbols, lengths).transmat_

    return {
        "log Z": lambda: hmm.score(symbols, lengths),
        "marginals": lambda: hmm.predict_proba(symbols, lengths),
        "best path": lambda: hmm.decode(symbols, lengths)[0],
        "EM step": counts,
    }


def ours(model: Model, dtype: torch.dtype) -> dict[str, Callable[[], Any]]:
    initial, transition, emission = (x.log().to(dtype) for x in model[:3])

    def chain(initial: Tensor, transition: Tensor, emission: Tensor) -> ts.HMM:
        return ts.HMM(initial, transition, emission, model.observations)

    def counts() -> Any:
        tables = [x.clone().requires_grad_() for x in (initial, transition, emission)]
        gradients = torch.autograd.grad(chain(*tables).log_partition().sum(), tables)
        return gradients[1] / gradients[1].sum(-1, keepdim=True)

    def best() -> Any:
        return chain(initial, transition, emission).max().double().sum()

    return {
        "log Z": lambda: chain(initial, transition, emission).log_partition().double().sum(),
        "marginals": lambda: chain(initial, transition, emission).marginals().flatten(0, 1),
        "best path": best,
        "EM step": counts,
        "sample": lambda: chain(initial, transition, emission).sample(),
        "argmax": lambda: chain(initial, transition, emission).argmax(),
        "entropy + gradient": lambda: entropy(chain, initial, transition, emission),
    }


def entropy(chain: Any, *tables: Tensor) -> Any:
    tables = tuple(x.clone().requires_grad_() for x in tables)
    return torch.autograd.grad(chain(*tables).entropy().sum(), tables)


def seconds(run: Callable[[], Any]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.long_chains", description=__doc__)
    parser.add_argument("states", nargs="*", type=int, default=[8, 20, 50])
    parser.add_argument("--double", action="store_true", help="in float64, as hmmlearn; default float32")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dtype = torch.float64 if options.double else torch.float32
    print("| sequences x positions | states | | hmmlearn | tailsum | times faster |\n|---|---|---|---|---|---|")
    for n in options.states:
        for batch, length in SHAPES:
            model = make_model(batch, length, n)
            peer, own = theirs(model), ours(model, dtype)
            for name, run in peer.items():
                mine = own[name]
                expected, result = (torch.as_tensor(x()) for x in (run, mine))
                rounding = 1e-9 if options.double else 2e-4
                torch.testing.assert_close(result.double(), expected.double(), rtol=rounding, atol=rounding)
                timed = own["argmax"] if name == "best path" else mine
                both = [(seconds(run), seconds(timed)) for _ in range(options.repeats)]
                before, after = (statistics.median(x) for x in zip(*both, strict=True))
                print(
                    f"| {batch} x {length} | {n} | {name} | {before * 1e3:.0f} ms | {after * 1e3:.0f} ms | {before / after:.2f} |",
                    flush=True,
                )
            for name in ("sample", "entropy + gradient"):
                after = statistics.median(seconds(own[name]) for _ in range(options.repeats))
                print(f"| {batch} x {length} | {n} | {name} | - | {after * 1e3:.0f} ms | - |", flush=True)


if __name__ == "__main__":
    main()
