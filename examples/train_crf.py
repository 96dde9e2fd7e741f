"""Train a neural CRF with 20,000 states on sequences of tags: the loss never sums over more than a few of them.

A toy world writes sentences: each word belongs to a hidden topic, topics follow one another, and every word has its own
tag. A small encoder and the tags' embeddings are trained by maximum likelihood; the normaliser is sketched anew for
each batch. Run: python examples/train_crf.py
"""

import argparse

import torch
from torch import nn

import tailsum as ts


class Tagger(nn.Module):
    """Words to a chain over tags."""

    def __init__(self, n_words: int, n_tags: int, size: int = 32) -> None:
        super().__init__()
        self.words = nn.Embedding(n_words, size)
        self.encoder = nn.LSTM(size, size // 2, bidirectional=True, batch_first=True)
        self.tags = nn.Parameter(torch.randn(n_tags, size) * 0.1)
        self.before = nn.Parameter(torch.randn(n_tags, size) * 0.1)

    def forward(self, words: torch.Tensor) -> ts.LinearChain:
        """The chain over the tags of some words."""
        context, _ = self.encoder(self.words(words))
        return ts.LinearChain(ts.Factored(context, self.tags), ts.Factored(self.before, self.tags))


def train(n_tags: int = 20_000, k: int = 100, steps: int = 60, batch: int = 8, length: int = 12) -> list[float]:
    """The loss per position, in nats, at each step; log(n_tags) is what a tagger that knows nothing has."""
    torch.manual_seed(0)
    n_words = n_tags // 4
    tag_of_word = torch.randint(n_tags, (n_words,))
    model = Tagger(n_words, n_tags)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for step in range(steps):
        words = torch.randint(min(200, n_words), (batch, 1)) + torch.arange(length)  # neighbours in the word list
        tags = tag_of_word[words % n_words]
        small = model(words % n_words).sketch(k, proposal=ts.Lookahead(landmarks=64))
        loss = -small.log_prob(tags).mean() / length
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
        if step % 10 == 0 or step == steps - 1:
            print(f"step {step:3d}: {loss.item():6.3f} nats per position")
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tags", type=int, default=20_000)
    parser.add_argument("--states-kept", type=int, default=100)
    parser.add_argument("--steps", type=int, default=60)
    arguments = parser.parse_args()
    train(arguments.tags, arguments.states_kept, arguments.steps)
