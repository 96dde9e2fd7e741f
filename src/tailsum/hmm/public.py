"""Every public name of `tailsum.hmm`."""

from tailsum.hmm.autoregressive import Autoregressive
from tailsum.hmm.bernoulli import Bernoulli
from tailsum.hmm.categorical import Categorical
from tailsum.hmm.counts import Counts
from tailsum.hmm.course import Course
from tailsum.hmm.duration import AnyDuration, Duration, GeometricDuration, NegativeBinomialDuration, PoissonDuration
from tailsum.hmm.emission import Emission
from tailsum.hmm.gaussian import Gaussian
from tailsum.hmm.generate import Drawn
from tailsum.hmm.independent import Independent
from tailsum.hmm.mixture import Mixture
from tailsum.hmm.model import HiddenMarkov
from tailsum.hmm.online import Online
from tailsum.hmm.options import Fit
from tailsum.hmm.poisson import Poisson
from tailsum.hmm.semi_markov import HiddenSemiMarkov
from tailsum.hmm.sequences import Sequences
from tailsum.hmm.transition import Embedded, Entries, Scores, Transition, full, left_to_right

__all__ = [
    "AnyDuration",
    "Autoregressive",
    "Bernoulli",
    "Categorical",
    "Counts",
    "Course",
    "Drawn",
    "Duration",
    "Embedded",
    "Emission",
    "Entries",
    "Fit",
    "Gaussian",
    "GeometricDuration",
    "HiddenMarkov",
    "HiddenSemiMarkov",
    "Independent",
    "Mixture",
    "NegativeBinomialDuration",
    "Online",
    "Poisson",
    "PoissonDuration",
    "Scores",
    "Sequences",
    "Transition",
    "full",
    "left_to_right",
]
