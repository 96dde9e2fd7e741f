"""Checks of users' arguments to dependency trees."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tailsum.dependencies.configuration import Dependencies
from tailsum.numerics.check import (
    check_broadcast,
    check_device,
    check_floating,
    check_in_range,
    check_whole,
    shape_or_type,
)
from tailsum.scores.potential import Potential
from tailsum.structure.check import check_lead


def check_arc(arc: Any, labelled: bool) -> None:
    """Checks for scores `[*batch, T, T (, L)]`."""
    if not isinstance(arc, Tensor) or arc.dim() < 2:
        raise ValueError(f"arc must be [*batch, T, T] or [*batch, T, T, L]: got {shape_or_type(arc)}")
    check_floating("arc", arc)
    trailing = 3 if labelled else 2
    form = "[*batch, T, T, L]" if labelled else "[*batch, T, T]"
    if arc.dim() < trailing or arc.shape[-trailing] != arc.shape[1 - trailing] or 0 in arc.shape[-trailing:]:
        labels = not labelled and arc.dim() > 2 and arc.shape[-3] == arc.shape[-2]
        hint = ", or [*batch, T, T, L] with labelled=True" if labels else ""
        raise ValueError(f"arc must be {form}, none of them zero{hint}: got {list(arc.shape)}")


def check_words(
    node: Any, transition: Float[Tensor, "*lead N N"] | Potential, length: int, device: torch.device
) -> Potential:
    """Checks `node` and `transition`, and returns the scores of pairs of states."""
    if not isinstance(node, Tensor) or node.dim() < 2 or node.shape[-2] != length or not node.shape[-1]:
        raise ValueError(f"node must be [*batch, T, N] with T = {length}, as arc has: got {shape_or_type(node)}")
    check_device("node", node, device)
    check_floating("node", node)
    pairs = check_lead("transition", transition, node.shape[-1], (length,), device, "node")
    if len(pairs.lead) == 1 or pairs.lead[-2:-1] not in ((), (1,), (length,)):
        raise ValueError(
            f"transition must have leading dimensions [*batch, T, T] (head, child) or none: got {list(pairs.lead)}"
        )
    return pairs


def check_dependencies(model: Any, tree: Any, sizes: tuple[int, int | None, int | None]) -> Dependencies:
    """The tree with -1 in the padding, checked: ids below the `sizes` of heads, labels and states; no ids where it is None."""
    if not isinstance(tree, Dependencies):
        raise ValueError(f"tree must be Dependencies: got {type(tree).__name__}")
    shape, length, inside = model.batch_shape, model.node_shape[0], model.inside()
    for name, x in tree._asdict().items():
        if isinstance(x, Tensor) and x.dim():
            shape = check_broadcast(f"tree.{name}", x.shape[:-1], shape, "the model's")
    checked: list[Tensor | None] = []
    for name, x, size in zip(Dependencies._fields, tree, sizes, strict=True):
        if (x is None) != (size is None):
            raise ValueError(f"tree.{name} must {'' if x is None else 'not '}be given for {model}")
        if x is None or size is None:
            checked.append(None)
            continue
        ids = check_whole(f"tree.{name}", x)
        if ids.shape[-1:] != (length,):
            raise ValueError(f"tree.{name} must be [..., T] with T = {length}: got {list(ids.shape)}")
        ids = torch.where(inside, ids.expand(*shape, -1), -1)
        check_in_range(f"tree.{name}", ids, size)
        if name == "heads" and ((ids < 0) & inside & (ids >= 0).any(-1, keepdim=True)).any():
            raise ValueError(
                "tree.heads must lie between 0 and T-1 for every word of a sentence, and a root is its own head: got -1; "
                "for heads that number words from 1, and 0 for a root, see Dependencies.from_conll"
            )
        checked.append(ids)
        if ((ids < 0) & (checked[0] >= 0)).any():  # pyright: ignore[reportOptionalOperand]
            raise ValueError(f"tree.{name} must lie between 0 and {size - 1} for every word: got -1")
    return Dependencies(*checked)  # pyright: ignore[reportArgumentType]
