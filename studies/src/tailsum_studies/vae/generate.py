"""Sentences of the generative model's own, state by state and word by word."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.nn import Decoder
from tailsum_studies.check import at_least
from tailsum_studies.vae.seeds import mixed, seeded


class Generated(NamedTuple):
    """The words of a sentence and the state of each, as numbers; the last word is "<end>", unless it was cut off."""

    words: list[int]
    states: list[int]


@torch.no_grad()
def sample_prior(decoder: Decoder, n: int, longest: int, end: int, seed: int = 0) -> list[Generated]:
    """Draw `n` sentences from `p(x, y)`, each up to the word `end`, or cut off behind `longest` words; without dropout.

    They follow from the seed; the caller's random state is left alone.
    """
    at_least(1, n=n, longest=longest)
    if not 0 <= end < decoder.words.num_embeddings:
        raise ValueError(f"end must be a word, from 0 to V-1 = {decoder.words.num_embeddings - 1}: got {end}")
    with seeded(mixed(seed), decoder.start.device):
        words, states = _drawn(decoder, n, longest, end)
    lengths = [row.index(end) + 1 if end in row else len(row) for row in words]
    return [Generated(row[:n], of[:n]) for row, of, n in zip(words, states, lengths, strict=True)]


def _drawn(decoder: Decoder, n: int, longest: int, end: int) -> tuple[list[list[int]], list[list[int]]]:
    """Words and states of all sentences, as far as the longest goes: behind the end of the others they mean nothing."""
    read, memory = decoder.start.expand(n, 1, -1), None
    words: list[Tensor] = []
    states: list[Tensor] = []
    ended = torch.zeros(n, dtype=torch.bool, device=read.device)
    while len(words) < longest and not ended.all():
        context, memory = decoder.lstm(read, memory)
        context = context[:, 0]
        states.append(_choice(decoder.state_logits(context)))
        embedded = decoder.states(states[-1])
        words.append(_choice(decoder.word_logits(context, embedded)))
        read = torch.cat([decoder.words(words[-1]), embedded], -1)[:, None]
        ended |= words[-1] == end
    return torch.stack(words, 1).tolist(), torch.stack(states, 1).tolist()


def _choice(logits: Float[Tensor, "n k"]) -> Int[Tensor, " n"]:
    return logits.softmax(-1).multinomial(1)[:, 0]
