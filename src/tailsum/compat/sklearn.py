"""Hidden Markov models with the interface of scikit-learn, for its searches and cross-validation."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from tailsum.hmm.model import HiddenMarkov


class HMMEstimator(BaseEstimator):
    """An estimator whose samples are whole sequences: `X` is a list of them, so that folds do not cut any.

    `make(n_states)` gives a new `HiddenMarkov`. The other arguments are those of `Fit`. After a fit, `model_` is the model, and
    everything else is done with that.

    >>> from tailsum.hmm import Categorical
    >>> data = [torch.randint(4, (30,)) for _ in range(9)]
    >>> estimator = HMMEstimator(lambda n: HiddenMarkov(n, Categorical(4)), n_states=2, steps=3).fit(data)
    >>> len(estimator.predict(data)), estimator.predict(data)[0].shape
    (9, (30,))
    """

    def __init__(
        self,
        make: Callable[[int], HiddenMarkov],
        n_states: int = 2,
        *,
        method: str = "em",
        steps: int = 100,
        tolerance: float = 1e-2,
        restarts: int = 1,
        batch_size: int | None = None,
        random_state: int | None = None,
    ) -> None:
        self.make, self.n_states, self.method, self.steps, self.tolerance = make, n_states, method, steps, tolerance
        self.restarts, self.batch_size, self.random_state = restarts, batch_size, random_state

    def fit(self, X: Sequence[Any], y: Any = None) -> "HMMEstimator":
        """Learn a model from sequences. `y` is not used."""
        generator = None if self.random_state is None else torch.Generator().manual_seed(self.random_state)
        how = {name: getattr(self, name) for name in ("method", "steps", "tolerance", "restarts", "batch_size")}
        self.model_ = self.make(self.n_states).fit(list(X), progress=False, generator=generator, **how)
        return self

    def score(self, X: Sequence[Any], y: Any = None) -> float:
        """The log-likelihood of a position in the mean; higher is better."""
        return self.model_.score(list(X)) / sum(map(len, X))

    def predict(self, X: Sequence[Any]) -> list[NDArray[np.int64]]:
        """The most likely path of each sequence."""
        paths = self.model_.decode(list(X)).cpu().numpy()
        return [path[: len(x)] for path, x in zip(paths, X, strict=True)]

    def predict_proba(self, X: Sequence[Any]) -> list[NDArray[np.floating[Any]]]:
        """The probability of each state at each position of each sequence."""
        chances = self.model_.smooth(list(X)).cpu().numpy()
        return [chance[: len(x)] for chance, x in zip(chances, X, strict=True)]
