"""Random paths through chains of few states on a CPU, in blocks of time that run side by side. Chosen there.

Given the state after it, a state is where a uniform random number falls in the cumulated probabilities. The numbers of a
sample are drawn before its path, so each step is a map from states to states. Paths of other starts soon meet (`following.py`).

A *lane* is a block of a sequence of a sample. K blocks of L steps of B sequences are arrays `[L, B K, ..]`.
"""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from tailsum.chains.ways.following import States, follow
from tailsum.numerics.tensors import finite
from tailsum.scores.potential import Potential

SHORTEST = 64  # steps of a block: paths seldom meet within fewer
CACHE = 1 << 15  # of the numbers of a step
BELOW_ONE = 1 - 2**-40  # the largest random number: rounded sums never reach the total


def small_walk(
    log_mass: Tensor, pairs: Potential, last: Tensor, count: int, generator: torch.Generator | None
) -> Tensor:
    """`count` random paths `[count, B, T]` back from the positions `last [B]`, guided by the messages `log_mass [T, B, N]`.

    After its last position, a path stays in its state.
    """
    device = log_mass.device
    log_mass, pairs, last = log_mass.detach().cpu(), pairs.map(lambda x: x.detach().cpu()), last.cpu()
    (length, batch, n), (groups, steps) = log_mass.shape, pairs.lead
    blocks = max(1, min(CACHE // (n * batch * count), (length - 1) // SHORTEST))
    long = -(-(length - 1) // blocks)
    blocks = -(-(length - 1) // long)
    places = torch.arange(blocks * long).clamp(max=length - 2).view(blocks, long).T[:, None]  # of positions, [L, 1, K]
    sequence = torch.arange(batch)[:, None]
    mass = log_mass[places, sequence].flatten(1, 2)  # [L, B K, N]
    rows = pairs.block().mT.flatten(0, 2)  # the scores into each state, table after table
    own = (sequence // max(1, batch // groups)) * steps + places.clamp(max=steps - 1)
    own = (n * own.expand(long, batch, blocks)).flatten(1)  # where the tables of each lane begin
    random = {"dtype": torch.float64, "generator": generator, "device": device}
    chance = torch.rand(long, count * batch * blocks, **random).cpu()
    ends = torch.rand(count, batch, **random).cpu()
    shared = own.numel() > 0 and not bool(own.any())

    def origin(t: int, states: States, lanes: States) -> States:
        state, lane = torch.from_numpy(states), torch.from_numpy(lanes)
        if count == 1 and len(lanes) == own.shape[1]:  # all blocks, in their order
            logits, here = mass[t], own[t]
        else:
            here = lane % own.shape[1]
            logits, here = F.embedding(here, mass[t]), own[t][here]
        logits = logits + F.embedding(state if shared else here + state, rows)
        return _drawn(logits, chance[t][lane]).numpy()

    guess = log_mass[(long * torch.arange(1, blocks + 1)).clamp(max=length - 1)].argmax(-1).T  # [B, K]
    final = _drawn(log_mass[last, torch.arange(batch)].expand(count, -1, -1), ends)
    moves = (last[:, None] - long * torch.arange(blocks)).clamp(0, long)
    guess, moves = (x.repeat(count, 1).numpy() for x in (guess, moves))
    states = torch.from_numpy(follow(origin, long, guess, final.flatten().numpy(), moves))
    return torch.cat((states.reshape(count, batch, -1)[..., : length - 1], final[..., None]), -1).to(device)


def _drawn(logits: Tensor, chance: Tensor) -> Tensor:
    """The state where `chance [..]` of the probability lies below; zero if no state is possible."""
    mass = (logits - finite(logits.amax(-1, keepdim=True))).exp_().cumsum(-1, dtype=torch.float64)
    below = (chance * BELOW_ONE)[..., None] * mass[..., -1:]
    return torch.searchsorted(mass, below, right=True)[..., 0].clamp_(max=logits.shape[-1] - 1)
