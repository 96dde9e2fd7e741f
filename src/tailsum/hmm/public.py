"""Every public name of `tailsum.hmm`."""

from tailsum.hmm.autoregressive import Autoregressive
from tailsum.hmm.bernoulli import Bernoulli
from tailsum.hmm.categorical import Categorical
from tailsum.hmm.counts import Counts
from tailsum.hmm.emission import Emission
from tailsum.hmm.gaussian import Gaussian
from tailsum.hmm.generate import Drawn
from tailsum.hmm.independent import Independent
from tailsum.hmm.mixture import Mixture
from tailsum.hmm.model import HiddenMarkov
from tailsum.hmm.online import Online
from tailsum.hmm.options import Course, Fit
from tailsum.hmm.poisson import Poisson
from tailsum.hmm.sequences import Sequences
from tailsum.hmm.transition import Embedded, Entries, Scores, Transition, left_to_right

__all__ = [
    "Autoregressive",
    "Bernoulli",
    "Categorical",
    "Counts",
    "Course",
    "Drawn",
    "Embedded",
    "Emission",
    "Entries",
    "Fit",
    "Gaussian",
    "HiddenMarkov",
    "Independent",
    "Mixture",
    "Online",
    "Poisson",
    "Scores",
    "Sequences",
    "Transition",
    "left_to_right",
]
