"""The paper's figures are those that it prints."""

from functools import partial
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from tailsum_studies.paper.published import figure, proposal_mse


class BiasVariance(NamedTuple):
    bias: float
    variance: float


def bias_variance(*where):
    found = BiasVariance(figure("printed_bias", *where), figure("printed_variance", *where))
    return None if None in found else found


published = SimpleNamespace(
    mse=partial(figure, "printed_mse"),
    notebook_mse=partial(figure, "notebook_mse"),
    bias_variance=bias_variance,
    proposal_mse=proposal_mse,
)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("chain, dense", "log Z", 2000, "TopK", "20%"), 3.874),
        (("chain, dense", "log Z", 2000, "TopK", "K=500"), 3.874),
        (("chain, long-tail", "entropy", 2000, "TopK", "K=1000"), 1.816),
        (("chain, intermediate", "log Z", 2000, "paper", "1%"), 0.066),
        (("hypertree, long-tail", "log Z", 2000, "paper", "1%"), 48.863),
        (("hypertree, dense", "log Z", 10_000, "paper", "K=200"), 0.299),
        (("hypertree, intermediate", "log Z", 10_000, "TopK", "50%"), 26.677),
        (("chain, intermediate", "entropy", 10_000, "paper", "10%"), 1.539),
        (("chain, long-tail", "entropy", 10_000, "paper", "20%"), 0.068),
        (("chain, dense", "log Z", 10_000, "paper", "K=500"), None),
        (("chain, dense", "log Z", 10_000, "tailsum", "1%"), None),
        (("chain, dense", "log Z", 5000, "paper", "1%"), None),
        (("hypertree, dense", "entropy", 2000, "paper", "1%"), None),
        (("trained CRF", "log Z", 2000, "paper", "1%"), None),
    ],
)
def test_mean_square_errors_of_the_paper(where, value):
    assert published.mse(*where) == value


def test_the_papers_table_3_agrees_with_its_table_2():
    for level in ("dense", "long-tail"):
        for method, label in (("TopK", "20%"), ("TopK", "50%"), ("paper", "1%"), ("paper", "10%"), ("paper", "20%")):
            where = f"chain, {level}", "log Z", 2000, method, label
            found = published.bias_variance(*where)
            assert found is not None
            assert found.bias**2 + found.variance == pytest.approx(published.mse(*where), abs=2e-3)
            assert published.bias_variance(where[0], "log Z", 10_000, method, label) is None
    assert published.bias_variance("chain, dense", "log Z", 2000, "paper", "1%") == (-0.066, 0.141)
    assert published.bias_variance("chain, intermediate", "log Z", 2000, "paper", "1%") is None


def test_proposals_and_notebook_of_the_paper():
    assert published.proposal_mse("chain, intermediate", "log Z", "Uniform") == 11.05
    assert published.proposal_mse("chain, long-tail", "log Z", "Local + Global") == 0.022
    assert published.proposal_mse("chain, dense", "log Z", "Lookahead") is None
    assert published.proposal_mse("chain, dense", "entropy", "Uniform") is None
    assert published.notebook_mse("chain, dense", "log Z", 10_000, "paper", "1%") == 0.748
    assert published.notebook_mse("chain, intermediate", "log Z", 10_000, "paper", "20%") == 0.447
    assert published.notebook_mse("chain, long-tail", "log Z", 10_000, "paper", "1%") is None
