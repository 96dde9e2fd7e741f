"""The recursions of `scan.py` in kernels, all steps in one launch where the table is kept.

Chosen on a GPU for sequences that share a table or factors (`Products.suits_kernels`).
"""

from torch import Tensor

from tailsum.scores.products import Products


def forward(node: Tensor, peak: Tensor, table: Products) -> tuple[Tensor, Tensor, Tensor]:
    """Messages `[T, B, N]` less their highest, the highest `[T, B]`, and the sum that entered each state."""
    from tailsum.numerics.fused.shared_steps import forward_steps  # noqa: PLC0415

    return forward_steps(node - peak[..., None], table)


def flow(
    table: Products, reverse: bool, source: Tensor, inlet: Tensor | None, after: Tensor, before: Tensor
) -> tuple[Tensor, Tensor]:
    """The recursion of `scan.Flow`: x and h `[T, B, N]`."""
    from tailsum.numerics.fused.shared_steps import flow_steps  # noqa: PLC0415

    return flow_steps(table, reverse, source, inlet, after, before)
