"""The problems, and how tailsum and its peers solve them. A peer that is not installed is left out.

torch-struct takes the scores of all edges, `[B, T - 1, N, N]`, which every step of a training run makes: its times
include that, as pytorch-crf's include nothing but its own sum.
"""

import importlib
import importlib.util
import sys
import types
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from tailsum import HMM, PCFG, DependencyTree, LinearChain, SpanTree, Structure
from tailsum_studies.bench.problems import Answers, Library, Problem
from tailsum_studies.bench.rows import BEST, BOTH, FORWARD, OURS, Sizes

MODULES = {"torch-struct": "torch_struct", "pytorch-crf": "torchcrf", "hmmlearn": "hmmlearn", "supar": "supar"}


def installed(library: str) -> bool:
    """Whether a library can be used here."""
    return library == OURS or importlib.util.find_spec(MODULES[library]) is not None


def problems(device: torch.device, *, quick: bool = False) -> list[Problem]:
    """What is compared, with the libraries that are installed; nothing where no peer is."""
    chains = [_chain(20, 50, 32), _chain(64, 50, 8), _chain(256, 32, 8)]
    trees = [_spans(20, 40, 16), _grammar(30, 20, 8), _arcs(30, 16, projective=True), _arcs(30, 16, projective=False)]
    wanted = [chains[0], _arcs(12, 4, projective=False)] if quick else [*chains, _hidden(64, 100, 32), *trees]
    found = []
    for one in wanted:
        here = {name: it for name, it in one.libraries.items() if installed(name)}
        if device.type != "cpu":
            here.pop("hmmlearn", None)  # it runs on a CPU alone
        if len(here) > 1:
            found.append(Problem(one.name, one.sizes, one.shapes, here, one.prepare))
    return found


def _ours(make: Callable[..., Structure[Any, Any]]) -> Callable[..., Answers]:
    def solve(*leaves: Tensor) -> Answers:
        model = make(*leaves)
        return Answers(model.log_partition, model.argmax, lambda: model.score(model.argmax()))

    return solve


def _chain(n: int, length: int, batch: int) -> Problem:
    sums = 4.0 * batch * length * n**3  # torch-struct multiplies matrices of all steps
    return Problem(
        "linear chain",
        Sizes(n, length, batch),
        ((batch, length, n), (n, n)),
        {
            OURS: Library(_ours(LinearChain), (FORWARD, BOTH, BEST)),
            "torch-struct": Library(_struct_chain, (FORWARD, BOTH, BEST), 2 * sums, power=3),
            "pytorch-crf": Library(_crf, (FORWARD, BOTH, BEST)),
        },
    )


def _struct_chain(nodes: Tensor, pairs: Tensor) -> Answers:
    edges = nodes[:, 1:, :, None] + pairs.T  # [batch, T-1, to, from]
    edges = torch.cat((edges[:, :1] + nodes[:, :1, None, :], edges[:, 1:]), 1)
    return _struct("LinearChainCRF", edges)


def _struct(kind: str, potentials: Any, **how: Any) -> Answers:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = getattr(importlib.import_module("torch_struct"), kind)(potentials, **how)
    return Answers(lambda: made.partition, lambda: made.argmax, lambda: made.max)


def _crf(nodes: Tensor, pairs: Tensor) -> Answers:
    crf = importlib.import_module("torchcrf").CRF(nodes.shape[-1], batch_first=True).to(nodes)
    for parameter in (crf.start_transitions, crf.end_transitions):
        torch.nn.init.zeros_(parameter)
    del crf.transitions
    crf.transitions = pairs  # a leaf, like the scores of nodes
    mask = torch.ones(nodes.shape[:2], dtype=torch.bool, device=nodes.device)

    def total() -> Tensor:
        return crf._compute_normalizer(nodes.transpose(0, 1), mask.T)  # noqa: SLF001  (the loss subtracts a path's score)

    def best() -> list[list[int]]:
        with torch.no_grad():
            return crf.decode(nodes, mask)

    return Answers(total, best, lambda: LinearChain(nodes, pairs).score(torch.tensor(best(), device=nodes.device)))


def _hidden(n: int, length: int, batch: int, symbols: int = 50) -> Problem:
    def prepare(made: list[Tensor]) -> list[Tensor]:
        initial, transition, emission, seen = made
        observed = (torch.special.ndtr(seen) * symbols).long().clamp(max=symbols - 1)
        return [initial.log_softmax(-1), transition.log_softmax(-1), emission.log_softmax(-1), observed]

    return Problem(
        "hidden Markov model",
        Sizes(n, length, batch),
        ((n,), (n, n), (n, symbols), (batch, length)),
        {OURS: Library(_ours(HMM), (FORWARD, BEST)), "hmmlearn": Library(_hmmlearn, (FORWARD, BEST))},
        prepare,
    )


def _hmmlearn(initial: Tensor, transition: Tensor, emission: Tensor, observed: Tensor) -> Answers:
    model = importlib.import_module("hmmlearn.hmm").CategoricalHMM(len(initial))
    model.startprob_, model.transmat_, model.emissionprob_ = (
        x.double().softmax(-1).numpy() for x in (initial, transition, emission)
    )
    sequences = [one[:, None].numpy() for one in observed]

    def best() -> list[Any]:
        return [model.decode(one) for one in sequences]

    return Answers(
        lambda: torch.tensor([model.score(one) for one in sequences]),
        best,
        lambda: torch.tensor([score for score, _ in best()]),
    )


def _spans(n: int, length: int, batch: int) -> Problem:
    def supar(span: Tensor) -> Answers:
        made = supar_structs().ConstituencyCRF(pad(span.logsumexp(-1), (1, 0, 0, 1)), _lengths(span))
        return Answers(lambda: made.log_partition)

    return Problem(
        "span tree",
        Sizes(n, length, batch),
        ((batch, length, length, n),),
        {
            OURS: Library(_ours(SpanTree), (FORWARD, BOTH, BEST)),
            "torch-struct": Library(lambda span: _struct("TreeCRF", span * 1.0), (FORWARD, BOTH, BEST)),
            "supar": Library(supar),
        },
    )


def _grammar(n: int, length: int, batch: int) -> Problem:
    leaves = 2 * n

    def struct(root: Tensor, rule: Tensor, emission: Tensor) -> Answers:
        return _struct("SentCFG", (emission, rule.expand(batch, -1, -1, -1), root.expand(batch, -1)))

    return Problem(
        f"grammar, {leaves} preterminals",
        Sizes(n, length, batch),
        ((n,), (n, 3 * n, 3 * n), (batch, length, leaves)),
        {
            OURS: Library(_ours(PCFG), (FORWARD, BOTH, BEST)),
            "torch-struct": Library(struct, (FORWARD, BOTH), 50.0 * batch * length**2 * n**2),
        },
    )


def _arcs(length: int, batch: int, *, projective: bool) -> Problem:
    def ours(arc: Tensor) -> Answers:
        return _ours(lambda scores: DependencyTree(scores, projective=projective, multiroot=False))(arc)

    def struct(arc: Tensor) -> Answers:
        kind = "DependencyCRF" if projective else "NonProjectiveDependencyCRF"
        scores = arc if arc.requires_grad else arc.clone().requires_grad_()  # or it would write into a view of a leaf
        return _struct(kind, scores * 1.0, multiroot=False)

    def supar(arc: Tensor) -> Answers:
        root = arc.diagonal(0, 1, 2)[..., None]
        scores = pad(torch.cat((root, arc.mT), -1), (0, 0, 1, 0))  # [batch, child, head], word 0 for the root
        made = (supar_structs().DependencyCRF if projective else supar_structs().MatrixTree)(scores, _lengths(arc))
        return Answers(lambda: made.log_partition)

    return Problem(
        f"dependency tree, {'' if projective else 'non-'}projective",
        Sizes(1, length, batch),
        ((batch, length, length),),
        {OURS: Library(ours), "torch-struct": Library(struct), "supar": Library(supar)},
    )


def _lengths(scores: Tensor) -> Tensor:
    return torch.full(scores.shape[:1], scores.shape[1], device=scores.device)


@cache
def supar_structs() -> Any:
    """`supar.structs`, without what `import supar` runs: its parsers, which want many more packages."""
    spec = importlib.util.find_spec("supar")
    assert spec is not None
    hidden = {name: sys.modules.get(name) for name in ("supar", "supar.utils")}
    for name in hidden:
        package = types.ModuleType(name)
        inner = name.split(".")[1:]
        package.__path__ = ["/".join([place, *inner]) for place in spec.submodule_search_locations or ()]
        sys.modules[name] = package
    try:
        return importlib.import_module("supar.structs")
    finally:
        for name, before in hidden.items():
            del sys.modules[name]
            if before is not None:
                sys.modules[name] = before
