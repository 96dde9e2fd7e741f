"""What the paper prints in its Tables 2, 3 and 4, from `published.csv`: facts to hold measurements against.

A row of its tables is labelled with a share of the states, "RDP 1%". The authors' experiments used other numbers of
states behind some labels; those are looked up by the label "K=500" as well, and `printed_as` says where they stand.

The figures are "printed_mse" (Table 2), "notebook_mse" (the output of the authors' own notebook, where it differs from
the table), "printed_bias" and "printed_variance" (Table 3, which does not say how many states: squared bias and variance
add up to Table 2's figures for chains of 2,000), and "proposal_mse" (Table 4, which says neither how many states there
are nor how many are kept; it stands under 0 states).
"""

from importlib.resources import files

import pandas as pd

_KEYS = ["figure", "what", "states", "row"]
_LINES = pd.read_csv(str(files("tailsum_studies.paper") / "published.csv")).melt(_KEYS, var_name="level")
_FIGURES = _LINES.dropna().set_index([*_KEYS, "level"]).value.to_dict()

# What the authors' experiments kept, at 2,000 and at 10,000 states alike, and the share that the paper prints instead.
_USED = {
    ("chain", "TopK"): {"K=500": "20%", "K=1000": "50%"},
    ("hypertree", "TopK"): {"K=500": "20%", "K=1000": "50%"},
    ("hypertree", "paper"): {"K=20": "1%", "K=200": "10%", "K=400": "20%"},
}


def structure_and_level(model: str) -> tuple[str, str]:
    """The parts of a model's name.

    >>> structure_and_level("chain, long-tail"), structure_and_level("trained CRF")
    (('chain', 'long-tail'), ('trained CRF', ''))
    """
    structure, _, level = model.partition(", ")
    return structure, level


def printed_as(model: str, method: str, label: str) -> str:
    """The share of the states under which the paper prints this number of states: mostly the label itself.

    >>> printed_as("chain, dense", "TopK", "K=500"), printed_as("chain, dense", "paper", "1%")
    ('20%', '1%')
    """
    structure, _ = structure_and_level(model)
    return _USED.get((structure, method), {}).get(label, label)


def figure(name: str, model: str, quantity: str, states: int, method: str, label: str) -> float | None:
    """A figure of Table 2 or 3; None where the paper prints nothing.

    >>> figure("printed_mse", "hypertree, dense", "log Z", 2000, "paper", "10%")
    1.193
    """
    structure, level = structure_and_level(model)
    row = f"{'RDP' if method == 'paper' else method} {printed_as(model, method, label)}"
    return _FIGURES.get((name, f"{structure} {quantity}", states, row, level))


def proposal_mse(model: str, quantity: str, proposal: str) -> float | None:
    """Mean square error in Table 4."""
    structure, level = structure_and_level(model)
    return _FIGURES.get(("proposal_mse", f"{structure} {quantity}", 0, proposal.replace(" ", ""), level))
