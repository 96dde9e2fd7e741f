"""Hidden Markov models with parameters: emissions, transitions, fitting, filtering, prediction."""

from typing import TYPE_CHECKING

from tailsum.lazy import on_demand

if TYPE_CHECKING:
    from tailsum.hmm.public import *  # noqa: F403
else:  # type checkers must not see these, or they would accept names that do not exist
    __getattr__, __dir__ = on_demand(__name__)
