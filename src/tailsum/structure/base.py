"""`Structure`, the base class: the methods that an author writes (`model.py`) and all operations (`operations/`)."""

from torch.distributions.kl import register_kl

from tailsum.structure.distribution import DistributionFace
from tailsum.structure.integrations import integrate
from tailsum.structure.model import Configuration
from tailsum.structure.operations.copies import Copies
from tailsum.structure.operations.means import Means
from tailsum.structure.operations.relaxed import Relaxations
from tailsum.structure.operations.samples import Samples
from tailsum.structure.operations.sketches import Sketches
from tailsum.structure.terms import Terms


# torch's distributions have properties where structures have fields, and other names of arguments.
class Structure(  # pyright: ignore[reportIncompatibleMethodOverride, reportIncompatibleVariableOverride]
    Means[Terms, Configuration],
    Samples[Terms, Configuration],
    Relaxations[Terms, Configuration],
    Sketches[Terms, Configuration],
    Copies[Terms, Configuration],
    DistributionFace,
):
    """A distribution over configurations of connected nodes, given by scores (log potentials)."""


register_kl(Structure, Structure)(lambda p, q: p.kl(q))
integrate(Structure)
