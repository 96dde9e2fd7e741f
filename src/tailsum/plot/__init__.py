"""Pictures of one structure each: a chain, a segmentation, a tree, arcs, or a table of marginals.

Every function takes one structure (no batch), draws it on `ax`, or on a new figure of fitting size, and returns the axes:
`chain(states).figure.savefig("chain.svg", bbox_inches="tight")`. Pyplot is not used. On your own axes, letters shrink to
fit. A state has the same colour in every picture. Very long words are cut. All lengths are in points (1/72 inch), x to the
right, y up.
"""

from tailsum.plot.constituency import tree
from tailsum.plot.dependency_tree import dependencies
from tailsum.plot.strip import chain, segmentation
from tailsum.plot.style import state_colour
from tailsum.plot.table import marginals

__all__ = ["chain", "dependencies", "marginals", "segmentation", "state_colour", "tree"]
