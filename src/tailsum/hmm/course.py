"""How a fit went."""

from dataclasses import dataclass


@dataclass
class Course:
    """How a fit went: the log-likelihood of all data (plus the log-density of the priors) before each step."""

    log_likelihoods: list[float]
    converged: bool = False

    @property
    def steps(self) -> int:
        """How many steps were made."""
        return len(self.log_likelihoods)
