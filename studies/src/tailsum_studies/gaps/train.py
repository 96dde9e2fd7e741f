"""Training for so many seconds, and how well the result restores words that it has not seen."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tailsum import LinearChain, Lookahead
from tailsum_studies.gaps.candidates import log_frequency
from tailsum_studies.gaps.data import Gaps, Text, batches, cut
from tailsum_studies.gaps.model import GapFiller
from tailsum_studies.gaps.next_word import NextWord
from tailsum_studies.gaps.ways import Way, independent, log_likelihood

BATCH, RATE, CLIP = 32, 3e-3, 5.0
PART = 16  # gaps that are evaluated together


@dataclass(frozen=True)
class Curve:
    """How training went: steps, the seconds that they took, and the mean loss of the last hundred, in nats per word."""

    steps: int
    seconds: float
    loss: float


def train(
    way: Way,
    text: Text,
    seconds: float,
    seed: int,
    device: torch.device,
    progress: Callable[[int], None] = lambda _: None,
    clock: Callable[[], float] | None = None,
) -> tuple[GapFiller | NextWord, Curve]:
    """Adam for so many seconds: of the processor on a CPU, where others may be at work too, else by the clock.

    The learning rate falls in the second half. `progress` is called with the whole seconds that have passed.
    """
    clock = clock or (time.process_time if device.type == "cpu" else time.perf_counter)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        model = way.model(len(text.vocabulary)).to(device)
        log_q = log_frequency(text).to(device)
        optimiser = torch.optim.Adam(model.parameters(), RATE)
        source = batches(text.train, BATCH, len(text.vocabulary), torch.Generator().manual_seed(seed))
        used, losses = 0.0, list[float]()
        while used < seconds:
            start, share = clock(), used / seconds
            gaps = next(source).to(device)
            optimiser.param_groups[0]["lr"] = (
                RATE * min(1.0, (len(losses) + 1) / 50) * max(0.02, min(1.0, 2 - 2 * share))
            )
            loss = -log_likelihood(way, model, gaps, log_q).sum() / gaps.lengths.sum()
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimiser.step()
            losses.append(loss.item())
            before, used = used, used + clock() - start
            progress(int(min(used, seconds)) - int(before))
    last = losses[-100:]
    return model.eval(), Curve(len(losses), used, sum(last) / len(last))


def held_out(text: Text, part: str, count: int) -> list[Gaps]:
    """So many sentences of a part, evenly spread over it, each with a gap that is always the same."""
    sentences: list[Tensor] = getattr(text, part)
    some = sentences[:: max(1, len(sentences) // count)][:count]
    generator = torch.Generator().manual_seed(len(sentences))
    gap = len(text.vocabulary)
    return [cut(some[start : start + PART], gap, generator) for start in range(0, len(some), PART)]


@dataclass(frozen=True)
class Score:
    """Of each held-out gap: the log-probability of its words, how many they are, and how many of them were found."""

    log_likelihood: Float[Tensor, " B"]
    words: Float[Tensor, " B"]
    right: Float[Tensor, " B"]

    @property
    def nll(self) -> float:
        """Nats per word."""
        return -(self.log_likelihood.sum() / self.words.sum()).item()

    @property
    def accuracy(self) -> float:
        """The share of words that are the likeliest ones of their position."""
        return (self.right.sum() / self.words.sum()).item()


@torch.no_grad()
def evaluate(
    model: GapFiller | NextWord,
    gaps: list[Gaps],
    text: Text,
    kept: int | None = 256,
    landmarks: int = 64,
    generator: torch.Generator | None = None,
) -> Score:
    """How likely the model finds missing words, and how many it finds: exactly, or with `kept` words at each position.

    Sums over kept words are too low on average, never too high: a likelihood by them flatters. A word that is no state has
    the probability of "<unk>" times its share among such words.
    """
    device, counts = model.bias.device, log_frequency(text)
    rare = counts[model.n_states :].log_softmax(0) if model.n_states < model.n_words else counts[:0]
    parts: list[tuple[Tensor, ...]] = []
    for batch in gaps:
        known, inside = batch.words < model.n_states, batch.inside()
        asked = batch._replace(words=torch.where(known, batch.words, 0)).to(device)
        if isinstance(model, NextWord):
            found, best = model.log_prob(asked), model.greedy(asked)
        else:
            found, best = _filled(model(asked), model.paired, asked.words, kept, landmarks, generator)
        found, best = found.cpu(), best.cpu()
        if len(rare):
            among = rare[(batch.words - model.n_states).clamp(min=0)]
            found = found + torch.where(inside & ~known, among, 0.0).sum(-1)
        right = (inside & known & (best == batch.words)).sum(-1)
        parts.append((found.double(), batch.lengths.double(), right.double()))
    return Score(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _filled(
    chain: LinearChain,
    paired: bool,
    words: Int[Tensor, "B T"],
    kept: int | None,
    landmarks: int,
    generator: torch.Generator | None,
) -> tuple[Float[Tensor, " B"], Int[Tensor, "B T"]]:
    """The log-probability of given words, and the likeliest word of each position."""
    if not paired:
        return independent(chain, words), chain.node_scores().argmax(-1)
    whole = kept is None or kept >= chain.n_states
    guide = Lookahead(landmarks, neighbours=0)
    small = chain if whole else chain.sketch(kept, proposal=guide, generator=generator)
    best = small.states.gather(-1, small.marginals().argmax(-1, keepdim=True))[..., 0]
    return chain.score(words) - small.log_partition(), best
