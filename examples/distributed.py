"""A tagger whose tags are spread over several processes: each has the embeddings of its own tags, and no others.

A toy world writes sentences in which word w has tag w and is followed by word w + 1. The encoder is the same on every
rank; the log-partition is sketched, on tags from all ranks, in training, and exact at the end.

Run: torchrun --nproc-per-node 2 examples/distributed.py
"""

import os

import torch
import torch.distributed as dist
from torch import nn

import tailsum as ts


def sentences(n_words: int, batch: int, length: int) -> torch.Tensor:
    return (torch.randint(n_words, (batch, 1)) + torch.arange(length)) % n_words


def train(
    n_tags: int = 1_000, k: int = 32, steps: int = 15, batch: int = 8, length: int = 4, size: int = 16
) -> list[float]:
    """The exact loss per position, in nats, before and after; log(n_tags) is what a tagger that knows nothing has."""
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)  # the same encoder and the same sentences on every rank
    encoder = nn.Embedding(n_tags, size, device=device)
    own = ts.distributed.local_states(n_tags)
    states, left, right = (
        nn.Parameter(0.1 * torch.randn(n_tags, size, generator=torch.Generator().manual_seed(seed))[own].to(device))
        for seed in range(1, 4)
    )
    # Each rank updates its own slices. The encoder's gradients are the same on every rank, so it stays the same.
    optimiser = torch.optim.Adam([*encoder.parameters(), states, left, right], lr=5e-2)

    def chain(words: torch.Tensor) -> ts.distributed.ShardedChain:
        return ts.distributed.ShardedChain(ts.Factored(encoder(words), states), ts.Factored(left, right))

    def exact_loss(words: torch.Tensor) -> float:
        with torch.no_grad():
            return -chain(words).log_prob(words).mean().item() / length

    seen = sentences(200, batch, length).to(device)
    losses = [exact_loss(seen)]
    for step in range(steps):
        words = sentences(200, batch, length).to(device)
        small = chain(words).sketch(k, proposal=ts.Lookahead(landmarks=16))  # the same k tags on every rank
        loss = -small.log_prob(words).mean() / length
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % 10 == 0 and (not dist.is_initialized() or dist.get_rank() == 0):
            print(f"step {step:3d}: {loss.item():6.3f} nats per position")
    losses.append(exact_loss(seen))
    return losses


if __name__ == "__main__":
    if "RANK" in os.environ:  # started by torchrun
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    before, after = train()
    if not dist.is_initialized() or dist.get_rank() == 0:
        print(f"exact, over all tags: {before:.3f} nats per position before, {after:.3f} after")
    if dist.is_initialized():
        dist.destroy_process_group()
