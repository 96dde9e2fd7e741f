"""The base of structures whose configurations are paths through a lattice, all of whose scores are in one table."""

from jaxtyping import Float
from torch import Tensor

from tailsum.structure.base import Structure
from tailsum.structure.model import Configuration
from tailsum.structure.terms import Terms, in_float64


class PathStructure(Structure[Terms, Configuration]):
    """Paths are summed in float64 (`numerics/levels.py`)."""

    def log_sum_and_mean(self, own: Terms, values: Terms) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
        # In float32 chances would have no digits left for what is beside a mask of -1e9.
        return self.log_sum_and_mean_of_parts(in_float64(own), in_float64(values))
