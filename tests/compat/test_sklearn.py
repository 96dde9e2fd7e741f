"""Hidden Markov models as scikit-learn's estimators."""

import numpy as np
import pytest
import torch

from tailsum.hmm import Categorical, HiddenMarkov

pytest.importorskip("sklearn")


def make(n_states):
    return HiddenMarkov(n_states, Categorical(3))


def test_a_grid_finds_the_number_of_states():
    from sklearn.base import clone  # noqa: PLC0415
    from sklearn.model_selection import GridSearchCV  # noqa: PLC0415

    from tailsum.compat.sklearn import HMMEstimator  # noqa: PLC0415

    stay = (torch.eye(2) * 0.9 + 0.05).log()
    says = torch.tensor([[0.8, 0.1, 0.1], [0.1, 0.1, 0.8]]).log()
    model = HiddenMarkov(2, Categorical(3, logits=says), transition=stay)
    data = [x.numpy() for x in model.sample(24, 50, torch.Generator().manual_seed(0)).data]
    estimator = HMMEstimator(make, steps=30, restarts=3, random_state=0)
    assert clone(estimator).get_params() == estimator.get_params()
    search = GridSearchCV(estimator, {"n_states": [1, 2]}, cv=3).fit(data)
    assert search.best_params_ == {"n_states": 2}
    best = search.best_estimator_
    assert best.score(data) == pytest.approx(best.model_.score(data) / (24 * 50))
    assert [len(x) for x in best.predict(data[:2])] == [50, 50]
    np.testing.assert_allclose(best.predict_proba(data)[0].sum(-1), 1.0, rtol=1e-5)
