"""What to train and how, as one JSON file in the run's folder says it."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

from tailsum.apps.vae.baselines import rate_share
from tailsum.apps.vae.seeds import check_seed
from tailsum.nn.estimator import EXACT_UP_TO, Estimator
from tailsum.nn.method import Method
from tailsum.numerics.check import at_least

OWN_ENCODERS = ("lstm", "transformer")


@dataclass(frozen=True)
class Settings:
    """Everything that the result of training depends on, the text itself aside."""

    data: str | None = None  # a file or a folder; None: Python's own documentation
    words: int = 10_000  # in the vocabulary, at most
    longest: int = 40  # words in a sentence
    states: int = 300
    estimator: Method = "tailsum"
    kept: int | None = (
        None  # states at each position; None: all if affordable (full, tailsum), a fifth (topk, rdp), or 200
    )
    drawn: int | None = None  # how many of them are drawn (rdp); None: half
    landmarks: int = 256
    probes: int = 1  # states of each position at which p(word | state) is asked for (tailsum)
    encoder: str = "lstm"  # or "transformer", or a folder or name of a pretrained model
    frozen: bool = True  # a pretrained encoder
    size: int = 128  # of word embeddings, and of an encoder of our own
    state_size: int = 64
    hidden: int = 256  # of the decoder's LSTM
    dropout: float = 0.2
    word_dropout: float = 0.0  # the share of words that the decoder does not see
    last_word_dropout: float | None = None  # what that comes to in the first half; None: it stays
    spread: float = 0.1  # of the inference network's state embeddings, at the start
    hard: bool = True  # samples are one-hot, with relaxed gradients
    temperature: float = 1.0
    final_temperature: float = 1.0
    entropy_weight: float = 1.0
    kl_weight: float = 0.5  # on log p(states) and the entropy together, which keep the posterior near the prior
    warm_up: float = 0.5  # the share of all steps in which that weight grows from zero
    steps: int = 600
    batch: int = 64
    shards: int = 1  # parts of a batch that are worked on one after the other, or by as many processes
    rate: float = 3e-3
    clip: float = 5.0
    seed: int = 0
    check_every: int = 100  # steps between looks at the dev part, and between checkpoints
    check_sentences: int = 500
    check_samples: int = 5

    def __post_init__(self) -> None:
        at_least(2, states=self.states)
        at_least(1, words=self.words, longest=self.longest, size=self.size, state_size=self.state_size)
        at_least(1, hidden=self.hidden, steps=self.steps, batch=self.batch, shards=self.shards)
        at_least(1, check_every=self.check_every, check_sentences=self.check_sentences)
        at_least(1, check_samples=self.check_samples)
        check_seed(self.seed)
        for name in ("rate", "clip", "temperature", "final_temperature", "spread"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be positive and finite: got {getattr(self, name)}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and less than 1: got {self.dropout}")
        for name in ("word_dropout", "last_word_dropout", "warm_up"):
            if not 0 <= (getattr(self, name) or 0.0) <= 1:
                raise ValueError(f"{name} must be a share, between 0 and 1: got {getattr(self, name)}")
        for name in ("entropy_weight", "kl_weight"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be at least 0 and finite: got {getattr(self, name)}")
        if self.estimator not in get_args(Method):
            raise ValueError(f"estimator must be one of {', '.join(get_args(Method))}: got {self.estimator!r}")
        if self.shards > self.batch:
            raise ValueError(f"shards must be at most {self.batch}, the size of a batch: got {self.shards}")
        self.sums()

    def sums(self) -> Estimator:
        """How sums over the states are taken in training."""
        kept, landmarks = self.kept, min(self.landmarks, self.states)
        if kept is None and self.estimator in ("full", "tailsum") and self.states <= EXACT_UP_TO:
            kept = self.states
        elif kept is None:
            kept = 200 if self.estimator == "tailsum" else max(2, self.states // 5)
        return Estimator(self.estimator, min(kept, self.states), landmarks, self.probes, self.drawn)

    def rate_at(self, step: int) -> float:
        """The learning rate."""
        return self.rate * rate_share(step, self.steps)

    def weight_at(self, step: int) -> float:
        """The weight on what keeps the posterior near the prior."""
        return self.kl_weight * (min(1.0, step / (self.warm_up * self.steps)) if self.warm_up else 1.0)

    def temperature_at(self, step: int) -> float:
        """The temperature of relaxed samples: it changes in the second half only, geometrically."""
        late = max(0.0, 2 * step / self.steps - 1)
        return self.temperature * (self.final_temperature / self.temperature) ** late

    def word_dropout_at(self, step: int) -> float:
        """The share of words that the decoder does not see: it changes in the first half only, linearly."""
        final = self.word_dropout if self.last_word_dropout is None else self.last_word_dropout
        return self.word_dropout + (final - self.word_dropout) * min(1.0, 2 * step / self.steps)

    def as_json(self) -> dict[str, Any]:
        """What `from_json` reads."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, content: Any) -> "Settings":
        """Settings that were written by this version or an earlier one; a ValueError if they are something else."""
        types = get_type_hints(cls)
        if not isinstance(content, dict) or not set(content) <= set(types):
            found = sorted(set(content) - set(types)) if isinstance(content, dict) else type(content).__name__
            raise ValueError(f"settings must be an object with the names of this version: got {found}")
        for name, value in content.items():
            allowed = get_args(types[name]) or (types[name],)
            fits = (
                value in allowed
                if name == "estimator"
                else type(value) in (*allowed, *([int] if float in allowed else []))
            )
            if not fits:
                raise ValueError(f"settings: {name} must be {types[name]}: got {value!r}")
        return cls(**content)
