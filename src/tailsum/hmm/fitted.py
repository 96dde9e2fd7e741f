"""What users do with any hidden Markov model: fit it, score data, compare it with others, keep it in a file."""

import math
from pathlib import Path
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from tailsum.hmm.core import MarkovModel
from tailsum.hmm.counts import Counts
from tailsum.hmm.files import load, save
from tailsum.hmm.fit import fit
from tailsum.hmm.options import Fit
from tailsum.hmm.sequences import Data, Lengths

Model = TypeVar("Model", bound="FittedModel")


class FittedModel(MarkovModel):
    """A model that learns from data; the base class."""

    def log_likelihood(self, data: Data, lengths: Lengths = None, **given: Any) -> Float[Tensor, " B"]:
        """The log-likelihood of each sequence, with gradients in the parameters."""
        return self.chain(self.sequences(data, lengths, **given)).log_partition()

    @torch.no_grad()
    def score(self, data: Data, lengths: Lengths = None, **given: Any) -> float:
        """The log-likelihood of all sequences together."""
        return self.log_likelihood(data, lengths, **given).double().sum().item()

    # Counts, for EM.

    @torch.no_grad()
    def counts(self, data: Data, lengths: Lengths = None, **given: Any) -> Counts:
        """The expected counts of all parameters, which `maximise` makes new parameters of. They add up over batches."""
        return self.expected(self.sequences(data, lengths, **given))

    def fit(self: Model, data: Data, lengths: Lengths = None, **how: Any) -> Model:
        """Learn all parameters from data; `Fit` says what can be given. `fitted` holds its course."""
        fit(self, data, lengths, Fit(**how))
        return self

    # Comparison of models, and files.

    def aic(self, data: Data, lengths: Lengths = None, **given: Any) -> float:
        """Akaike's information criterion; lower is better."""
        return 2.0 * self.n_free - 2.0 * self.score(data, lengths, **given)

    def bic(self, data: Data, lengths: Lengths = None, **given: Any) -> float:
        """The Bayesian information criterion; lower is better."""
        positions = self.sequences(data, lengths).lengths.sum().item()
        return math.log(positions) * self.n_free - 2.0 * self.score(data, lengths, **given)

    def perplexity(self, data: Data, lengths: Lengths = None, **given: Any) -> float:
        """The exponential of minus the log-likelihood of a position."""
        positions = self.sequences(data, lengths).lengths.sum().item()
        return torch.tensor(-self.score(data, lengths, **given) / positions, dtype=torch.float64).exp().item()

    def save(self, path: str | Path) -> None:
        """Write all parameters to a file of safetensors."""
        save(self, path)

    def load(self: Model, path: str | Path) -> Model:
        """Read parameters that a model of the same form wrote."""
        return load(self, path)
