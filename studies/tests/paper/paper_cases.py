"""Made-up rows of every experiment, for the tables and the page."""

import math
from dataclasses import replace

from tailsum_studies.paper.rows import Check, Direction, Estimate, GradientError, SplitError, StepCost


def estimates(method, errors, label="1%", kept=20, model="chain, dense", states=2000, quantity="log Z", exact=0.0):
    return [
        Estimate(model, states, quantity, method, label, kept, place, exact + error, exact, 0.5, 2**20)
        for place, error in enumerate(errors)
    ]


def pair(**how):
    """The paper's method with a mean square error of 0.4, ours with 1e-4."""
    root = math.sqrt(0.4)
    return estimates("paper", [root, -root], **how) + estimates("tailsum", [0.01, -0.01], **how)


def directions(method, cosines, **how):
    row = Direction("chain, dense", 2000, method, "1%", 20, 0, "log Z", "all", 0.0, 0.25)
    return [replace(row, replicate=place, cosine=cosine, **how) for place, cosine in enumerate(cosines)]


def everything():
    table2 = pair() + pair(model="hypertree, long-tail", label="K=20", states=10_000) + pair(quantity="entropy")
    table2 += estimates("TopK", [-1.5], label="K=500", kept=500)
    proposals = [row for name in ("Uniform", "Local+Global", "Lookahead") for row in estimates(name, [0.5, -0.1])]
    return {
        "table2": table2,
        "table3": pair() + estimates("TopK", [-1.5], label="20%", kept=400),
        "table4": proposals,
        "hard": pair(model="s=3 e=1"),
        "text": pair(model="trained CRF", label="K=32", kept=32),
        "gradients": directions("paper", [0.8, 0.6]) + directions("tailsum", [0.9997, 0.9997]),
        "theory": [
            Check("unbiased", "chain", 2.0, 1.0, 1.02, 0.01),
            Check("1/K2", "chain", 1.0, 2.0, 2.5, 0.25),
            Check("1/K2", "chain", 2.0, 1.0, 0.9, 0.1),
        ],
    }


def split_rows():
    """A chain of the paper and one with a tail of its own, K = 20 split in three ways, and ten draws alone."""
    errors = {(20, 1): 2.0, (20, 10): 0.5, (20, 20): 4.0, (10, 10): 9.0}
    return [
        SplitError(model, 2000, method, "1%", kept, sampled, quantity, 10, 5.0, 0.1, 0.01, mse - 0.01, mse, 0.1)
        for model in ("chain, dense", "tail, exponent 2")
        for quantity in ("log Z", "entropy")
        for method, (kept, sampled), mse in [
            *(("paper", *each) for each in errors.items()),
            ("tailsum", (20, 0), 0.001),
        ]
    ]


def cost_rows():
    row = StepCost("per step, a table", 2000, "autograd", "all", 2000, 1.5, 700 << 20, 2 << 20)
    return [row, replace(row, method="tailsum", label="1%", kept=20, seconds=0.05, peak_bytes=7 << 20)]


def gradient_rows():
    row = GradientError("VAE", 50, "relaxed, 1", "exact", 50, "all", 20, 4, 2.0, 0.3, 0.01, 0.4, 0.1)
    other = replace(row, method="score function, leave one out", bias=0.0, bias_error=0.2)
    return [replace(each, parameter=part) for each in (row, other) for part in ("states", "all")]
