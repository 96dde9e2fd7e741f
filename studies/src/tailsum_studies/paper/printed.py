"""The paper's Algorithm 2 as it is printed (Eq. 18): a span's top states meet only top states of its sibling, draws only draws.

What is left out are the cross terms, a top state beside a drawn one. `SpanTree.sketch` has them, and is unbiased.
"""

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from tailsum import SpanTree


def printed_log_partition(parts: Float64[Tensor, "B T T 2"]) -> Float64[Tensor, " B"]:
    """Algorithm 2 from the logs of the sums over the top states and over the weighted draws of each span.

    >>> round(printed_log_partition(torch.zeros(1, 2, 2, 2).double()).exp().item())  # 2 of 4 pairs of parts, 2 at the root
    4
    """
    spans = [parts.diagonal(width, 1, 2).movedim(-1, 1) for width in range(parts.shape[1])]  # by width, first position
    chart = [spans[0]]
    for width in range(2, parts.shape[1] + 1):
        count = parts.shape[1] - width + 1
        pairs = [chart[m - 1][:, :count] + chart[width - m - 1][:, m : m + count] for m in range(1, width)]
        chart.append(spans[width - 1] + torch.logsumexp(torch.cat(pairs, -1), -1)[..., None])
    return torch.logsumexp(chart[-1][:, 0], -1)


def printed_bias(tree: SpanTree, top: int) -> float:
    """`log E[Z_hat] - log Z` of Algorithm 2 as printed, with the first `top` states kept for certain.

    Draws of different spans are independent and each is unbiased, so the expectation has the whole tail in their place.
    """
    spans = tree.node_scores().double()
    parts = torch.stack([torch.logsumexp(spans[..., :top], -1), torch.logsumexp(spans[..., top:], -1)], -1)
    return (printed_log_partition(parts[None])[0] - SpanTree(spans).log_partition()).item()


def printed_log_ratios(
    tree: SpanTree, top: int, drawn: int, repeats: int, generator: torch.Generator | None
) -> Float[Tensor, " {repeats}"]:
    """`log Z_hat - log Z` of so many runs: the first `top` states, and `drawn` uniform draws of the others."""
    spans = tree.node_scores().double()
    length, rest = spans.shape[0], tree.n_states - top
    index = torch.randint(rest, (repeats, length, length, drawn), generator=generator) + top
    draws = spans.expand(repeats, -1, -1, -1).gather(-1, index) + torch.tensor(rest / drawn).log()
    first = torch.logsumexp(spans[..., :top], -1).expand(repeats, -1, -1)
    return printed_log_partition(torch.stack([first, torch.logsumexp(draws, -1)], -1)) - SpanTree(spans).log_partition()
