"""What to train and how, as one JSON file in the run's folder says it.

The options of `tailsum train` are made from the fields here, without torch, which is slow to load.
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_args, get_type_hints

from typer import Option
from typer.models import OptionInfo

if TYPE_CHECKING:
    from tailsum.nn import Estimator

Method = Literal["full", "topk", "rdp", "tailsum"]  # the methods of `tailsum.nn.Estimator`
EXACT_UP_TO = 20_000  # states: with a transition that all steps and sentences share, sums over more are slow
OWN_ENCODERS = ("lstm", "transformer")


class Bound(NamedTuple):
    """What a number must be, in words, and whether one is; for what the options of a command cannot say."""

    wanted: str
    holds: Callable[[float], bool]


POSITIVE = Bound("be positive and finite", lambda x: 0 < x < math.inf)
NOT_NEGATIVE = Bound("be at least 0 and finite", lambda x: 0 <= x < math.inf)
BELOW_ONE = Bound("be at least 0 and less than 1", lambda x: 0 <= x < 1)
SHARE = Bound("be a share, between 0 and 1", lambda x: 0 <= x <= 1)
SEED = Bound("lie between -2^63 and 2^63 - 1", lambda x: -(1 << 63) <= x < 1 << 63)


def count(least: int, help_: str | None = None) -> OptionInfo:
    """A whole number of at least so much; an option, if it has a help."""
    return Option(min=least, help=help_)


@dataclass(frozen=True)
class Settings:
    """Everything that the result of training depends on, the text itself aside.

    A field has its default and its bounds here and, if it is an option of `tailsum train`, the option's help.
    """

    data: str | None = None  # a file or a folder; None: Python's own documentation
    states: Annotated[int, count(2, "How many states a word may have.")] = 300
    estimator: Annotated[
        Method, Option(metavar="NAME", help="How training sums over the states: full, topk, rdp or tailsum.")
    ] = "tailsum"
    kept: Annotated[
        int | None,
        count(2, "States kept at each position. Default: all up to 20,000, then 200 (tailsum); a fifth (topk, rdp)."),
    ] = None
    drawn: Annotated[int | None, count(1, "How many of the kept states are drawn (rdp). Default: half.")] = None
    landmarks: Annotated[int, count(1, "States that guide the choice of the kept ones (tailsum).")] = 256
    probes: Annotated[int, count(1, "States of each position at which p(word | state) is asked for (tailsum).")] = 1
    encoder: Annotated[
        str, Option(help="lstm, transformer, or a pretrained model: a folder, or its name on the hub.")
    ] = "lstm"
    frozen: Annotated[bool, Option(help="Leave a pretrained encoder as it is.")] = True
    steps: Annotated[int, count(1, "How many batches to train on; with --resume, in all.")] = 900
    batch: Annotated[int, count(1, "Sentences in a batch.")] = 64
    shards: Annotated[int, count(1, "Parts of a batch, worked on in turn, or by as many processes (torchrun).")] = 1
    rate: Annotated[float, POSITIVE, Option(help="Adam's learning rate.")] = 3e-3
    clip: Annotated[float, POSITIVE, Option(help="The largest norm of the gradient.")] = 5.0
    dropout: Annotated[float, BELOW_ONE, Option(help="Dropout of embeddings and of the decoder's memory.")] = 0.2
    word_dropout: Annotated[float, SHARE, Option(help="The share of words that the decoder reads as `<unk>`.")] = 0.0
    last_word_dropout: Annotated[
        float | None, SHARE, Option(help="What it becomes in the first half of the steps. Default: it stays.")
    ] = None
    hard: Annotated[bool, Option("--hard/--soft", help="One-hot samples with relaxed gradients, or relaxed.")] = True
    temperature: Annotated[float, POSITIVE, Option(help="Temperature of relaxed samples.")] = 1.0
    final_temperature: Annotated[float, POSITIVE, Option(help="What it becomes in the second half of the steps.")] = 1.0
    entropy_weight: Annotated[float, NOT_NEGATIVE, Option(help="The weight on the entropy of the posterior.")] = 1.0
    kl_weight: Annotated[
        float, NOT_NEGATIVE, Option(help="The weight on what keeps the posterior near the prior; 1 is the ELBO.")
    ] = 0.35
    warm_up: Annotated[float, SHARE, Option(help="The share of the steps in which that weight grows from zero.")] = 0.5
    certainty: Annotated[
        float, NOT_NEGATIVE, Option(help="The score of a word's class at the start; 0: random states.")
    ] = 10.0
    spread: Annotated[float, POSITIVE, Option(help="Scale of the posterior's state embeddings at the start.")] = 0.1
    size: Annotated[int, count(2, "Size of word embeddings and of the encoder.")] = 128
    state_size: Annotated[int, count(1, "Size of state embeddings.")] = 64
    hidden: Annotated[int, count(1, "Size of the decoder's LSTM.")] = 256
    words: Annotated[int, count(1, "Words in the vocabulary, at most.")] = 10_000
    longest: Annotated[int, count(1, "Words in a sentence; longer ones are left out.")] = 40
    seed: Annotated[int, SEED, Option(help="The seed of everything random.")] = 0
    check_every: Annotated[int, count(1, "Steps between looks at the dev part, and checkpoints.")] = 100
    check_sentences: Annotated[int, count(1)] = 500
    check_samples: Annotated[int, count(1)] = 5
    earlier: tuple[int, ...] = ()  # the steps that the run was to have, before each time that it was given more

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(Settings, include_extras=True).items():
            if (value := getattr(self, name)) is not None:
                _check(name, value, hint)
        if self.estimator not in get_args(Method):
            raise ValueError(f"estimator must be one of {', '.join(get_args(Method))}: got {self.estimator!r}")
        if self.shards > self.batch:
            raise ValueError(f"shards must be at most {self.batch}, the size of a batch: got {self.shards}")
        if any(before >= after for before, after in pairwise((0, *self.plan))):
            raise ValueError(f"earlier must be positive, rising and below {self.steps}, the steps: got {self.earlier}")
        self.sums()

    @property
    def plan(self) -> tuple[int, ...]:
        """The steps at which the run was, or is, to end."""
        return (*self.earlier, self.steps)

    def extended(self, steps: int) -> "Settings":
        """The settings of the same run with more steps: it first does what it was to do, and then goes on.

        >>> Settings(steps=100).extended(150).plan
        (100, 150)
        """
        if steps == self.steps:
            return self
        if steps < self.steps:
            raise ValueError(f"steps must be at least {self.steps}, which the run has already: got {steps}")
        return dataclasses.replace(self, steps=steps, earlier=self.plan)

    def is_extension_of(self, other: "Settings") -> bool:
        """Whether a run with the other settings becomes one with these when it is given more steps, or is one.

        >>> Settings(steps=150, earlier=(100,)).is_extension_of(Settings(steps=100))
        True
        """
        same = dataclasses.replace(other, steps=self.steps, earlier=self.earlier) == self
        return same and self.plan[: len(other.plan)] == other.plan

    @classmethod
    def options(cls) -> dict[str, Any]:
        """The annotations of those fields that are options of `tailsum train`."""
        hints = get_type_hints(cls, include_extras=True)
        return {name: hint for name, hint in hints.items() if any(getattr(x, "help", None) for x in get_args(hint))}

    def sums(self) -> "Estimator":
        """How sums over the states are taken in training."""
        from tailsum.nn import Estimator  # noqa: PLC0415  (torch is slow to load)

        kept, landmarks = self.kept, min(self.landmarks, self.states)
        if kept is None and self.estimator in ("full", "tailsum") and self.states <= EXACT_UP_TO:
            kept = self.states
        elif kept is None:
            kept = 200 if self.estimator == "tailsum" else max(2, self.states // 5)
        return Estimator(self.estimator, min(kept, self.states), landmarks, self.probes, self.drawn)

    def without_effect(self) -> dict[str, str]:
        """The settings that change nothing, whatever they are, each with the option that makes it so."""
        sums, states = self.sums(), f"--states {self.states}"
        of_others = {
            "full": ("kept", "drawn", "landmarks", "probes"),
            "topk": ("drawn", "landmarks", "probes"),
            "rdp": ("landmarks", "probes"),
            "tailsum": ("drawn",),
        }
        found = dict.fromkeys(of_others[self.estimator], f"--estimator {self.estimator}")
        if self.estimator == "tailsum" and sums.kept == self.states:
            found["landmarks"] = f"{states}, which are all summed over (--kept would choose)"
        for name, most, other in (
            ("kept", self.states, states),
            ("landmarks", self.states, states),
            ("probes", sums.kept, f"--kept {sums.kept}"),
        ):
            if (getattr(self, name) or 0) > most:
                found.setdefault(name, f"{other}, which are fewer")
        if self.encoder in OWN_ENCODERS:
            found["frozen"] = f"--encoder {self.encoder}"
        else:
            found["certainty"] = f"--encoder {self.encoder}"
        if not self.kl_weight:
            found |= dict.fromkeys(("warm_up", "entropy_weight"), "--kl-weight 0")
        return found

    # Schedules. Those of an extended run keep to the steps that it was begun with, and then stay where they are; only the
    # learning rate, which has become too small to learn by, rises and falls once more in every extension.

    def rate_at(self, step: int) -> float:
        """The learning rate."""
        return self.rate * self.rate_share_at(step)

    def rate_share_at(self, step: int) -> float:
        """The share of the learning rate."""
        start = max(end for end in (0, *self.earlier) if end <= step)
        end = min(end for end in self.plan if end > start)
        return rate_share(step - start, end - start)

    def weight_at(self, step: int) -> float:
        """The weight on what keeps the posterior near the prior."""
        return self.kl_weight * (min(1.0, step / (self.warm_up * self.plan[0])) if self.warm_up else 1.0)

    def temperature_at(self, step: int) -> float:
        """The temperature of relaxed samples: it changes in the second half only, geometrically."""
        late = min(1.0, max(0.0, 2 * step / self.plan[0] - 1))
        return self.temperature * (self.final_temperature / self.temperature) ** late

    def word_dropout_at(self, step: int) -> float:
        """The share of words that the decoder does not see: it changes in the first half only, linearly."""
        final = self.word_dropout if self.last_word_dropout is None else self.last_word_dropout
        return self.word_dropout + (final - self.word_dropout) * min(1.0, 2 * step / self.plan[0])

    def as_json(self) -> dict[str, Any]:
        """What `from_json` reads."""
        return {**dataclasses.asdict(self), "earlier": list(self.earlier)}

    @classmethod
    def from_json(cls, content: Any) -> "Settings":
        """Settings that were written by this version or an earlier one; a ValueError if they are something else."""
        types = get_type_hints(cls)
        if not isinstance(content, dict) or not set(content) <= set(types):
            found = sorted(set(content) - set(types)) if isinstance(content, dict) else type(content).__name__
            raise ValueError(f"settings must be an object with the names of this version: got {found}")
        earlier = content.get("earlier", [])
        if type(earlier) is not list or any(type(steps) is not int for steps in earlier):
            raise ValueError(f"settings: earlier must be a list of whole numbers: got {earlier!r}")
        for name, value in content.items():
            if name == "earlier":
                continue
            allowed = get_args(types[name]) or (types[name],)
            if not (type(value) in allowed or value in allowed or (type(value) is int and float in allowed)):
                raise ValueError(f"settings: {name} must be {types[name]}: got {value!r}")
        return cls(**{**content, "earlier": tuple(earlier)})


def _check(name: str, value: Any, hint: Any) -> None:
    """A ValueError if a value is not within the bounds that its annotation has."""
    for part in get_args(hint):
        if isinstance(part, Bound) and not part.holds(value):
            raise ValueError(f"{name} must {part.wanted}: got {value}")
        if isinstance(part, OptionInfo) and part.min is not None and (type(value) is not int or value < part.min):
            raise ValueError(f"{name} must be a whole number of at least {part.min}: got {value}")


def rate_share(step: int, steps: int) -> float:
    """The share of the learning rate at a step: it grows over the first steps, and falls in the second half.

    >>> [round(rate_share(step, 100), 2) for step in (0, 9, 50, 75, 99)]
    [0.1, 1.0, 1.0, 0.5, 0.02]
    """
    grown = min(1.0, (step + 1) / min(100, max(1, steps // 10)))
    return grown * min(1.0, max(0.02, 2 * (1 - step / steps)))
