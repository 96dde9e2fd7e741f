"""Gold tags of a CRF: known, partly known, or sets of tags; and errors for invalid ones.

A position has one tag, -1 for any tag, or a set: a row of a boolean tensor. Tags are batch first, `[B, T]`.
"""

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Bool, Int
from torch import Tensor

from tailsum.numerics.check import check_tensor, check_whole, first_index

ANY = -1


def checked_tags(tags: Tensor, sizes: tuple[int, ...], num_tags: int) -> Tensor:
    """Tags of the shape `sizes`, or sets of them, checked."""
    check_tensor("tags", tags)
    if tags.dtype == torch.bool:
        if tags.shape != (*sizes, num_tags):
            expected = f"{[*sizes, num_tags]} if they are boolean, the tags that each position may have"
            raise ValueError(f"tags must be {expected}: got {list(tags.shape)}")
        return tags
    if tags.shape != sizes:
        hint = f" of {tags.dtype}; sets of tags must be boolean" if tags.shape == (*sizes, num_tags) else ""
        raise ValueError(
            f"tags must be {list(sizes)}, as the first two dimensions of emissions: got {list(tags.shape)}{hint}"
        )
    return check_whole("tags", tags)


def tag_sets(tags: Tensor, inside: Bool[Tensor, "B T"] | None, num_tags: int) -> Bool[Tensor, "B T num_tags"] | None:
    """The set of tags that each position may have; None if all tags are known. All positions are `inside` if it is None.

    >>> tag_sets(torch.tensor([[1, -1]]), torch.tensor([[True, True]]), 2)
    tensor([[[False,  True],
             [ True,  True]]])
    """
    if tags.dtype == torch.bool:
        return tags
    if not tags.numel():
        return None
    within = tags if inside is None else torch.where(inside, tags, 0)
    low, high = torch.stack(within.aminmax()).tolist()  # one look at the device
    if low < ANY or high >= num_tags:
        wrong = (within < ANY) | (within >= num_tags)
        raise ValueError(
            f"tags must lie between 0 and num_tags-1 = {num_tags - 1}, or be -1 for any tag: got {within[wrong][0].item()}; "
            "positions that do not count belong in the mask"
        )
    if low >= 0:
        return None
    return F.one_hot(tags.clamp(0, num_tags - 1), num_tags).bool() | (within == ANY)[..., None]


def check_follow(
    tags: Int[Tensor, "B T"],
    inside: Bool[Tensor, "B T"],
    start: Bool[Tensor, " N"] | None,
    pairs: Bool[Tensor, "N N"] | None,
    end: Bool[Tensor, " N"] | None,
    names: list[str] | None,
) -> None:
    """A ValueError if a sequence starts, continues or ends in a way that is not allowed."""
    tags = torch.where(inside, tags, 0)
    last = inside.sum(1, keepdim=True) - 1
    name_of = lambda tag: tag if names is None else names[tag]  # noqa: E731
    if pairs is not None and bool((broken := ~pairs[tags[:, :-1], tags[:, 1:]] & inside[:, 1:]).any()):
        row, place = first_index(broken)
        first, second = (name_of(tags[row, place + i].item()) for i in range(2))
        raise ValueError(
            f"tags must follow each other as allowed: got {first} before {second} in sequence {row}, at {place}"
        )
    for allowed, at_end, verb in ((start, tags[:, 0], "start"), (end, tags.gather(1, last)[:, 0], "end")):
        if allowed is not None and bool((broken := ~allowed[at_end]).any()):
            (row,) = first_index(broken)
            raise ValueError(f"tags must {verb} as allowed: got {name_of(at_end[row].item())} in sequence {row}")
