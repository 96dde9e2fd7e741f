"""A neural CRF tagger with 20,000 tags, whose training never sums over more than 100 of them.

A toy world writes sentences: words stand beside their neighbours in the list of words, and every word has a tag of its
own. The normaliser is sketched anew for each batch; tagging, at the end, is exact. Run: python examples/tagger.py
"""

import torch
from torch import nn

import tailsum as ts
from tailsum.nn import CRFInference, LSTMEncoder


def sentences(n_words: int, batch: int, length: int) -> torch.Tensor:
    return (torch.randint(min(200, n_words), (batch, 1)) + torch.arange(length)) % n_words


def train(n_tags: int = 20_000, k: int = 100, steps: int = 40, batch: int = 8, length: int = 12) -> list[float]:
    """The loss per position, in nats, at each step; log(n_tags) is what a tagger that knows nothing has."""
    torch.manual_seed(0)
    n_words = n_tags // 4
    tag_of_word = torch.randint(n_tags, (n_words,))
    encoder, crf = LSTMEncoder(n_words, size=32), CRFInference(32, n_tags, state_size=32)
    optimiser = torch.optim.Adam(nn.ModuleList([encoder, crf]).parameters(), lr=2e-2)
    lengths, losses = torch.full((batch,), length), []
    for step in range(steps):
        words = sentences(n_words, batch, length)
        small = crf(encoder(words, lengths), lengths).sketch(k, proposal=ts.Lookahead(landmarks=64))
        loss = -small.log_prob(tag_of_word[words]).mean() / length
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
        if step % 10 == 0 or step == steps - 1:
            print(f"step {step:3d}: {loss.item():6.3f} nats per position")
    words = sentences(n_words, batch, length)
    found = crf(encoder(words, lengths), lengths).argmax()
    print(f"{(found == tag_of_word[words]).float().mean():.0%} of the tags of new sentences are right")
    return losses


if __name__ == "__main__":
    train()
