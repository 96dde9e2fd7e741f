"""Every public name of `tailsum.hmm`."""

from tailsum.hmm.categorical import Categorical
from tailsum.hmm.counts import Counts
from tailsum.hmm.emission import Emission
from tailsum.hmm.model import HiddenMarkov
from tailsum.hmm.sequences import Sequences
from tailsum.hmm.transition import Embedded, Entries, Scores, Transition, left_to_right

__all__ = [
    "Categorical",
    "Counts",
    "Embedded",
    "Emission",
    "Entries",
    "HiddenMarkov",
    "Scores",
    "Sequences",
    "Transition",
    "left_to_right",
]
