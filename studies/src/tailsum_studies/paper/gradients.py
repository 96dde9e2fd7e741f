"""Cells of gradients: how far the direction of a sketched gradient is from that of the exact one.

The paper has no table of them. This is what decides whether a model can be trained with an estimator, parameter by parameter. On the chains of the
experiments the parameters are the embeddings that scores are inner products of, those of emissions and of transitions
apart; of trained models they are the network's own.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from tailsum import Factored, LinearChain, Refined
from tailsum_studies.paper import cells
from tailsum_studies.paper.cells import Cell, Made, Method, Subject, made
from tailsum_studies.paper.rows import Direction

PERCENT = (1, 10)
Gradient = dict[str, Tensor]


def gradients(subjects: Iterable[Subject], repeats: int) -> Iterator[Cell[Direction]]:
    """Every estimator on every model."""
    for subject in subjects:
        for percent in PERCENT:
            for method in cells.baselines(subject.states, percent, repeats):
                yield _cell(subject, method)
            for make in (cells.frugal, cells.ours):
                method = make(subject.states, percent, repeats)
                yield _cell(subject, dataclasses.replace(method, refined=False))
                yield _cell(subject, dataclasses.replace(method, name=f"{method.name}, refined"))


def _cell(subject: Subject, method: Method) -> Cell[Direction]:
    def replicates(found: Made, how: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
        parameters, rebuild = _parameters(found)
        for replicate in range(method.repeats):
            chain, rows = rebuild(), []
            small = chain.sketch(**how)
            model = small.refine() if method.refined else small
            for quantity in ("log Z", "entropy") if found.truth is None else ("log Z", "entropy", "loss"):
                gradient = _gradient(_value(model, quantity, chain, found.truth), parameters)
                for parameter, exact in _exact(subject, quantity).items():
                    cosine = F.cosine_similarity(gradient[parameter], exact, 0).item()
                    error = ((gradient[parameter] - exact).norm() / exact.norm()).item()
                    where = {"replicate": replicate, "quantity": quantity, "parameter": parameter}
                    rows.append({**where, "cosine": cosine, "relative_error": error})
            yield rows

    return cells.measured(subject, method, Direction, ["gradients"], replicates)


@functools.lru_cache(maxsize=3)
def _exact(subject: Subject, quantity: str) -> Gradient:
    found, _ = made(subject)
    parameters, rebuild = _parameters(found)
    chain = rebuild()
    return _gradient(_value(chain, quantity, chain, found.truth), parameters)


def _value(model: LinearChain | Refined, quantity: str, chain: LinearChain, truth: Tensor | None) -> Tensor:
    """What a model says of a quantity. The score in the loss has no sum in it, and is exact with every estimator.

    Models that were trained to find certain states have a loss that is not log Z alone.
    """
    if quantity == "loss" and truth is not None:
        return model.log_partition() - chain.score(truth)
    return cells.ask(model, quantity)


def _parameters(found: Made) -> tuple[Gradient, Callable[[], LinearChain]]:
    """The parameters of a model, and a function that makes it from them."""
    if found.parameters is not None and found.rebuild is not None:
        return found.parameters, found.rebuild
    match found.model:
        case LinearChain(emission=Factored() as emission, transition=Factored() as transition, lengths=lengths):
            nodes, pairs = (x.map(lambda leaf: leaf.detach().clone().requires_grad_()) for x in (emission, transition))
        case other:
            raise ValueError(f"gradients need a chain whose scores are Factored, or its parameters: got {other}")
    names: tuple[str, ...] = ("words", "states", "from", "to")
    parameters: Gradient = dict(zip(names, (*nodes.tensors, *pairs.tensors), strict=True))
    return parameters, lambda: LinearChain(Factored(nodes.left.squeeze(-2), nodes.right), pairs, lengths)


def _gradient(value: Tensor, parameters: Gradient) -> Gradient:
    """The gradient of the mean over a batch, in double precision, each parameter flat, and "all" of them as one vector."""
    found = torch.autograd.grad(
        value.mean(), list(parameters.values()), retain_graph=True, materialize_grads=True, allow_unused=True
    )
    flat = {name: x.double().flatten() for name, x in zip(parameters, found, strict=True)}
    return {**flat, "all": torch.cat(list(flat.values()))}
