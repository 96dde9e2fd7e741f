"""Cells of gradients: how far the direction of a sketched gradient is from that of the exact one.

This is what decides whether a model can be trained with an estimator, parameter by parameter. On the chains of the
experiments the parameters are the embeddings that scores are inner products of, those of emissions and of transitions
apart; of trained models they are the network's own.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from tailsum.apps.paper.cells import (
    Cell,
    Made,
    Method,
    Step,
    Subject,
    arguments,
    ask,
    file_name,
    frugal,
    made,
    ours,
    rivals,
    seeded,
)
from tailsum.apps.paper.rows import Direction
from tailsum.chains.linear_chain import LinearChain
from tailsum.chains.refine import Refined
from tailsum.scores.factored import Factored

PERCENT = (1, 10)
Gradient = dict[str, Tensor]


def gradients(subjects: Iterable[Subject], repeats: int) -> Iterator[Cell[Direction]]:
    """Every estimator on every model."""
    for subject in subjects:
        for percent in PERCENT:
            few, many = (made_for(subject.states, percent, repeats) for made_for in (frugal, ours))
            for method in (
                *rivals(subject.states, percent, repeats),
                dataclasses.replace(few, refined=False),
                dataclasses.replace(few, name=f"{few.name}, refined"),
                dataclasses.replace(many, refined=False),
                dataclasses.replace(many, name=f"{many.name}, refined"),
            ):
                yield _cell(subject, method)


def _cell(subject: Subject, method: Method) -> Cell[Direction]:
    name = file_name(subject, method, "gradients")

    def run(step: Step) -> list[Direction]:
        found, _ = made(subject)
        parameters, rebuild = _parameters(found)
        how = arguments(found, method, seeded(subject.seed, name))

        def rows(replicate: int) -> Iterator[Direction]:
            chain = rebuild()
            small = chain.sketch(**how)
            model = small.refine() if method.refined else small
            for quantity in _quantities(found):
                gradient = _gradient(_value(model, quantity, chain, found.truth), parameters)
                exact = _exact(subject, quantity)
                for parameter, values in gradient.items():
                    yield Direction(
                        model=subject.name,
                        states=subject.states,
                        method=method.name,
                        label=method.label,
                        kept=method.kept,
                        replicate=replicate,
                        quantity=quantity,
                        parameter=parameter,
                        cosine=F.cosine_similarity(values, exact[parameter], 0).item(),
                        relative_error=((values - exact[parameter]).norm() / exact[parameter].norm()).item(),
                    )
            step()

        return [row for replicate in range(method.repeats) for row in rows(replicate)]

    return Cell(name, Direction, method.repeats, run)


@functools.lru_cache(maxsize=3)
def _exact(subject: Subject, quantity: str) -> Gradient:
    found, _ = made(subject)
    parameters, rebuild = _parameters(found)
    chain = rebuild()
    return _gradient(_value(chain, quantity, chain, found.truth), parameters)


def _quantities(found: Made) -> tuple[str, ...]:
    """What is differentiated: the loss too, where a model was trained with one that is not log Z alone."""
    return ("log Z", "entropy") if found.truth is None else ("log Z", "entropy", "loss")


def _value(model: LinearChain | Refined, quantity: str, chain: LinearChain, truth: Tensor | None) -> Tensor:
    """What a model says of a quantity. The score in the loss has no sum in it, and is exact with every estimator."""
    if quantity == "loss" and truth is not None:
        return model.log_partition() - chain.score(truth)
    return ask(model, quantity)


def _parameters(found: Made) -> tuple[Gradient, Callable[[], LinearChain]]:
    """The parameters of a model, and a function that makes it from them."""
    if found.parameters is not None and found.rebuild is not None:
        return found.parameters, found.rebuild
    chain = found.model
    if (
        not isinstance(chain, LinearChain)
        or not isinstance(chain._nodes, Factored)
        or not isinstance(chain._pairs, Factored)
    ):
        raise ValueError(f"gradients need a chain whose scores are Factored, or its parameters: got {chain}")
    nodes, pairs = (
        x.map(lambda tensor: tensor.detach().clone().requires_grad_()) for x in (chain._nodes, chain._pairs)
    )
    names: tuple[str, ...] = ("words", "states", "from", "to")
    parameters: Gradient = dict(zip(names, (*nodes.tensors, *pairs.tensors), strict=True))
    return parameters, lambda: LinearChain(Factored(nodes.left.squeeze(-2), nodes.right), pairs, chain.lengths)


def _gradient(value: Tensor, parameters: Gradient) -> Gradient:
    """The gradient of the mean over a batch, in double precision, each parameter flat, and "all" of them as one vector."""
    found = torch.autograd.grad(
        value.mean(), list(parameters.values()), retain_graph=True, materialize_grads=True, allow_unused=True
    )
    flat = {name: x.double().flatten() for name, x in zip(parameters, found, strict=True)}
    return {**flat, "all": torch.cat(list(flat.values()))}
