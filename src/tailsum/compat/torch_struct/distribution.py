"""The base of all distributions: torch-struct's operations, computed by a tailsum structure.

An event is a tensor of zeros and ones, of the shape of the log-potentials: the parts that a configuration uses. A class
builds the structure from its log-potentials, and turns configurations and marginals of the structure into events.
Each operation builds the structure anew, so that it has its own graph for the backward pass.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.distributions.distribution import Distribution
from torch.distributions.utils import lazy_property

from tailsum.compat.torch_struct.semirings.plain import StdSemiring
from tailsum.compat.torch_struct.struct import Lengths, check_event, event_score, inside, without_parts
from tailsum.numerics.check import are_scores, check_floating, check_sample_shape, check_scores, check_temperature
from tailsum.numerics.tensors import scaled, unmasked, working_type
from tailsum.sketch.model import Propose
from tailsum.sketch.selection import Selection, Subset
from tailsum.structure.base import Structure
from tailsum.structure.check import checked_lengths

Event = Any  # a tensor, or a tuple of them for a grammar
This = TypeVar("This", bound="StructDistribution")


class StructDistribution(Distribution):
    """A distribution over structures, from `log_potentials [B, *event]` and the `lengths [B]` of sequences.

    Results have the log-potentials' dtype, or float32 for half precision. An impossible input has partition `-inf`.
    Arguments are always checked, as are the events given to `log_prob`: `validate_args` has no effect.
    """

    struct: Any
    form: ClassVar[str]  # the shape of log_potentials, in words
    _kept: Subset | None = None  # the states that a sketch keeps

    def __init__(
        self, log_potentials: Float[Tensor, "batch ..."], lengths: Lengths = None, args: dict[str, Any] | None = None,
        validate_args: bool | None = False,
    ) -> None:  # fmt: skip
        check_floating("log_potentials", log_potentials)
        if not self._fits(log_potentials.shape[1:]):
            raise ValueError(f"log_potentials must be {self.form}: got {list(log_potentials.shape)}")
        self.log_potentials, self.args = log_potentials, dict(args or {})
        self._begin(log_potentials.shape[:1], log_potentials.shape[1:], lengths)
        if not are_scores(log_potentials):  # the padding may hold anything
            check_scores("log_potentials", torch.where(self._usable(), log_potentials.detach(), 0.0))

    def _begin(self, batch: torch.Size, event: torch.Size, lengths: Lengths) -> None:
        super().__init__(batch, event, validate_args=False)
        checked_lengths(lengths, batch, self._longest(), self._tensors()[0].device)
        self.lengths = lengths

    # What a class says about its structure.

    @staticmethod
    @abstractmethod
    def _fits(event: torch.Size) -> bool:
        """Whether an event may have this shape."""

    def _longest(self) -> int:
        """How many positions the longest sequence can have."""
        return self.event_shape[0]

    def _usable(self) -> Bool[Tensor, "*batch_part"]:
        """Which parts lie within their sequence; by default, parts of single positions."""
        return self._inside()[..., None]

    @abstractmethod
    def _build(self, scores: tuple[Tensor, ...], lengths: Lengths) -> Structure:
        """The structure with these scores, which are `_scores` or have the same shapes."""

    def _tensors(self) -> tuple[Tensor, ...]:
        """The tensors of scores."""
        return (self.log_potentials,)

    def _marginals(self, model: Structure) -> Event:
        """Marginals of all parts."""
        return model.scatter(model.marginals())

    def _event(self, model: Structure, configuration: Any) -> Event:
        """The event of a configuration with global ids."""
        return model.whole.used(configuration)[0]

    def _event_score(self, event: Event) -> Float[Tensor, "*sample_batch"]:
        """The score; minus infinity for an event without parts, unless its sequence has no usable parts."""
        check_event("value", event, self.batch_shape, self.event_shape)
        dims, usable = len(self.event_shape), self._usable()
        used = torch.where(usable, event, 0)
        return without_parts(event_score(self.log_potentials, used, dims), used, usable, dims)

    # The structure.

    def _scores(self) -> tuple[Tensor, ...]:
        """The scores of the structure, in the precision to compute in."""
        tensors = self._tensors()
        return tuple(x.to(working_type(*tensors)) for x in tensors)

    @property
    def model(self) -> Structure:
        """The tailsum structure that computes everything; for a sketch, the restricted one."""
        return self.model_with(self.lengths)

    def model_with(self, lengths: Lengths) -> Structure:
        """The same structure with other lengths."""
        whole = self._build(self._scores(), lengths)
        return whole if self._kept is None else whole.restrict(self._kept)

    def _positions(self) -> Tensor:
        """The lengths `[*batch]`, as a tensor."""
        device = self._tensors()[0].device
        lengths = checked_lengths(self.lengths, self.batch_shape, self._longest(), device)[1]
        return torch.full(self.batch_shape, self._longest(), device=device) if lengths is None else lengths

    def _inside(self) -> Bool[Tensor, "*batch N"]:
        """Which positions lie within their sequence."""
        return inside(self._longest(), self._positions())

    def within(self) -> tuple[Bool[Tensor, "*batch_part"], Int[Tensor, "*batch"]]:
        """Which parts lie within their sequence, and the lengths."""
        return self._usable(), self._positions()

    def sketch(
        self: This,
        k: int | None = None,
        *,
        proposal: Propose | None = None,
        selection: Selection | None = None,
        generator: torch.Generator | None = None,
    ) -> This:
        """The same distribution on k weighted states of each node, with the same methods: see `Structure.sketch`.

        Sums are unbiased estimates of the exact ones. Events keep their full shape, with zeros for states that were not
        kept; `log_prob` takes any event. `model.states` are the kept states.
        """
        kept = self.model.sketch(k, proposal=proposal, selection=selection, generator=generator).kept
        return self._changed(_kept=kept)

    def expand(self: This, batch_shape: Sequence[int], _instance: object = None) -> This:
        """The same distribution in a larger batch."""
        shape = torch.Size(batch_shape)
        lengths = None if self.lengths is None else self._positions().expand(shape)
        return self._changed(**self._expanded(shape), lengths=lengths, _batch_shape=shape)

    def _expanded(self, shape: torch.Size) -> dict[str, Any]:
        """The constructor's tensors in a larger batch."""
        if self._kept is not None:
            raise ValueError("a sketch keeps states for each sequence: expand the distribution before it is sketched")
        return {"log_potentials": self.log_potentials.expand(*shape, *self.event_shape)}

    def _changed(self: This, **fields: object) -> This:
        """A copy with some fields replaced, without the computed properties."""
        lazy = {name for kind in type(self).__mro__ for name, x in vars(kind).items() if isinstance(x, lazy_property)}
        copy = object.__new__(type(self))
        vars(copy).update({name: x for name, x in vars(self).items() if name not in lazy} | fields)
        return copy

    def __repr__(self) -> str:
        of = "" if self._kept is None else f", {self._kept.index.shape[-1]} states kept"
        return f"{type(self).__name__}(batch_shape={list(self.batch_shape)}, event_shape={list(self.event_shape)}{of})"

    # Operations.

    @property
    def arg_constraints(self) -> dict[str, Any]:
        """None: arguments are checked by the constructor."""
        return {}

    def log_prob(self, value: Event) -> Float[Tensor, "*sample_batch"]:
        """Log-probability of events `[*sample, B, *event]`; their values in the padding are ignored."""
        partition, score = self.partition, self._event_score(value)
        return (score - partition).masked_fill((score == -math.inf) | (partition == -math.inf), -math.inf)

    @lazy_property
    def partition(self) -> Float[Tensor, "*batch"]:
        """The log-partition."""
        return self.model.log_partition()

    @lazy_property
    def marginals(self) -> Event:
        """The probability of each part."""
        return self._marginals(self.model)

    @lazy_property
    def argmax(self) -> Event:
        """The event of highest score; zeros where there is none."""
        model = self.model
        return self._event(model, model.argmax())

    @property
    def mode(self) -> Event:  # pyright: ignore[reportIncompatibleMethodOverride]  (an event may be a tuple)
        """The event of highest score."""
        return self.argmax

    @lazy_property
    def max(self) -> Float[Tensor, "*batch"]:
        """The highest score of an event."""
        model = self.model
        return model.score(model.argmax())

    def kmax(self, k: int) -> Float[Tensor, "k *batch"]:
        """The k highest scores; minus infinity where there are fewer events."""
        with torch.enable_grad():
            return _filled(self.model.topk(k).scores, k, -math.inf)

    def topk(self, k: int) -> Event:
        """The k events of highest score, `[k, B, *event]`; zeros where there are fewer."""
        model = self.model
        return each(lambda x: _filled(x, k, 0.0), self._event(model, model.topk(k).configurations))

    @lazy_property
    def entropy(self) -> Float[Tensor, "*batch"]:  # pyright: ignore[reportIncompatibleMethodOverride]  (a property in torch-struct)
        """Shannon entropy, in nats."""
        return self.model.entropy()

    def cross_entropy(self, other: "StructDistribution") -> Float[Tensor, "*batch"]:
        """The cross-entropy of `other` under this distribution, over sequences of this one's lengths."""
        return self.model.cross_entropy(other.model_with(self.lengths))

    def kl(self, other: "StructDistribution") -> Float[Tensor, "*batch"]:
        """Kullback-Leibler divergence from `other`."""
        return self.model.kl(other.model_with(self.lengths))

    @lazy_property
    def count(self) -> Float[Tensor, "*batch"]:
        """How many events are possible."""
        return self._count()

    def _count(self) -> Float[Tensor, "*batch"]:
        dims = len(self.batch_shape)
        possible = tuple((unmasked(x.detach()) > -math.inf).double().flatten(0, dims - 1) for x in self._scores())
        weights = possible if isinstance(self.log_potentials, tuple) else possible[0]
        total = self._struct(StdSemiring).sum(weights, self._positions().flatten())
        return total.reshape(self.batch_shape).round().to(self._scores()[0].dtype)

    def sample(self, sample_shape: Sequence[int] = ()) -> Event:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Exact samples, `[*sample_shape, B, *event]`."""
        check_sample_shape(sample_shape)
        model = self.model
        return self._event(model, model.sample(sample_shape))

    def gumbel_crf(self, temperature: float = 1.0) -> Event:
        """An exact sample with the gradient of the marginals at a temperature (straight-through)."""
        check_temperature(temperature)
        with torch.enable_grad():
            tempered = self._build(tuple(scaled(x, 1.0 / temperature) for x in self._scores()), self.lengths)
            tempered = tempered if self._kept is None else tempered.restrict(self._kept)
            soft = self._marginals(tempered)
            return each(lambda hard, soft: hard + (soft - soft.detach()), self.sample(), soft)

    def to_event(self, sequence: Any, extra: Any = None, lengths: Lengths = None) -> Event:
        """The event of a configuration in short form; `lengths` default to this distribution's."""
        if lengths is None and self.lengths is not None and len(sequence) == len(self.lengths):
            lengths = self.lengths
        return self.struct.to_parts(sequence, extra, lengths=lengths)

    def from_event(self, event: Event) -> tuple[Any, Any]:
        """The short form of an event, and the argument `extra` of `to_event`."""
        return self.struct.from_parts(event)

    def _struct(self, sr: Any = None) -> Any:
        return self.struct() if sr is None else self.struct(sr)


def each(change: Callable[..., Tensor], event: Event, *others: Event) -> Event:
    """`change` of an event, or of each tensor of a tuple."""
    return change(event, *others) if isinstance(event, Tensor) else tuple(map(change, event, *others))


def _filled(best: Tensor, k: int, value: float) -> Tensor:
    """The best, filled up with `value` where there are fewer than k."""
    return F.pad(best, (*(0, 0) * (best.dim() - 1), 0, k - len(best)), value=value)
