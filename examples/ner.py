"""A tagger of names, trained on sentences of which only some words are annotated.

A toy world writes sentences: a word that announces a kind of name, then a name of one to three words, then other words.
All kinds share the words of names, so that only what stands before a name tells its kind. Half of the tags are hidden from
the tagger in training: its loss sums over all tags that they may have (-1). The CRF knows the BIO scheme, so that a name
never starts in its middle. Run: python examples/ner.py
"""

import random

import torch
from torch import nn

from tailsum.nn import CRF, LSTMEncoder

LABELS = ["PER", "LOC", "ORG"]
N_PLAIN, N_NAMES = 60, 60  # words outside of names, and in names; the first plain ones announce a kind

Span = tuple[int, int, str]


def sentence(draw: random.Random, tags: list[str]) -> tuple[list[int], list[int]]:
    """Words and their tags."""
    words, marks = list[int](), list[str]()
    for _ in range(draw.randint(1, 3)):
        label = draw.choice(LABELS)
        size = draw.randint(1, 3)
        words += [LABELS.index(label), *(N_PLAIN + draw.randrange(N_NAMES) for _ in range(size))]
        marks += ["O", f"B-{label}", *[f"I-{label}"] * (size - 1)]
        after = draw.randint(0, 2)  # words of names among them, without a word that announces one
        words += [
            draw.randrange(len(LABELS), N_PLAIN),
            *(draw.randrange(len(LABELS), N_PLAIN + N_NAMES) for _ in range(after)),
        ]
        marks += ["O"] * (1 + after)
    return words, [tags.index(mark) for mark in marks]


def batch(draw: random.Random, tags: list[str], count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Words `[B, T]`, tags `[B, T]` and which positions are no padding."""
    rows = [sentence(draw, tags) for _ in range(count)]
    words, marks = (
        nn.utils.rnn.pad_sequence([torch.tensor(row[i]) for row in rows], batch_first=True) for i in range(2)
    )
    lengths = torch.tensor([len(row[0]) for row in rows])
    return words, marks, torch.arange(words.shape[1]) < lengths[:, None]


def spans(marks: list[str]) -> set[Span]:
    """First position, last position and label of each name."""
    starts = [i for i, mark in enumerate(marks) if mark.startswith("B-")]
    found = set[Span]()
    for start in starts:
        end = start
        while end + 1 < len(marks) and marks[end + 1].startswith("I-"):
            end += 1
        found.add((start, end, marks[start][2:]))
    return found


class Tagger(nn.Module):
    """An LSTM, a linear layer, a CRF."""

    def __init__(self, size: int = 64) -> None:
        super().__init__()
        self.crf = CRF.for_scheme("BIO", LABELS, batch_first=True)
        self.encoder = LSTMEncoder(N_PLAIN + N_NAMES, size)
        self.scores = nn.Linear(size, self.crf.num_tags)

    def forward(self, words: torch.Tensor, inside: torch.Tensor) -> torch.Tensor:
        """A score for each word and tag."""
        return self.scores(self.encoder(words, inside.sum(1)))


def train(steps: int = 150, count: int = 32, hidden: float = 0.5) -> float:
    """F1 of the names of new sentences."""
    torch.manual_seed(0)
    draw, model = random.Random(0), Tagger()
    tags = model.crf.tags or []
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(steps):
        words, marks, inside = batch(draw, tags, count)
        known = torch.where(torch.rand(marks.shape) < hidden, -1, marks)
        loss = -model.crf(model(words, inside), known, inside, reduction="token_mean")
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step:3d}: {loss.item():.3f} nats per word")
    words, marks, inside = batch(draw, tags, 200)
    found = model.crf.decode(model(words, inside), inside)
    gold = [row[: len(path)] for row, path in zip(marks.tolist(), found, strict=True)]
    guessed, right, true = 0, 0, 0
    for path, row in zip(found, gold, strict=True):
        guess, truth = (spans([tags[i] for i in ids]) for ids in (path, row))
        guessed, right, true = guessed + len(guess), right + len(guess & truth), true + len(truth)
    f1 = 2 * right / max(1, guessed + true)
    print(f"F1 of names in new sentences: {f1:.1%}")
    return f1


if __name__ == "__main__":
    train()
