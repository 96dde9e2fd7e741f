"""Language models without latent states, whose likelihoods stand beside the autoencoder's: counts of words, and an LSTM.

All are distributions over sentences: each word, "<end>" included, is predicted from the words before it, out of the same
V words. Sentences are lists of numbers `0 .. V-1`, of which the last, and only the last, is that of "<end>".
"""

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tailsum_studies.check import at_least, checked_inside
from tailsum_studies.vae.data import Order, batch_of, in_evaluation
from tailsum_studies.vae.seeds import seeded
from tailsum_studies.vae.settings import Settings

Sentences = Sequence[Sequence[int]]


class Score(NamedTuple):
    """Negative log-likelihood in nats, per word ("<end>" is one) and per sentence.

    `standard_error` is that of `per_sentence`, as a mean over sentences drawn independently.
    """

    per_word: float
    per_sentence: float
    standard_error: float


def score(log_probs: Float[Tensor, " S"], lengths: Int[Tensor, " S"] | Sequence[int]) -> Score:
    """The score of a model that gives these log-probabilities to sentences of these numbers of words.

    >>> score(torch.tensor([-2.0, -4.0]), [1, 2])
    Score(per_word=2.0, per_sentence=3.0, standard_error=1.0)
    """
    loss = -log_probs.detach().cpu().double()
    counts = torch.as_tensor(lengths, device="cpu")
    if counts.is_floating_point():
        raise ValueError(f"lengths must be integers: got {counts.dtype}")
    if loss.dim() != 1 or counts.shape != loss.shape or not len(loss):
        got = f"{list(loss.shape)} and {list(counts.shape)}"
        raise ValueError(f"log_probs and lengths must be of one or more sentences: got {got}")
    if counts.min() < 1:
        raise ValueError(f'lengths must be at least 1, as "<end>" is a word: got {counts.min().item()}')
    error = (loss.std() / math.sqrt(len(loss))).item() if len(loss) > 1 else math.nan
    return Score((loss.sum() / counts.sum()).item(), loss.mean().item(), error)


# Counts.


@dataclass(frozen=True)
class CountModel:
    """A model that knows at most the word before: `log_next` gives log-probabilities of words behind given ones.

    In the place of the word before, `n_words` is the start of a sentence.
    """

    n_words: int
    end: int
    log_next: Callable[[Tensor, Tensor], Tensor]

    def log_prob(self, sentences: Sentences) -> Float[Tensor, " S"]:
        """The log-probability of each sentence."""
        _checked_end(self.n_words, self.end, sentences=sentences)
        each = self.log_next(*_pairs(sentences, self.n_words))
        return torch.stack([part.sum() for part in each.split([len(sentence) for sentence in sentences])])


def unigram(train: Sentences, n_words: int) -> CountModel:
    """Words by how often they were seen, plus once each.

    >>> unigram([[1, 1, 2], [2]], 3).log_prob([[1, 2]]).exp()  # (2 + 1) / (4 + 3), twice
    tensor([0.1837], dtype=torch.float64)
    """
    end = _checked_end(n_words, train=train)
    counts = _pairs(train, n_words)[1].bincount(minlength=n_words).double()
    log_word = ((counts + 1) / (counts.sum() + n_words)).log()
    return CountModel(n_words, end, lambda _, words: log_word[words])


def bigram(train: Sentences, n_words: int) -> CountModel:
    """Words by the word before, by interpolated Kneser-Ney smoothing.

    What is taken off the count of each pair is shared out by how many different words a word was seen behind; and
    what is taken off those numbers, evenly over all words. So no word is impossible.
    """
    end = _checked_end(n_words, train=train)
    before, words = _pairs(train, n_words)
    # Only the pairs that were seen, sorted by their keys: a table of all pairs would be too large.
    keys, counts = (before * n_words + words).unique(return_counts=True)
    discount, total = _discount(counts), before.bincount(minlength=n_words + 1).double()
    kinds = (keys // n_words).bincount(minlength=n_words + 1).double()
    rest = torch.where(kinds > 0, discount * kinds / total, 1.0)
    continuation = _continuation((keys % n_words).bincount(minlength=n_words))

    def log_next(before: Int[Tensor, " n"], words: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
        key = before * n_words + words
        place = torch.searchsorted(keys, key).clamp(max=len(keys) - 1)
        count = torch.where(keys[place] == key, counts[place].double(), 0.0)
        seen = (count - discount).clamp(min=0) / total[before].clamp(min=1)
        return (seen + rest[before] * continuation[words]).log()

    return CountModel(n_words, end, log_next)


def _discount(counts: Int[Tensor, " n"]) -> float:
    """What Kneser-Ney takes off each count: `n1 / (n1 + 2 n2)`, where `n1` were seen once and `n2` twice.

    Where nothing was seen once, it would take nothing and leave nothing for what is new: it takes a half then.
    """
    once, twice = (counts == 1).sum().item(), (counts == 2).sum().item()
    return once / (once + 2 * twice) if once else 0.5


def _continuation(contexts: Int[Tensor, " V"]) -> Float[Tensor, " V"]:
    """The probability of each word from the number of contexts it was seen in, discounted towards uniform."""
    discount, seen = _discount(contexts), (contexts > 0).sum().item()
    kept = (contexts.double() - discount).clamp(min=0)
    return (kept + discount * seen / len(contexts)) / contexts.sum()


def _pairs(sentences: Sentences, start: int) -> tuple[Int[Tensor, " n"], Int[Tensor, " n"]]:
    """For all words of all sentences, the word before, or `start`, and the word."""
    before = [word for sentence in sentences for word in (start, *sentence[:-1])]
    return torch.tensor(before), torch.tensor([word for sentence in sentences for word in sentence])


# The LSTM.


class WordLSTM(nn.Module):
    """A plain language model: an LSTM reads the words so far, and an MLP behind it scores the next word.

    `size` is that of the words' embeddings; the table that scores the words is the one that embeds them.
    """

    def __init__(self, n_words: int, size: int = 128, hidden: int = 256, dropout: float = 0.0) -> None:
        super().__init__()
        self.n_words = n_words
        self.words = nn.Embedding(n_words, size)
        nn.init.normal_(self.words.weight, std=size**-0.5)
        self.start = nn.Parameter(torch.zeros(size))
        self.lstm = nn.LSTM(size, hidden, batch_first=True)
        self.to_word = nn.Sequential(nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, size))
        self.bias = nn.Parameter(torch.zeros(n_words))
        self.dropout = nn.Dropout(dropout)

    def log_prob(self, words: Int[Tensor, "B T"], lengths: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
        """The log-probability of each sentence."""
        inside = checked_inside(words, lengths, self.n_words)
        words = words.masked_fill(~inside, 0)
        before = self.dropout(self.words(words[:, :-1]))
        read, _ = self.lstm(torch.cat([self.start.expand(len(words), 1, -1), before], 1))
        context = self.to_word(self.dropout(read)[inside])
        logits = nn.functional.linear(context, self.words.weight, self.bias)
        each = -nn.functional.cross_entropy(logits, words[inside], reduction="none")
        return each.new_zeros(words.shape).masked_scatter(inside, each).sum(-1)


@torch.no_grad()
def sentence_log_probs(model: WordLSTM, sentences: Sentences, batch: int = 128) -> Float[Tensor, " S"]:
    """The log-probability of each sentence, in their order and without dropout, on the CPU in double precision."""
    _checked_end(model.n_words, sentences=sentences)
    at_least(1, batch=batch)
    found = torch.zeros(len(sentences), dtype=torch.double)
    for chosen, (words, lengths) in in_evaluation(model, sentences, batch):
        found[chosen] = model.log_prob(words, lengths).double().cpu()
    return found


class TrainedLSTM(NamedTuple):
    """The model as it was when it did best on dev, and the loss per word there at each check: pairs of step and loss."""

    model: WordLSTM
    checks: tuple[tuple[int, float], ...]


def train_lstm(
    train: Sentences,
    dev: Sentences,
    n_words: int,
    settings: Settings,
    n_checks: int = 8,
    device: torch.device | str = "cpu",
    step: Callable[[], None] = lambda: None,
) -> TrainedLSTM:
    """Train a `WordLSTM` as large as the autoencoder's decoder, as long and as fast; `step` is called after each step.

    The result follows from the seed; the caller's random state is left alone. The loss on dev is checked `n_checks` times
    at equal distances, last at the end.
    """
    _checked_end(n_words, train=train, dev=dev)
    at_least(1, n_checks=n_checks)
    device, steps = torch.device(device), settings.steps
    order = Order([len(sentence) for sentence in train], settings.batch, settings.seed)
    scale = sum(map(len, train)) / len(train) * min(settings.batch, len(train))  # words in a batch, on average
    check_at = {math.ceil(steps * (i + 1) / n_checks) for i in range(n_checks)}
    checks, least, best = list[tuple[int, float]](), math.inf, None
    with seeded(settings.seed, device):
        model = WordLSTM(n_words, settings.size, settings.hidden, settings.dropout).to(device)
        optimiser = torch.optim.Adam(model.parameters(), settings.rate)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, settings.rate_share_at)
        for done in range(1, steps + 1):
            words, lengths = batch_of([train[i] for i in order.at(done - 1)]).to(device)
            loss = -model.log_prob(words, lengths).sum() / scale
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
            optimiser.step()
            schedule.step()
            if done in check_at:
                on_dev = score(sentence_log_probs(model, dev), [len(sentence) for sentence in dev]).per_word
                checks.append((done, on_dev))
                if on_dev < least:  # never, if it is not a number
                    least, best = on_dev, deepcopy(model.state_dict())
            step()
    if best is None:
        raise ValueError(f"rate must be small enough for the loss to stay finite on dev: got {settings.rate}")
    model.load_state_dict(best)
    return TrainedLSTM(model.eval(), tuple(checks))


def _checked_end(n_words: int, end: int | None = None, **parts: Sentences) -> int:
    """The number of "<end>", in which all sentences must end, once they are known to be in order."""
    at_least(1, n_words=n_words)
    for name, sentences in parts.items():
        if not len(sentences):
            raise ValueError(f"{name} must hold at least one sentence: got none")
        for i, sentence in enumerate(sentences):
            which, got = f"{name}[{i}] must", f"got {list(sentence) or 'none'}"
            if not len(sentence):
                raise ValueError(f'{which} hold words, or at least "<end>": {got}')
            if min(sentence) < 0 or max(sentence) >= n_words:
                raise ValueError(f"{which} hold numbers from 0 to V-1 = {n_words - 1}: {got}")
            end = sentence[-1] if end is None else end
            if sentence[-1] != end or end in sentence[:-1]:
                raise ValueError(f'{which} have {end}, the number of "<end>", at its end and nowhere else: {got}')
    assert end is not None
    return end
