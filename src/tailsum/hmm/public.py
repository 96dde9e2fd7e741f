"""Every public name of `tailsum.hmm`."""

from tailsum.hmm.categorical import Categorical
from tailsum.hmm.counts import Counts
from tailsum.hmm.emission import Emission
from tailsum.hmm.generate import Drawn
from tailsum.hmm.model import HiddenMarkov
from tailsum.hmm.online import Online
from tailsum.hmm.options import Course, Fit
from tailsum.hmm.sequences import Sequences
from tailsum.hmm.transition import Embedded, Entries, Scores, Transition, left_to_right

__all__ = [
    "Categorical",
    "Counts",
    "Course",
    "Drawn",
    "Embedded",
    "Emission",
    "Entries",
    "Fit",
    "HiddenMarkov",
    "Online",
    "Scores",
    "Sequences",
    "Transition",
    "left_to_right",
]
