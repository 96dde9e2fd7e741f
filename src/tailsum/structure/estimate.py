"""Estimates with error bars: several independent sketches of one model, combined, and checked against one another."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tailsum.numerics.check import at_least
from tailsum.sketch.model import Propose
from tailsum.sketch.proposal import Lookahead, proposal_from
from tailsum.sketch.selection import Selection, selection_from
from tailsum.structure.base import Structure
from tailsum.structure.check_sketch import ADVICE, Replicates, SketchWarning, diagnostics, instances
from tailsum.structure.frames import frames_of_ours
from tailsum.structure.replicates import Combined, combine
from tailsum.structure.sketches import sketches

Quantity = Callable[[Structure[Any, Any]], Tensor]

# Quantities by name, and whether each is the logarithm of a sum; else it is an average.
NAMED: dict[str, tuple[Quantity, bool]] = {
    "log_partition": (lambda small: small.log_partition(), True),
    "entropy": (lambda small: small.entropy(), True),
    "marginals": (lambda small: small.scattered_marginals(), False),
}
# Intervals this wide say little: what they are of, and the width. `diagnostics` judges the log-partition's.
WIDE = {"entropy": ("the entropy, in nats,", 2.0), "marginals": ("a marginal", 0.5)}


@dataclass(frozen=True)
class Estimate:
    """A value, its standard error, the ends of an interval around it, and reasons to distrust them, as `warnings`."""

    value: Float[Tensor, "*shape"]
    standard_error: Float[Tensor, "*shape"]
    low: Float[Tensor, "*shape"]
    high: Float[Tensor, "*shape"]
    warnings: list[str]
    replicates: Float[Tensor, "r *shape"]  # the value from each sketch alone


@torch.no_grad()
def estimate(
    model: Structure[Any, Any],
    what: str | Quantity,
    *,
    k: int | None = None,
    selection: Selection | None = None,
    proposal: Propose | None = None,
    replicates: int = 16,
    confidence: float = 0.95,
    check: bool = True,
    generator: torch.Generator | None = None,
) -> Estimate:
    """An estimate from several independent sketches of `model`, with a standard error and an interval.

    `what` is "log_partition", "entropy", "marginals" (over all N states), or a function from a sketch to a tensor
    `[*batch, ...]`: an average under the model, such as the mean of a feature. `k`, `selection` and `proposal` are those
    of `model.sketch`. The function gets sketches of batch shape `[some, *batch]`, as many at a time as memory allows.

    Partition functions are averaged, which is unbiased; everything else is averaged in proportion to them. Errors are by
    the jackknife and the interval by Student's t. They measure how much the sketches differ, and cannot show what all of
    them miss. So `check` compares their sums with sketches by another proposal and with sums that are no larger than the
    true one. It also looks for an interval that is too wide to say much: two nats, half a probability, or a function's
    largest value. It warns by `SketchWarning`, and the texts are in the result's `warnings`. It costs about as much as four
    more sketches by `Lookahead(rounds=2)` with lists of neighbours, which is far more than sketches by a cheap proposal
    (`neighbours=0`); `check=False` leaves it out.

    >>> import tailsum as ts
    >>> generator = torch.Generator().manual_seed(0)
    >>> chain = ts.LinearChain(torch.randn(5, 300, generator=generator), torch.randn(300, 300, generator=generator))
    >>> result = ts.estimate(chain, "log_partition", k=30, generator=generator)
    >>> bool((result.low < chain.log_partition()) & (chain.log_partition() < result.high))
    True
    >>> result.warnings
    []
    """
    quantity, logarithm = _quantity(what)
    if not isinstance(model, Structure) or model.kept is not None:
        raise ValueError(f"model must be a whole structure, not a sketch: got {model}")
    at_least(1, replicates=replicates)
    if not isinstance(confidence, float) or not 0 < confidence < 1:
        raise ValueError(f"confidence must be a number between 0 and 1: got {confidence}")
    selection, log_z, values, seen = selection_from(k, selection), [], [], []
    texts, chosen = list[str](), proposal_from(Lookahead() if proposal is None else proposal)
    chosen = chosen.listed(model) if isinstance(chosen, Lookahead) else chosen
    for small in sketches(model, replicates, selection, chosen, generator):
        values.append(_checked(quantity(small), small))
        log_z.append(values[-1] if what == "log_partition" else small.log_partition())
        if check:
            texts += [] if seen else small.diagnostics()
            seen.append(Replicates.of(small))
    each = torch.cat(values)
    combined = combine(torch.cat(log_z), each, logarithm=logarithm, confidence=confidence)
    if check:
        texts += _of_width(what, combined, each, len(model.batch_shape))
        texts += diagnostics(model, Replicates.joined(seen), chosen, confidence, generator)
    for text in texts:
        warnings.warn(text, SketchWarning, stacklevel=frames_of_ours())
    value, error, low, high = (x.to(each.dtype) for x in combined)
    return Estimate(value, error, low, high, texts, each)


def _quantity(what: str | Quantity) -> tuple[Quantity, bool]:
    if callable(what):
        return what, False
    if what not in NAMED:
        raise ValueError(f"what must be a function of a sketch or one of {', '.join(map(repr, NAMED))}: got {what!r}")
    return NAMED[what]


def _of_width(what: str | Quantity, combined: Combined, each: Tensor, batch_dims: int) -> list[str]:
    """The widest interval of an instance says little. For a function the limit is its largest value."""
    if len(each) == 1 or not each.numel() or what == "log_partition":
        return []
    width = torch.where(combined.standard_error > 0, combined.high - combined.low, 0.0)
    width, size = (x[..., None].flatten(batch_dims).amax(-1) for x in (width, each.abs().mean(0)))
    name, limit = WIDE[what] if isinstance(what, str) else ("the function", size)
    bad = width > limit
    if not bad.any():
        return []
    about = f"the interval of {name} is {width[bad].max().item():.3g} wide{instances(bad)}"
    return [f"{about}: the replicates vary. {ADVICE}, or take more replicates"]


def _checked(value: Tensor, small: Structure) -> Tensor:
    batch = small.batch_shape
    if not isinstance(value, Tensor) or value.shape[: len(batch)] != batch or not value.is_floating_point():
        got = f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"what must give a floating-point tensor [{', '.join(map(str, batch))}, ...]: got {got}")
    return value
