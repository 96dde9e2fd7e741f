"""What the ranks of a sharded chain tell one another before they start: their sizes, and whether all fits together."""

from collections.abc import Mapping

import torch.distributed as dist

from tailsum.distributed.shards import Group, Shards


def agreed(group: Group | None, size: int, form: Mapping[str, object], error: str | None) -> Shards:
    """The slices of all ranks, from the number of this one's states.

    `form` must be the same on every rank, and `error`, what is wrong with this rank's arguments, None: otherwise every
    rank raises a ValueError, so that none is left waiting for the others.
    """
    if not dist.is_initialized():
        told, rank = [(size, form, error)], 0
    else:
        rank, count = dist.get_rank(group), dist.get_world_size(group)
        if rank < 0:
            raise ValueError("group must be a process group that this process belongs to")
        told: list[tuple[int, Mapping[str, object], str | None]] = [(size, form, error)] * count
        if count > 1:
            dist.all_gather_object(told, (size, form, error), group=group)
    for p, (_, _, wrong) in enumerate(told):
        if wrong is not None:
            raise ValueError(wrong if p == rank else f"rank {p}: {wrong}")
    for name in form:
        values = [other.get(name) for _, other, _ in told]
        if any(value != values[0] for value in values):
            raise ValueError(f"{name} must be the same on every rank: got {', '.join(map(str, values))}")
    return Shards([n for n, _, _ in told], rank, group)
