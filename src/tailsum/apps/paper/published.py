"""What the paper prints in its Tables 2, 3 and 4: facts to hold measurements against. Every look-up gives None where it prints nothing.

A row of its tables is labelled with a share of the states, "RDP 1%". The authors' experiments used other numbers of
states behind some labels; those are looked up by the label "K=500" as well, and `printed_as` says where they stand.
"""

from typing import NamedTuple

Cell = tuple[str, str, int, str]  # structure and quantity, level, states, the row's label

LEVELS = ("dense", "intermediate", "long-tail")
_QUANTITIES = ("chain log Z", "hypertree log Z", "chain entropy")
_COLUMNS = [(quantity, level) for quantity in _QUANTITIES for level in LEVELS]

# Table 2: the columns are those of the paper, the levels of each quantity in turn.
_TABLE_2 = {
    (2000, "TopK 20%"): (3.874, 1.015, 0.162, 36.127, 27.435, 21.78, 443.7, 84.35, 8.011),
    (2000, "TopK 50%"): (0.990, 0.251, 0.031, 2.842, 2.404, 2.047, 131.8, 22.100, 1.816),
    (2000, "RDP 1%"): (0.146, 0.066, 0.076, 26.331, 37.669, 48.863, 5.925, 1.989, 0.691),
    (2000, "RDP 10%"): (0.067, 0.033, 0.055, 1.193, 1.530, 1.384, 2.116, 1.298, 0.316),
    (2000, "RDP 20%"): (0.046, 0.020, 0.026, 0.445, 0.544, 0.599, 1.326, 0.730, 0.207),
    (10_000, "TopK 20%"): (6.395, 6.995, 6.381, 78.632, 63.762, 43.556, 227.36, 171.97, 141.91),
    (10_000, "TopK 50%"): (2.134, 2.013, 1.647, 35.929, 26.677, 17.099, 85.063, 59.877, 46.853),
    (10_000, "RDP 1%"): (0.078, 0.616, 0.734, 3.376, 5.012, 7.256, 6.450, 6.379, 4.150),
    (10_000, "RDP 10%"): (0.024, 0.031, 0.024, 0.299, 0.447, 0.576, 0.513, 1.539, 0.275),
    (10_000, "RDP 20%"): (0.004, 0.003, 0.003, 0.148, 0.246, 0.294, 0.144, 0.080, 0.068),
}
MSE: dict[Cell, float] = {
    (quantity, level, states, row): value
    for (states, row), values in _TABLE_2.items()
    for (quantity, level), value in zip(_COLUMNS, values, strict=True)
}

# Where the output of the authors' own notebook differs from the table.
NOTEBOOK_MSE: dict[Cell, float] = {
    ("chain log Z", "dense", 10_000, "RDP 1%"): 0.748,
    ("chain log Z", "intermediate", 10_000, "RDP 1%"): 0.767,
    ("chain log Z", "intermediate", 10_000, "RDP 20%"): 0.447,
}


class BiasVariance(NamedTuple):
    """Of an estimator of log Z: its mean error and the variance of its errors."""

    bias: float
    variance: float


# Table 3 does not say how many states. Squared bias and variance add up to Table 2's figures for chains of 2,000.
BIAS_VARIANCE_STATES = 2000
# Table 3: bias and variance of the dense chains, then of those with a long tail.
_TABLE_3 = {
    "TopK 20%": ((-1.968, 0.0), (-0.403, 0.0)),
    "TopK 50%": ((-0.995, 0.0), (-0.177, 0.0)),
    "RDP 1%": ((-0.066, 0.141), (-0.050, 0.074)),
    "RDP 10%": ((-0.030, 0.066), (-0.027, 0.054)),
    "RDP 20%": ((-0.013, 0.046), (-0.003, 0.026)),
}
BIAS_VARIANCE: dict[tuple[str, str], BiasVariance] = {
    (level, row): BiasVariance(*pair)
    for row, pairs in _TABLE_3.items()
    for level, pair in zip(("dense", "long-tail"), pairs, strict=True)
}

# Table 4 says neither how many states there are nor how many are kept.
_TABLE_4 = {
    "Uniform": (0.655, 11.05, 0.160),
    "Local": (2.908, 9.171, 0.481),
    "Global": (0.453, 0.096, 0.100),
    "Local+Global": (0.028, 0.017, 0.022),
}
PROPOSAL_MSE: dict[tuple[str, str], float] = {
    (proposal, level): value
    for proposal, values in _TABLE_4.items()
    for level, value in zip(LEVELS, values, strict=True)
}

_ROW_NAMES = {"TopK": "TopK", "paper": "RDP"}
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


def mse(model: str, quantity: str, states: int, method: str, label: str) -> float | None:
    """Mean square error in Table 2.

    >>> mse("hypertree, dense", "log Z", 2000, "paper", "10%")
    1.193
    """
    return MSE.get(_cell(model, quantity, states, method, label))


def notebook_mse(model: str, quantity: str, states: int, method: str, label: str) -> float | None:
    """Mean square error in the output of the authors' notebook, where it differs from Table 2."""
    return NOTEBOOK_MSE.get(_cell(model, quantity, states, method, label))


def bias_variance(model: str, quantity: str, states: int, method: str, label: str) -> BiasVariance | None:
    """Bias and variance in Table 3."""
    found, level, _, row = _cell(model, quantity, states, method, label)
    if found != "chain log Z" or states != BIAS_VARIANCE_STATES:
        return None
    return BIAS_VARIANCE.get((level, row))


def proposal_mse(model: str, quantity: str, proposal: str) -> float | None:
    """Mean square error in Table 4."""
    structure, level = structure_and_level(model)
    if (structure, quantity) != ("chain", "log Z"):
        return None
    return PROPOSAL_MSE.get((proposal.replace(" ", ""), level))


def _cell(model: str, quantity: str, states: int, method: str, label: str) -> Cell:
    structure, level = structure_and_level(model)
    row = f"{_ROW_NAMES.get(method, method)} {printed_as(model, method, label)}"
    return f"{structure} {quantity}", level, states, row
