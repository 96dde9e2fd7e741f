"""Gaps as people read them: the sentence, what is missing, the likeliest words together, and some that were drawn."""

import torch
from jaxtyping import Int
from torch import Tensor

from tailsum import Lookahead
from tailsum_studies.gaps.data import Gaps, Text
from tailsum_studies.gaps.model import GapFiller


@torch.no_grad()
def filled(model: GapFiller, gaps: Gaps, text: Text, kept: int, generator: torch.Generator | None = None) -> list[str]:
    """Each sentence with its gap in brackets as it was, as the model fills it best, and as it fills it by chance."""
    chain = model(gaps.to(model.bias.device))
    small = chain.sketch(kept, proposal=Lookahead(kept, neighbours=0), generator=generator)
    ways = {"was": gaps.words, "best": small.argmax().cpu(), "drawn": small.sample(generator=generator).cpu()}
    found = []
    for row in range(len(gaps.seen)):
        start, length = int(gaps.start[row]), int(gaps.lengths[row])
        before, after = gaps.seen[row, :start], gaps.seen[row, start + length :]
        words = {name: _text(text, each[row, :length]) for name, each in ways.items()}
        shown = "; ".join(f"{name}: {each}" for name, each in words.items())
        found.append(f"{_text(text, before)} [{shown}] {_text(text, after[after > 0])}".strip())
    return found


def _text(text: Text, words: Int[Tensor, " t"]) -> str:
    return " ".join(text.vocabulary.decode(words.tolist()))
